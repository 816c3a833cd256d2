"""POST and PATCH: merge, add defaults, store; a dry run omits the last step."""

from __future__ import annotations

from tests.support.kubernetes.api.answers import Json, Refusal, not_found
from tests.support.kubernetes.store.apply import apply, merge_patch
from tests.support.kubernetes.store.resources import Target
from tests.support.kubernetes.store.store import Store

APPLY = "application/apply-patch+yaml"
_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "namespace",
    "name",
)


# Default fields, as far as the cluster's parts and our requests need them.
_PHASES = {"pods": "Pending", "persistentvolumeclaims": "Pending", "persistentvolumes": "Available"}


class Writer:
    """Writer of clients' changes to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, method: str, at: Target, body: Json, query: dict[str, str], content_type: str) -> Json:
        """Return the object as stored, or as it would be in a dry run. Raises Refusal."""
        key, dry, manager = at.resource.key, query.get("dryRun") == "All", query.get("fieldManager") or "unknown"
        live = self._store.find(key, at.namespace, at.name)
        if method == "POST":
            return self._create(at, body, dry)
        if content_type == APPLY:
            before = self._store.applied.get((live["metadata"]["uid"], manager), set()) if live else set()
            made, applied = apply(live, before, body)
            written = self._create(at, made, dry) if live is None else self._update(at, live, made, dry)
            if not dry:
                self._store.applied[written["metadata"]["uid"], manager] = applied
            return written
        if live is None:
            raise not_found(key, at.name)
        # The strategic patches of cordon, taint and drain merge no list.
        return self._update(at, live, merge_patch(live, body), dry)

    def _create(self, at: Target, body: Json, dry: bool) -> Json:
        made = self._store.prepare(at.namespace, {k: v for k, v in body.items() if k != "status"})
        fill(at.resource.key, made)
        if dry:
            made["metadata"]["resourceVersion"] = ""
            return made
        return self._store.create(at.resource.key, at.namespace, made)

    def _update(self, at: Target, live: Json, made: Json, dry: bool) -> Json:
        for name in _SERVER_OWNED:
            if name in live["metadata"]:
                made["metadata"][name] = live["metadata"][name]
        fill(at.resource.key, made)
        for field in ("template", "completions") if at.resource.key == "jobs.batch" else ():
            if live["spec"][field] != made["spec"][field]:
                text = f'Job.batch "{at.name}" is invalid: spec.{field}: Invalid value: field is immutable'
                raise Refusal(422, "Invalid", text)
        made["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if dry:
            return made
        return self._store.replace(at.resource.key, made)


def fill(key: str, obj: Json) -> None:
    """Add the kind's defaults to an object that already has its metadata."""
    if key in _PHASES:
        obj.setdefault("status", {"phase": _PHASES[key]})
    if key == "services" and obj["spec"].get("publishNotReadyAddresses") is False:
        del obj["spec"]["publishNotReadyAddresses"]  # Go omits what is false, and so the API drops it
    if key == "jobs.batch":
        obj.setdefault("status", {})
        labels = obj["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})
        labels["batch.kubernetes.io/job-name"] = obj["metadata"]["name"]
