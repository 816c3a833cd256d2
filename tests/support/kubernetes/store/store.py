"""Store of objects with versions, history and watches. Stored objects are never changed, only replaced."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.support.kubernetes.api.answers import Json, already_exists, deep_copy, not_found, stale

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # the characters of generated names


def now() -> str:
    """Return the time in Kubernetes' form: UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def suffix() -> str:
    return "".join(random.choices(_SUFFIX, k=5))


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of an object. `old` is None if the object was created."""

    version: int
    key: str
    old: Json | None
    new: Json
    is_deletion: bool = False


class Store:
    """All objects by resource key, then (namespace, name)."""

    def __init__(self) -> None:
        self.version = 1000
        self.history: list[Change] = []
        self.owners: dict[str, Any] = {}  # uid to `Managers` of `store.apply`
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        self._listeners: list[Callable[[Change], None]] = []

    def find(self, key: str, namespace: str, name: str) -> Json | None:
        return self._objects.get(key, {}).get((namespace, name))

    def get(self, key: str, namespace: str, name: str) -> Json:
        obj = self.find(key, namespace, name)
        if obj is None:
            raise not_found(key, name)
        return obj

    def list(self, key: str, namespace: str = "") -> list[Json]:
        """Return the objects in the order of their names; an empty namespace means all."""
        objects = self._objects.get(key, {})
        return [objects[at] for at in sorted(objects) if not namespace or at[0] == namespace]

    def keys(self) -> list[str]:
        return list(self._objects)

    def prepare(self, namespace: str, obj: Json) -> Json:
        """Return a copy of `obj` with the metadata that the server sets."""
        made = deep_copy(obj)
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
        """Replace `old` by `new`. Equal content changes nothing, not even the version."""
        metadata = old["metadata"]
        current = self.get(key, metadata.get("namespace", ""), metadata["name"])
        if current["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]:
            raise stale(key, metadata["name"])
        made = deep_copy(new)
        made["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if made == current:
            return current
        return self._commit(key, current, made)

    def edit(self, key: str, namespace: str, name: str, change: Callable[[Json], None]) -> Json | None:
        """Apply `change` to a copy and store it; None if the object does not exist."""
        current = self.find(key, namespace, name)
        if current is None:
            return None
        made = deep_copy(current)
        change(made)
        return self.replace(key, current, made)

    def remove(self, key: str, namespace: str, name: str) -> Json:
        gone = deep_copy(self.get(key, namespace, name))
        del self._objects[key][namespace, name]
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._announce(Change(version=self.version, key=key, old=gone, new=gone, is_deletion=True))
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
        """Call `listener` for every further change; return a function that stops this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


class Watch:
    """Filtered changes of one kind since a version, as (type, object) pairs."""

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

    def _event(self, change: Change) -> tuple[str, Json] | None:
        if change.key != self._key or (self._namespace and change.new["metadata"].get("namespace") != self._namespace):
            return None
        before = change.old is not None and self._wanted(change.old)
        after = not change.is_deletion and self._wanted(change.new)
        if not (before or after):
            return None
        return ("MODIFIED" if before and after else "ADDED" if after else "DELETED"), change.new

    def past(self) -> Iterator[tuple[str, Json]]:
        return (seen for change in self._past if (seen := self._event(change)))

    async def next(self) -> tuple[str, Json]:
        while True:
            seen = self._event(await self._queue.get())
            if seen:
                return seen


def condition(kind: str, status: str, **more: Any) -> Json:
    return {"type": kind, "status": status, "lastTransitionTime": now(), **more}


def true_conditions(obj: Json) -> set[str]:
    """Return the types of an object's conditions that are True."""
    return {entry["type"] for entry in obj.get("status", {}).get("conditions", []) if entry["status"] == "True"}


def set_condition(obj: Json, kind: str, holds: object, **more: Any) -> None:
    """Set a condition of an object; its transition time changes only with its status."""
    fresh = {"lastProbeTime": None, **condition(kind, "True" if holds else "False", **more)}
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    for index, old in enumerate(conditions):
        if old["type"] == kind:
            if old["status"] == fresh["status"]:
                fresh["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[index] = fresh
            return
    conditions.append(fresh)
