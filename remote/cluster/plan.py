"""What is to be done to the cluster: from the objects that should be there and those that are, to actions. Pure.

An object is unchanged when the digest of what was rendered, kept in an annotation, is the same *and* everything
rendered is still so in the cluster: the digest notices what left the manifests, the comparison what was changed by
hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from remote.cluster.labels import COMPONENT_LABEL, Object, is_owned
from remote.cluster.manifests import DIGEST
from remote.cluster.quantity import same

_SHOWN = 160  # characters of a value in a difference; an image with its digest has some 110


class Verb(Enum):
    """What is done to one object."""

    KEEP = "unchanged"
    CREATE = "create"
    APPLY = "change"
    REPLACE = "replace"
    DELETE = "delete"
    LEAVE = "leave"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A field that the cluster does not have as desired; `live` is None where it is absent."""

    path: str
    desired: object
    live: object = None

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.live)} -> {_short(self.desired)}"


@dataclass(frozen=True, kw_only=True)
class Action:
    """One object and what to do with it; `why` names the first fields that differ, `differences` has them all."""

    verb: Verb
    kind: str
    name: str
    why: str
    desired: Object | None = None
    live: Object | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.kind.lower()}/{self.name}"

    def __str__(self) -> str:
        return f"{self.verb.value:9}  {self.title}" + (f"  ({self.why})" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a deployment will do, in this order. `makes_secret`: the pull secret is written as well."""

    actions: tuple[Action, ...]
    makes_secret: bool = False

    def of(self, *verbs: Verb) -> tuple[Action, ...]:
        return tuple(action for action in self.actions if action.verb in verbs)

    @property
    def changes(self) -> tuple[Action, ...]:
        return self.of(Verb.CREATE, Verb.APPLY, Verb.REPLACE, Verb.DELETE)

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.makes_secret

    @property
    def ends_pods(self) -> tuple[Action, ...]:
        """The actions that end running pods, and with them whatever was not collected."""
        workloads = ("Job", "JobSet")
        return tuple(a for a in self.of(Verb.REPLACE, Verb.DELETE) if a.kind in workloads)

    @property
    def permissions(self) -> tuple[tuple[str, str], ...]:
        """(verb, kind) the plan needs besides reading."""
        needed: set[tuple[str, str]] = set()
        for action in self.changes:
            if action.verb is not Verb.DELETE:
                needed |= {("patch", action.kind)} | ({("create", action.kind)} if action.live is None else set())
            if action.verb in (Verb.DELETE, Verb.REPLACE):
                needed |= {("delete", action.kind), *([("create", action.kind)] if action.desired else [])}
        if self.makes_secret:
            needed |= {("patch", "Secret"), ("create", "Secret")}
        return tuple(sorted(needed))


# Never deleted because a manifest no longer has it: what a volume holds, and what others live in, is not ours to drop.
_KEPT_KINDS = ("Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret")
_IMMUTABLE_KINDS = ("Job", "JobSet", "PersistentVolume", "PersistentVolumeClaim")


def plan(
    desired: Sequence[Object], live: Sequence[Object], *, makes_secret: bool = False, replace_ended: bool = False
) -> Plan:
    """From what should be to what is. Deletions come first, so that replaced pods free their GPUs.

    `replace_ended`: start Jobs that have failed or completed again.
    """
    there = {identity(one): one for one in live}
    actions = [_decide(one, there.get(identity(one)), replace_ended) for one in desired]
    wanted = {identity(one) for one in desired}
    for key, one in there.items():
        if key not in wanted and one["kind"] not in _KEPT_KINDS and is_owned(one):
            actions.append(Action(verb=Verb.DELETE, kind=key[0], name=key[1], why="no longer part of it", live=one))
    actions.sort(key=lambda action: action.verb is not Verb.DELETE)
    return Plan(actions=tuple(actions), makes_secret=makes_secret)


def _decide(desired: Object, live: Object | None, replace_ended: bool) -> Action:
    kind, name = identity(desired)
    if live is None:
        return Action(verb=Verb.CREATE, kind=kind, name=name, why="", desired=desired)
    if kind == "Namespace" and not is_owned(live):
        why = "it was there before: its labels are left as they are"
        return Action(verb=Verb.LEAVE, kind=kind, name=name, why=why, desired=desired, live=live)
    found = list(differences(desired, live))
    if replace_ended and kind == "Job" and ended(live) is not None:
        return Action(verb=Verb.REPLACE, kind=kind, name=name, why=f"it {ended(live)}", desired=desired, live=live)
    if not found:
        return Action(verb=Verb.KEEP, kind=kind, name=name, why="", desired=desired, live=live)
    telling = tuple(one for one in found if DIGEST not in one.path)
    more = f" and {len(telling) - 3} more" if len(telling) > 3 else ""
    why = ", ".join(one.path for one in telling[:3]) + more or "a field left the manifest"
    verb = Verb.REPLACE if kind in _IMMUTABLE_KINDS else Verb.APPLY
    if kind in ("PersistentVolume", "PersistentVolumeClaim"):
        verb = Verb.LEAVE
        why = f"{why} cannot change while it is bound: `inv teardown`, then `inv deploy`"
    return Action(verb=verb, kind=kind, name=name, why=why, desired=desired, live=live, differences=telling)


def ended(job: Object) -> str | None:
    """How a Job has ended: "failed", "completed" or None."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] in ("Failed", "Complete"):
            return "failed" if condition["type"] == "Failed" else "completed"
    return None


def is_training(workload: Object) -> bool:
    """Whether a Job or JobSet is in the middle of work of its own; a worker only waits for commands."""
    template = workload.get("spec", {}).get("template", {}).get("metadata", {})
    component = (template.get("labels") or {}).get(COMPONENT_LABEL)
    if workload["kind"] == "JobSet":
        return not workload.get("status", {}).get("terminalState")
    return component == "train" and ended(workload) is None and bool(workload.get("status", {}).get("active"))


def identity(one: Object) -> tuple[str, str]:
    """What makes an object the same in manifests and cluster, within one namespace."""
    return one["kind"], one["metadata"]["name"]


def differences(desired: object, live: object, path: str = "") -> Iterator[Difference]:
    """Where the cluster does not have what is desired. What the cluster adds (defaults, status) is none.

    A list is compared place by place, except tolerations, to which admission adds two of its own.
    """
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            yield Difference(path=path, desired=desired, live=live)
            return
        for key, value in desired.items():
            below = f"{path}.{key}" if path else str(key)
            if value is None or value in ({}, []):
                continue  # the API drops empty values
            if key not in live:
                yield Difference(path=below, desired=value)
            else:
                yield from differences(value, live[key], below)
    elif isinstance(desired, list):
        yield from _list_differences(desired, live, path)
    elif not same(desired, live):
        yield Difference(path=path, desired=desired, live=live)


def _list_differences(desired: list[Any], live: object, path: str) -> Iterator[Difference]:
    whole = Difference(path=path, desired=desired, live=live)
    if not isinstance(live, list):
        yield whole
    elif path.endswith("tolerations"):
        if any(all(any(differences(one, other)) for other in live) for one in desired):
            yield whole
    elif len(desired) != len(live):
        yield whole
    else:
        for index, (one, other) in enumerate(zip(desired, live, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")


def _short(value: object) -> str:
    """A field's value on one line; what is long is cut."""
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
