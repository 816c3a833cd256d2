"""POST and PATCH: merge, add defaults, admit, store; a dry run omits the last step."""

from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes.admission.admission import admit, check_change
from tests.support.kubernetes.admission.defaults import fill
from tests.support.kubernetes.api.answers import Json, Refusal, already_exists, bad_request, deep_copy, not_found, stale
from tests.support.kubernetes.store.apply import Managers, apply, owners_after_update
from tests.support.kubernetes.store.resources import Target
from tests.support.kubernetes.store.store import Store

APPLY = "application/apply-patch+yaml"
_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "namespace",
    "name",
)


@dataclass(frozen=True, kw_only=True)
class Written:
    obj: Json
    created: bool


def merge_patch(live: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return deep_copy(patch)
    made = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = merge_patch(made.get(name), value)
    return made


class Writer:
    """Writer of clients' changes to the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, method: str, at: Target, body: Any, query: dict[str, str], content_type: str) -> Written:
        dry = query.get("dryRun") == "All"
        manager = query.get("fieldManager") or "unknown"
        if method == "PATCH":
            return self._patch(at, body, content_type, query, manager, dry)
        if not isinstance(body, dict):
            raise bad_request("the body of the request is not an object")
        return Written(obj=self._create(at, body, manager, dry), created=True)

    def _create(self, at: Target, body: Json, manager: str, dry: bool) -> Json:
        key = at.resource.key
        named = body.get("metadata", {}).get("namespace")
        if at.namespace and named not in (None, at.namespace):
            raise bad_request(
                f"the namespace of the provided object does not match the namespace sent on the request ({named})"
            )
        made = self._store.prepare(at.namespace, {k: v for k, v in body.items() if k != "status"})
        made["metadata"].pop("resourceVersion", None)
        name = made["metadata"].get("name")
        if not name:
            raise bad_request("name or generateName is required")
        if self._store.find(key, at.namespace, name) is not None:
            raise already_exists(key, name)
        return self._store_new(at, made, owners_after_update(at.resource, None, {}, made, manager), dry)

    def _store_new(self, at: Target, made: Json, owners: Managers, dry: bool) -> Json:
        fill(at.resource.key, made)
        admit(self._store, at.resource, made)
        if dry:
            made["metadata"]["resourceVersion"] = ""
            return made
        self._store.owners[made["metadata"]["uid"]] = owners
        return self._store.create(at.resource.key, at.namespace, made)

    def _update(
        self, at: Target, live: Json, made: Json, manager: str, dry: bool, owners: Managers | None = None
    ) -> Json:
        for name in _SERVER_OWNED:
            if name in live["metadata"]:
                made["metadata"][name] = live["metadata"][name]
        fill(at.resource.key, made)
        check_change(at.resource, live, made)
        if owners is None:
            owners = owners_after_update(at.resource, live, self._owners(live), made, manager)
        made["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        if dry:
            return made
        self._store.owners[live["metadata"]["uid"]] = owners
        return self._store.replace(at.resource.key, live, made)

    def _check_version(self, at: Target, live: Json, made: Json) -> None:
        requested = made.get("metadata", {}).get("resourceVersion")
        if requested and requested != live["metadata"]["resourceVersion"]:
            raise stale(at.resource.key, at.name)

    def _patch(
        self, at: Target, body: Any, content_type: str, query: dict[str, str], manager: str, dry: bool
    ) -> Written:
        live = self._store.find(at.resource.key, at.namespace, at.name)
        if content_type == APPLY:
            return self._apply(at, live, body, query, manager, dry)
        if live is None:
            raise not_found(at.resource.key, at.name)
        if content_type not in ("application/merge-patch+json", "application/strategic-merge-patch+json"):
            raise Refusal(415, "UnsupportedMediaType", f"the patch format {content_type} is not supported")
        made = merge_patch(live, body)  # the strategic patches of cordon, taint and drain merge no list
        self._check_version(at, live, made)
        return Written(obj=self._update(at, live, made, manager, dry), created=False)

    def _owners(self, live: Json | None) -> Managers:
        owners: Managers = self._store.owners.get(live["metadata"]["uid"], {}) if live else {}
        return owners

    def _apply(
        self, at: Target, live: Json | None, config: Any, query: dict[str, str], manager: str, dry: bool
    ) -> Written:
        if not isinstance(config, dict):
            raise bad_request("the applied configuration is not an object")
        if live is not None and config.get("metadata", {}).get("uid") not in (None, live["metadata"]["uid"]):
            raise stale(at.resource.key, at.name)
        force = query.get("force") == "true"
        made, owners = apply(at.resource, live, self._owners(live), config, manager, force=force)
        if live is None:
            made = self._store.prepare(at.namespace, {k: v for k, v in made.items() if k != "status"})
            return Written(obj=self._store_new(at, made, owners, dry), created=True)
        if "status" in live:
            made["status"] = live["status"]
        return Written(obj=self._update(at, live, made, manager, dry, owners), created=False)
