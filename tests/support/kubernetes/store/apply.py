"""Server-side apply: field owners, conflicts, and removal of fields that are no longer applied.

The owners are in `Store.owners`, not in the objects' `managedFields`, which no client here reads.
"""

from typing import Any

from tests.support.kubernetes.api.answers import Json, Refusal, deep_copy
from tests.support.kubernetes.store.ownership import Path, format_path, key_of, owned, remove
from tests.support.kubernetes.store.resources import Resource
from tests.support.kubernetes.store.schema import child, items, list_keys, schema_of

Managers = dict[tuple[str, str], set[Path]]
"""(manager, operation) to the paths that it owns."""


def _merge(live: Any, config: Any, schema: Json) -> Any:
    """Merge `config` into `live`: maps by field, keyed lists by key; replace other values."""
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if isinstance(live, dict) and isinstance(config, dict) and not atomic:
        made = dict(live)
        for name, value in config.items():
            made[name] = _merge(live[name], value, child(schema, name) or {}) if name in live else deep_copy(value)
        return made
    if isinstance(live, list) and isinstance(config, list):
        if keys := list_keys(schema):
            made_list = list(live)
            at = {key_of(item, keys): index for index, item in enumerate(live)}
            for item in config:
                index = at.get(key_of(item, keys))
                if index is None:
                    made_list.append(deep_copy(item))
                else:
                    made_list[index] = _merge(live[index], item, items(schema))
            return made_list
        if schema.get("x-kubernetes-list-type") == "set":
            return live + [value for value in config if value not in live]
    return deep_copy(config)


def apply(
    resource: Resource, live: Json | None, owners: Managers, config: Json, manager: str, *, force: bool
) -> tuple[Json, Managers]:
    """Return the object and its owners after `manager` applies `config`. Raises Refusal (409) on conflicts."""
    schema = schema_of(resource)
    wanted = owned(config, schema)
    key = (manager, "Apply")
    if live is None:
        return deep_copy(config), {key: set(wanted)}
    others = {name: paths for name, paths in owners.items() if name != key}
    present = owned(live, schema)
    conflicts = [
        (name, path)
        for name, theirs in others.items()
        for path in sorted(theirs & wanted.keys())
        if not path[-1].startswith("k:") and present.get(path) != wanted[path]
    ]
    if conflicts and not force:
        raise _conflict([(_manager_text(name, resource), path) for name, path in conflicts])
    lost = set(conflicts)
    others = {name: {path for path in paths if (name, path) not in lost} for name, paths in others.items()}
    made = _merge(deep_copy(live), {k: v for k, v in config.items() if k != "metadata"}, schema)
    made["metadata"] = _merge(made["metadata"], config.get("metadata", {}), child(schema, "metadata") or {})
    theirs = set[Path]().union(*others.values())
    for path in sorted(owners.get(key, set()) - wanted.keys() - theirs, key=len, reverse=True):
        remove(made, path, schema)
    return made, {**others, key: set(wanted)}


def _manager_text(manager: tuple[str, str], resource: Resource) -> str:
    """Format a manager for a conflict's message: one that updated has its API version."""
    name, operation = manager
    return f'"{name}"' if operation == "Apply" else f'"{name}" using {resource.api_version}'


def _conflict(conflicts: list[tuple[str, Path]]) -> Refusal:
    if len(conflicts) > 1:
        by_manager: dict[str, list[str]] = {}
        for name, path in conflicts:
            by_manager.setdefault(name, []).append(format_path(path))
        text = "\n".join(f"conflicts with {name}:\n- " + "\n- ".join(where) for name, where in by_manager.items())
        message = f"Apply failed with {len(conflicts)} conflicts: {text}"
    else:
        ((name, path),) = conflicts
        message = f"Apply failed with 1 conflict: conflict with {name}: {format_path(path)}"
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {name}", "field": format_path(path)}
        for name, path in conflicts
    ]
    return Refusal(409, "Conflict", message, {"causes": causes})


def owners_after_update(resource: Resource, before: Json | None, owners: Managers, made: Json, by: str) -> Managers:
    """Return the owners after a create, update or patch: `by` owns the changed fields; removed fields have no owner."""
    schema = schema_of(resource)
    old = owned(before, schema) if before else {}
    new = owned(made, schema)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    kept = {name: {path for path in paths if path in new and path not in changed} for name, paths in owners.items()}
    return {**kept, (by, "Update"): kept.get((by, "Update"), set()) | changed}
