"""The objects, their versions, and everybody who watches them. Stored objects are never changed, only replaced."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.support.kubernetes.api.answers import Json, already_exists, copied, not_found, stale

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # the letters that generated names are made of


def now() -> str:
    """Kubernetes time: UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def suffix() -> str:
    return "".join(random.choices(_SUFFIX, k=5))


@dataclass(frozen=True, kw_only=True)
class Change:
    """One step of the history. `old` is None when the object was made, `gone` when it was deleted."""

    version: int
    key: str
    old: Json | None
    new: Json
    gone: bool = False


class Store:
    """All objects by resource key, then (namespace, name)."""

    def __init__(self) -> None:
        self.version = 1000
        self.history: list[Change] = []
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        self._listeners: list[Callable[[Change], None]] = []

    def find(self, key: str, namespace: str, name: str) -> Json | None:
        return self._objects.get(key, {}).get((namespace, name))

    def get(self, key: str, namespace: str, name: str) -> Json:
        found = self.find(key, namespace, name)
        if found is None:
            raise not_found(key, name)
        return found

    def list(self, key: str, namespace: str = "") -> list[Json]:
        """Objects in the order of their names; an empty namespace means all."""
        of_kind = self._objects.get(key, {})
        return [of_kind[at] for at in sorted(of_kind) if not namespace or at[0] == namespace]

    def keys(self) -> list[str]:
        return list(self._objects)

    def prepare(self, namespace: str, obj: Json) -> Json:
        """A copy of `obj` with the metadata that only a server can give."""
        made = copied(obj)
        metadata = made.setdefault("metadata", {})
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = metadata["generateName"] + suffix()
        if namespace:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", now())
        return made

    def create(self, key: str, namespace: str, obj: Json) -> Json:
        made = self.prepare(namespace, obj)
        name = made["metadata"]["name"]
        if self.find(key, namespace, name) is not None:
            raise already_exists(key, name)
        return self._commit(key, None, made)

    def replace(self, key: str, old: Json, new: Json) -> Json:
        """Put `new` in the place of `old`. The same content changes nothing, not even the version."""
        metadata = old["metadata"]
        current = self.get(key, metadata.get("namespace", ""), metadata["name"])
        if current["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise stale(key, metadata["name"])
        made = copied(new)
        made["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if made == current:
            return current
        return self._commit(key, current, made)

    def edit(self, key: str, namespace: str, name: str, change: Callable[[Json], None]) -> Json | None:
        """Apply `change` to a copy and keep it; None when the object is no longer there."""
        current = self.find(key, namespace, name)
        if current is None:
            return None
        made = copied(current)
        change(made)
        return self.replace(key, current, made)

    def remove(self, key: str, namespace: str, name: str) -> Json:
        gone = copied(self.get(key, namespace, name))
        del self._objects[key][namespace, name]
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._announce(Change(version=self.version, key=key, old=gone, new=gone, gone=True))
        return gone

    def _commit(self, key: str, old: Json | None, made: Json) -> Json:
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        if "spec" in made and key != "nodes":
            same = old is not None and old.get("spec") == made["spec"]
            generation = (old or {}).get("metadata", {}).get("generation", 0)
            made["metadata"]["generation"] = generation if same else generation + 1
        self._objects.setdefault(key, {})[made["metadata"].get("namespace", ""), made["metadata"]["name"]] = made
        self._announce(Change(version=self.version, key=key, old=old, new=made))
        return made

    def _announce(self, change: Change) -> None:
        self.history.append(change)
        for listener in self._listeners:
            listener(change)

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` on every change from now on; returns how to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


class Watch:
    """Changes of one kind since a version, as (type, object) pairs, seen through a filter."""

    def __init__(
        self, store: Store, key: str, namespace: str, since: int | None, wanted: Callable[[Json], bool]
    ) -> None:
        self._key, self._namespace, self._wanted = key, namespace, wanted
        self._queue: asyncio.Queue[Change] = asyncio.Queue()
        if since is None:
            self._past = [
                Change(version=int(obj["metadata"]["resourceVersion"]), key=key, old=None, new=obj)
                for obj in store.list(key, namespace)
            ]
        else:
            self._past = [change for change in store.history if change.version > since]
        self.close = store.listen(self._queue.put_nowait)

    def _seen(self, change: Change) -> tuple[str, Json] | None:
        if change.key != self._key or (self._namespace and change.new["metadata"].get("namespace") != self._namespace):
            return None
        before = change.old is not None and self._wanted(change.old)
        after = not change.gone and self._wanted(change.new)
        if not (before or after):
            return None
        return ("MODIFIED" if before and after else "ADDED" if after else "DELETED"), change.new

    def past(self) -> Iterator[tuple[str, Json]]:
        return (seen for change in self._past if (seen := self._seen(change)))

    async def next(self) -> tuple[str, Json]:
        while True:
            seen = self._seen(await self._queue.get())
            if seen:
                return seen


def condition(kind: str, status: str, **more: Any) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": now(), **more}


def held(obj: Json) -> set[str]:
    """The conditions of an object that are True."""
    return {one["type"] for one in obj.get("status", {}).get("conditions", []) if one["status"] == "True"}


def set_condition(obj: Json, kind: str, holds: object, **more: Any) -> None:
    """Put a condition of an object in place; its transition time moves only when its status does."""
    fresh = {"lastProbeTime": None, **condition(kind, "True" if holds else "False", **more)}
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    for index, old in enumerate(conditions):
        if old["type"] == kind:
            if old["status"] == fresh["status"]:
                fresh["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[index] = fresh
            return
    conditions.append(fresh)
