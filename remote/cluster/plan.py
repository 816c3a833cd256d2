"""Actions that bring the live objects to the desired ones. Pure.

The server decides what differs: an object changes if a dry run of its server-side apply does not leave it as it is. A
Job's template cannot change, so the digest of the rendered Job (an annotation) says whether it must be replaced.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from remote.cluster.labels import COMPONENT_LABEL, Object, is_owned
from remote.cluster.manifests import DIGEST_ANNOTATION, to_yaml


class Verb(Enum):
    """Kind of change to one object."""

    KEEP = "unchanged"
    CREATE = "create"
    APPLY = "change"
    REPLACE = "replace"
    DELETE = "delete"
    LEAVE = "leave"


@dataclass(frozen=True, kw_only=True)
class Action:
    """Change to one object. `after`: what the server would store, if it said so."""

    verb: Verb
    kind: str
    name: str
    reason: str = ""
    desired: Object | None = None
    live: Object | None = None
    after: Object | None = None

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


# Kept after they left the manifests: a volume has data, and a namespace may have objects of others.
_NEVER_DELETED_KINDS = ("Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret")
_IMMUTABLE_KINDS = ("Job", "JobSet", "PersistentVolume", "PersistentVolumeClaim")
# Set by the server in each change; the digest covers the owners of fields.
_SERVER_METADATA = ("generation", "managedFields", "resourceVersion")


def plan(
    desired: Sequence[Object],
    live: Sequence[Object],
    applied: Sequence[Object],
    *,
    makes_secret: bool = False,
    replace_ended: bool = False,
) -> ClusterPlan:
    """Compute the actions. Deletions come first, to free GPUs.

    `applied`: what the server would store of the objects that `comparable` returns. `replace_ended`: restart Jobs that
    have failed or completed.
    """
    live_objects = {identity(resource): resource for resource in live}
    after = {identity(resource): resource for resource in applied}
    actions = [
        _plan_action(resource, live_objects.get(identity(resource)), after.get(identity(resource)), replace_ended)
        for resource in desired
    ]
    wanted = {identity(resource) for resource in desired}
    for key, resource in live_objects.items():
        kept = resource["kind"] in _NEVER_DELETED_KINDS or is_being_deleted(resource)
        if key not in wanted and not kept and is_owned(resource):
            actions.append(
                Action(verb=Verb.DELETE, kind=key[0], name=key[1], reason="no longer part of it", live=resource)
            )
    actions.sort(key=lambda action: action.verb is not Verb.DELETE)
    return ClusterPlan(actions=tuple(actions), makes_secret=makes_secret)


def comparable(desired: Sequence[Object], live: Sequence[Object]) -> list[Object]:
    """Return the desired objects whose live ones can be changed in place."""
    live_objects = {identity(resource): resource for resource in live}
    return [
        resource
        for resource in desired
        if (current := live_objects.get(identity(resource))) is not None
        and resource["kind"] not in _IMMUTABLE_KINDS
        and not is_being_deleted(current)
        and not _is_foreign_namespace(current)
    ]


def _plan_action(desired: Object, live: Object | None, after: Object | None, replace_ended: bool) -> Action:
    kind, name = identity(desired)
    action = partial(Action, kind=kind, name=name, desired=desired, live=live)
    if live is None:
        return action(verb=Verb.CREATE)
    if is_being_deleted(live):
        return action(verb=Verb.REPLACE, reason="it is being deleted")
    if _is_foreign_namespace(live):
        return action(verb=Verb.LEAVE, reason="it existed before: its labels are not changed")
    if replace_ended and kind == "Job" and end_state(live) is not None:
        return action(verb=Verb.REPLACE, reason=f"it {end_state(live)}")
    if after is not None:
        before, stored = _content(live), _content(after)
        changed = [section for section in {**before, **stored} if before.get(section) != stored.get(section)]
        return action(verb=Verb.APPLY, reason=", ".join(changed), after=after) if changed else action(verb=Verb.KEEP)
    if _digest(desired) == _digest(live):
        return action(verb=Verb.KEEP)
    if kind in ("PersistentVolume", "PersistentVolumeClaim"):
        reason = "it cannot change while it is bound: `inv teardown`, then `inv deploy`"
        return action(verb=Verb.LEAVE, reason=reason)
    # Also an object that could not be compared: this account may not try a change.
    verb = Verb.REPLACE if kind in _IMMUTABLE_KINDS else Verb.APPLY
    return action(verb=verb, reason="its manifest changed")


def _is_foreign_namespace(live: Object) -> bool:
    return live["kind"] == "Namespace" and not is_owned(live)


def _digest(resource: Object) -> str | None:
    digest: str | None = (resource["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION)
    return digest


def _content(resource: Object) -> dict[str, Any]:
    """Return an object without its status and what the server sets in each change."""
    metadata = {key: value for key, value in resource["metadata"].items() if key not in _SERVER_METADATA}
    return {**{key: value for key, value in resource.items() if key != "status"}, "metadata": metadata}


def is_being_deleted(live: Object | None) -> bool:
    """Return True for an object that still exists only until its finalizers have run."""
    return live is not None and bool(live["metadata"].get("deletionTimestamp"))


def end_state(job: Object) -> str | None:
    """Return "failed" or "completed" for a Job that has ended, else None."""
    for condition in job.get("status", {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] in ("Failed", "Complete"):
            return "failed" if condition["type"] == "Failed" else "completed"
    return None


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


def has_ended(workload: Object) -> bool:
    """Return True if a Job or JobSet has ended, whatever its pods did."""
    if workload["kind"] == "JobSet":
        return bool(workload.get("status", {}).get("terminalState"))
    return end_state(workload) is not None


def identity(resource: Object) -> tuple[str, str]:
    """Return (kind, name), which is unique in one namespace."""
    return resource["kind"], resource["metadata"]["name"]


def describe_change(action: Action) -> str:
    """Return the changed lines of an object; empty if it is new or goes. Of one that is replaced, without defaults."""
    if action.live is None or action.desired is None:
        return ""
    before, after = _project(action.live, action.desired), action.desired
    if action.after is not None:
        before, after = _content(action.live), _content(action.after)
    old, new = (to_yaml([document]).splitlines() for document in (before, after))
    lines = difflib.unified_diff(old, new, f"live/{action.title}", f"desired/{action.title}", n=1, lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _project(live: object, desired: object) -> object:
    """Return the parts of `live` that `desired` has, too: without defaults and status."""
    if isinstance(desired, Mapping) and isinstance(live, Mapping):
        return {key: _project(live[key], value) for key, value in desired.items() if key in live}
    if isinstance(desired, list) and isinstance(live, list) and len(desired) == len(live):
        return [_project(*pair) for pair in zip(live, desired, strict=True)]
    return live
