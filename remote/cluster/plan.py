"""What is to be done to the cluster: from the objects that should be there and those that are, to actions. Pure.

An object is unchanged when the digest of the rendered object (an annotation) is the same and every rendered field has
the same value in the cluster. The digest detects a field that left the manifests, the comparison a change by hand.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from remote.cluster.errors import reading_objects
from remote.cluster.labels import COMPONENT_LABEL, Object, is_owned
from remote.cluster.manifests import DIGEST
from remote.cluster.quantities import same

_SHOWN = 160  # characters of a value in a difference; an image with its digest has some 110


class Verb(Enum):
    """What is done to one object."""

    KEEP = "unchanged"
    CREATE = "create"
    APPLY = "change"
    REPLACE = "replace"
    DELETE = "delete"
    LEAVE = "leave"


_RIGHTS = {
    Verb.CREATE: ("create", "patch"),
    Verb.APPLY: ("patch",),
    Verb.REPLACE: ("create", "delete", "patch"),
    Verb.DELETE: ("delete",),
}


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
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
    why: str = ""
    desired: Object | None = None
    live: Object | None = None
    differences: tuple[FieldDifference, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.kind.lower()}/{self.name}"

    def __str__(self) -> str:
        return f"{self.verb.value:9}  {self.title}" + (f"  ({self.why})" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
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
        """The actions that end running pods, and lose what was not collected from them."""
        return tuple(a for a in self.of(Verb.REPLACE, Verb.DELETE) if a.kind in ("Job", "JobSet"))

    @property
    def permissions(self) -> tuple[tuple[str, str], ...]:
        """(verb, kind) the plan needs besides reading."""
        needed = [(action.verb, action.kind) for action in self.changes]
        needed += [(Verb.CREATE, "Secret")] if self.makes_secret else []
        return tuple(sorted({(right, kind) for verb, kind in needed for right in _RIGHTS[verb]}))


# Not deleted when a manifest no longer has them: a volume has data, and a namespace may have objects of others.
_KEPT_KINDS = ("Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret")
_IMMUTABLE_KINDS = ("Job", "JobSet", "PersistentVolume", "PersistentVolumeClaim")


@reading_objects()
def plan(
    desired: Sequence[Object], live: Sequence[Object], *, makes_secret: bool = False, replace_ended: bool = False
) -> ClusterPlan:
    """From what is there to what should be. Deletions come first, so that their pods free their GPUs.

    `replace_ended`: start Jobs that have failed or completed again.
    """
    there = {identity(one): one for one in live}
    actions = [_decide(one, there.get(identity(one)), replace_ended) for one in desired]
    wanted = {identity(one) for one in desired}
    for key, one in there.items():
        if key not in wanted and one["kind"] not in _KEPT_KINDS and is_owned(one):
            actions.append(Action(verb=Verb.DELETE, kind=key[0], name=key[1], why="no longer part of it", live=one))
    actions.sort(key=lambda action: action.verb is not Verb.DELETE)
    return ClusterPlan(actions=tuple(actions), makes_secret=makes_secret)


def _decide(desired: Object, live: Object | None, replace_ended: bool) -> Action:
    kind, name = identity(desired)
    action = partial(Action, kind=kind, name=name, desired=desired, live=live)
    if live is None:
        return action(verb=Verb.CREATE)
    if kind == "Namespace" and not is_owned(live):
        return action(verb=Verb.LEAVE, why="it was there before: its labels are left as they are")
    if replace_ended and kind == "Job" and ended(live) is not None:
        return action(verb=Verb.REPLACE, why=f"it {ended(live)}")
    different = list(differences(desired, live))
    if not different:
        return action(verb=Verb.KEEP)
    shown = tuple(one for one in different if DIGEST not in one.path)
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    why = ", ".join(one.path for one in shown[:3]) + more or "a field left the manifest"
    verb = Verb.REPLACE if kind in _IMMUTABLE_KINDS else Verb.APPLY
    if kind in ("PersistentVolume", "PersistentVolumeClaim"):
        verb = Verb.LEAVE
        why = f"{why} cannot change while it is bound: `inv teardown`, then `inv deploy`"
    return action(verb=verb, why=why, differences=shown)


def ended(job: Object) -> str | None:
    """How a Job has ended: "failed", "completed" or None."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] in ("Failed", "Complete"):
            return "failed" if condition["type"] == "Failed" else "completed"
    return None


@reading_objects()
def is_training(workload: Object) -> bool:
    """Whether a Job or JobSet is in the middle of work of its own; a worker only waits for commands."""
    status = workload.get("status", {})
    if workload["kind"] == "JobSet":
        return not status.get("terminalState")
    labels = workload.get("spec", {}).get("template", {}).get("metadata", {}).get("labels") or {}
    return labels.get(COMPONENT_LABEL) == "train" and ended(workload) is None and bool(status.get("active"))


def identity(one: Object) -> tuple[str, str]:
    """(kind, name): the same in the manifests and in the cluster, within one namespace."""
    return one["kind"], one["metadata"]["name"]


def differences(desired: object, live: object, path: str = "") -> Iterator[FieldDifference]:
    """Where the cluster does not have what is desired. What the cluster adds (defaults, status) is no difference.

    A list is compared item by item, except tolerations, to which admission adds two of its own.
    """
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            yield FieldDifference(path=path, desired=desired, live=live)
            return
        for key, value in desired.items():
            below = f"{path}.{key}" if path else str(key)
            if value is None or value in ({}, []):
                continue  # the API drops empty values
            if key not in live:
                yield FieldDifference(path=below, desired=value)
            else:
                yield from differences(value, live[key], below)
    elif isinstance(desired, list):
        yield from _list_differences(desired, live, path)
    elif not same(desired, live):
        yield FieldDifference(path=path, desired=desired, live=live)


def _list_differences(desired: list[Any], live: object, path: str) -> Iterator[FieldDifference]:
    whole = FieldDifference(path=path, desired=desired, live=live)
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
