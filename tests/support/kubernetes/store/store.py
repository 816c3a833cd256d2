"""Store of objects with versions, history and listeners. Stored objects are never changed, only replaced."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tests.support.kubernetes.api.answers import Json, deep_copy, not_found

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # the characters of generated names


def now() -> str:
    """Return the time in Kubernetes' form: UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def suffix() -> str:
    return "".join(random.choices(_SUFFIX, k=5))


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of an object."""

    version: int
    key: str
    new: Json
    is_deletion: bool = False


class Store:
    """All objects by resource key, then (namespace, name)."""

    def __init__(self) -> None:
        self.version = 1000
        self.history: list[Change] = []
        self.applied: dict[tuple[str, str], set[tuple[str, ...]]] = {}  # uid and manager to the paths of its last apply
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
        if namespace:
            metadata["namespace"] = namespace
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", now())
        return made

    def create(self, key: str, namespace: str, obj: Json) -> Json:
        return self._commit(key, self.prepare(namespace, obj))

    def replace(self, key: str, new: Json) -> Json:
        """Replace the object with this name. Equal content changes nothing, not even the version."""
        current = self.get(key, new["metadata"].get("namespace", ""), new["metadata"]["name"])
        made = deep_copy(new)
        made["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if made == current:
            return current
        return self._commit(key, made)

    def edit(self, key: str, namespace: str, name: str, change: Callable[[Json], None]) -> Json | None:
        """Apply `change` to a copy and store it; None if the object does not exist."""
        current = self.find(key, namespace, name)
        if current is None:
            return None
        made = deep_copy(current)
        change(made)
        return self.replace(key, made)

    def remove(self, key: str, namespace: str, name: str) -> Json:
        gone = deep_copy(self.get(key, namespace, name))
        del self._objects[key][namespace, name]
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._announce(Change(version=self.version, key=key, new=gone, is_deletion=True))
        return gone

    def _commit(self, key: str, made: Json) -> Json:
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        self._objects.setdefault(key, {})[made["metadata"].get("namespace", ""), made["metadata"]["name"]] = made
        self._announce(Change(version=self.version, key=key, new=made))
        return made

    def _announce(self, change: Change) -> None:
        self.history.append(change)
        for listener in self._listeners:
            listener(change)

    def listen(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` for every further change; return a function that stops this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


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
