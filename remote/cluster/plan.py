"""Actions that bring the live objects to the desired ones. Pure.

An object is unchanged if the digest of the rendered object (an annotation) is the same and every rendered field has
the same value in the cluster. The digest detects a field that left the manifests, the comparison a manual change. A
template of pods cannot change, so that a difference under the same digest is admission's and stays.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from remote.cluster.labels import COMPONENT_LABEL, Object, is_owned
from remote.cluster.manifests import DIGEST_ANNOTATION
from remote.cluster.quantities import is_equal
from remote.hosts.pods.kubectl import object_errors

_MAX_VALUE_CHARS = 160  # an image with its digest has some 110


class Verb(Enum):
    """Change to one object."""

    KEEP = "unchanged"
    CREATE = "create"
    APPLY = "change"
    REPLACE = "replace"
    DELETE = "delete"
    LEAVE = "leave"


_RBAC_VERBS = {
    Verb.CREATE: ("create", "patch"),
    Verb.APPLY: ("patch",),
    Verb.REPLACE: ("create", "delete", "patch"),
    Verb.DELETE: ("delete",),
}


@dataclass(frozen=True, kw_only=True)
class FieldDifference:
    """A field whose live value is not the desired one; `live` is None if it is absent."""

    path: str
    desired: object
    live: object = None

    def __str__(self) -> str:
        return f"{self.path}: {_format_value(self.live)} -> {_format_value(self.desired)}"


@dataclass(frozen=True, kw_only=True)
class Action:
    """Change to one object. `reason` names the first fields that differ, `differences` has all."""

    verb: Verb
    kind: str
    name: str
    reason: str = ""
    desired: Object | None = None
    live: Object | None = None
    differences: tuple[FieldDifference, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.kind.lower()}/{self.name}"

    def __str__(self) -> str:
        return f"{self.verb.value:9}  {self.title}" + (f"  ({self.reason})" if self.reason else "")


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """Actions of a deployment, in order. `makes_secret`: the pull secret is written, too."""

    actions: tuple[Action, ...]
    makes_secret: bool = False

    def with_verb(self, *verbs: Verb) -> tuple[Action, ...]:
        return tuple(action for action in self.actions if action.verb in verbs)

    @property
    def changes(self) -> tuple[Action, ...]:
        return self.with_verb(Verb.CREATE, Verb.APPLY, Verb.REPLACE, Verb.DELETE)

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.makes_secret

    @property
    def pod_ending_actions(self) -> tuple[Action, ...]:
        """Actions that end running pods and lose their uncollected results."""
        ended = self.with_verb(Verb.REPLACE, Verb.DELETE)
        return tuple(a for a in ended if a.kind in ("Job", "JobSet") and not is_being_deleted(a.live))

    @property
    def permissions(self) -> tuple[tuple[str, str], ...]:
        """RBAC permissions (verb, kind) that the plan needs in addition to reading."""
        needed = [(action.verb, action.kind) for action in self.changes]
        needed += [(Verb.CREATE, "Secret")] if self.makes_secret else []
        return tuple(sorted({(right, kind) for verb, kind in needed for right in _RBAC_VERBS[verb]}))


# Kept after they left the manifests: a volume has data, and a namespace may have objects of others.
_NEVER_DELETED_KINDS = ("Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret")
_IMMUTABLE_KINDS = ("Job", "JobSet", "PersistentVolume", "PersistentVolumeClaim")
_POD_TEMPLATES = {"Job": "spec.template", "JobSet": "spec.replicatedJobs"}


@object_errors()
def plan(
    desired: Sequence[Object], live: Sequence[Object], *, makes_secret: bool = False, replace_ended: bool = False
) -> ClusterPlan:
    """Compute the actions. Deletions come first, to free GPUs.

    `replace_ended`: restart Jobs that have failed or completed.
    """
    live_objects = {identity(resource): resource for resource in live}
    actions = [_plan_action(resource, live_objects.get(identity(resource)), replace_ended) for resource in desired]
    wanted = {identity(resource) for resource in desired}
    for key, resource in live_objects.items():
        kept = resource["kind"] in _NEVER_DELETED_KINDS or is_being_deleted(resource)
        if key not in wanted and not kept and is_owned(resource):
            actions.append(
                Action(verb=Verb.DELETE, kind=key[0], name=key[1], reason="no longer part of it", live=resource)
            )
    actions.sort(key=lambda action: action.verb is not Verb.DELETE)
    return ClusterPlan(actions=tuple(actions), makes_secret=makes_secret)


def _plan_action(desired: Object, live: Object | None, replace_ended: bool) -> Action:
    kind, name = identity(desired)
    action = partial(Action, kind=kind, name=name, desired=desired, live=live)
    if live is None:
        return action(verb=Verb.CREATE)
    if is_being_deleted(live):
        return action(verb=Verb.REPLACE, reason="it is being deleted")
    if kind == "Namespace" and not is_owned(live):
        return action(verb=Verb.LEAVE, reason="it existed before: its labels are not changed")
    if replace_ended and kind == "Job" and end_state(live) is not None:
        return action(verb=Verb.REPLACE, reason=f"it {end_state(live)}")
    different = list(differences(desired, live))
    if kind in _POD_TEMPLATES and not any(DIGEST_ANNOTATION in difference.path for difference in different):
        different = [difference for difference in different if not difference.path.startswith(_POD_TEMPLATES[kind])]
    if not different:
        return action(verb=Verb.KEEP)
    visible = tuple(difference for difference in different if DIGEST_ANNOTATION not in difference.path)
    more = f" and {len(visible) - 3} more" if len(visible) > 3 else ""
    reason = ", ".join(difference.path for difference in visible[:3]) + more or "a field left the manifest"
    verb = Verb.REPLACE if kind in _IMMUTABLE_KINDS else Verb.APPLY
    if kind in ("PersistentVolume", "PersistentVolumeClaim"):
        verb = Verb.LEAVE
        reason = f"{reason} cannot change while it is bound: `inv teardown`, then `inv deploy`"
    return action(verb=verb, reason=reason, differences=visible)


def is_being_deleted(live: Object | None) -> bool:
    """Return True for an object that still exists only until its finalizers have run."""
    return live is not None and bool(live["metadata"].get("deletionTimestamp"))


def end_state(job: Object) -> str | None:
    """Return "failed" or "completed" for a Job that has ended, else None."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] in ("Failed", "Complete"):
            return "failed" if condition["type"] == "Failed" else "completed"
    return None


@object_errors()
def is_training(workload: Object) -> bool:
    """Return True if a Job or JobSet runs a training, or waits for a queue or the replacement of a pod.

    A worker only waits for commands. A training of which no pod could be created has nothing to lose.
    """
    if workload["kind"] == "JobSet":
        return not has_ended(workload)
    spec, status = workload.get("spec", {}), workload.get("status", {})
    labels = spec.get("template", {}).get("metadata", {}).get("labels") or {}
    has_work = spec.get("suspend") or any(map(status.get, ("active", "terminating", "failed")))
    return labels.get(COMPONENT_LABEL) == "train" and not has_ended(workload) and bool(has_work)


@object_errors()
def has_ended(workload: Object) -> bool:
    """Return True if a Job or JobSet has ended, whatever its pods did."""
    if workload["kind"] == "JobSet":
        return bool(workload.get("status", {}).get("terminalState"))
    return end_state(workload) is not None


def identity(resource: Object) -> tuple[str, str]:
    """Return (kind, name), which is unique in one namespace."""
    return resource["kind"], resource["metadata"]["name"]


def differences(desired: object, live: object, path: str = "") -> Iterator[FieldDifference]:
    """Yield desired fields whose live value differs. Fields that only the cluster has (defaults, status) are ignored.

    A list is compared item by item, except tolerations: admission adds two.
    """
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            yield FieldDifference(path=path, desired=desired, live=live)
            return
        for key, value in desired.items():
            field = f"{path}.{key}" if path else str(key)
            if value is None or value in ({}, []) or (value == "" and key not in live):
                continue  # the API drops empty values, also a PersistentVolume's empty storageClassName
            if key not in live:
                yield FieldDifference(path=field, desired=value)
            else:
                yield from differences(value, live[key], field)
    elif isinstance(desired, list):
        yield from _list_differences(desired, live, path)
    elif not is_equal(desired, live):
        yield FieldDifference(path=path, desired=desired, live=live)


def _list_differences(desired: list[Any], live: object, path: str) -> Iterator[FieldDifference]:
    whole = FieldDifference(path=path, desired=desired, live=live)
    if not isinstance(live, list):
        yield whole
    elif path.endswith("tolerations"):
        if any(all(any(differences(item, live_item)) for live_item in live) for item in desired):
            yield whole
    elif len(desired) != len(live):
        yield whole
    else:
        for index, (item, live_item) in enumerate(zip(desired, live, strict=True)):
            yield from differences(item, live_item, f"{path}[{index}]")


def _format_value(value: object) -> str:
    """Format a field's value on one line, truncated."""
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."
