"""Server-side apply: field owners, conflicts, and removal of fields that are no longer applied."""

from typing import Any

from tests.support.kubernetes.api.answers import Json, Refusal, deep_copy
from tests.support.kubernetes.store.ownership import Path, format_path, from_fields, key_of, owned, remove, to_fields
from tests.support.kubernetes.store.resources import Resource
from tests.support.kubernetes.store.schema import child, items, list_keys, schema_of
from tests.support.kubernetes.store.store import now

_Managers = dict[tuple[str, str], set[Path]]
"""(manager, operation) to the paths that it owns."""


def managers_of(obj: Json) -> _Managers:
    managers: _Managers = {}
    for entry in obj["metadata"].get("managedFields", []):
        managers[entry["manager"], entry["operation"]] = from_fields(entry.get("fieldsV1", {}))
    return managers


def _record(obj: Json, managers: _Managers, resource: Resource, before: Json | None) -> None:
    """Write the managers to `obj`; an entry whose fields did not change keeps its time."""
    old = {(e["manager"], e["operation"]): e for e in (before or {}).get("metadata", {}).get("managedFields", [])}
    entries = []
    for (manager, operation), owned_paths in managers.items():
        if not owned_paths:
            continue
        fields = to_fields(owned_paths)
        kept = old.get((manager, operation))
        entries.append(
            {
                "manager": manager,
                "operation": operation,
                "apiVersion": resource.api_version,
                "time": kept["time"] if kept and kept["fieldsV1"] == fields else now(),
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            }
        )
    obj["metadata"].pop("managedFields", None)
    if entries:
        obj["metadata"]["managedFields"] = entries


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


def apply(resource: Resource, live: Json | None, config: Json, manager: str, *, force: bool) -> Json:
    """Return the object after `manager` applies `config`. Raises Refusal (409) on conflicts, unless forced."""
    schema = schema_of(resource)
    wanted = owned(config, schema)
    if live is None:
        made = deep_copy(config)
        _record(made, {(manager, "Apply"): set(wanted)}, resource, None)
        return made
    managers = managers_of(live)
    mine = managers.pop((manager, "Apply"), set())
    present = owned(live, schema)
    conflicts = [
        ((name, operation), path)
        for (name, operation), theirs in managers.items()
        for path in sorted(theirs & wanted.keys())
        if not path[-1].startswith("k:") and present.get(path) != wanted[path]
    ]
    if conflicts and not force:
        raise _conflict([(_manager_text(key, resource), path) for key, path in conflicts])
    for key in managers:
        managers[key] = managers[key] - {path for loser, path in conflicts if loser == key}
    made = _merge(deep_copy(live), {k: v for k, v in config.items() if k != "metadata"}, schema)
    made["metadata"] = _merge(made["metadata"], config.get("metadata", {}), child(schema, "metadata") or {})
    others: set[Path] = set().union(*managers.values())
    for path in sorted(mine - wanted.keys() - others, key=len, reverse=True):
        remove(made, path, schema)
    managers[manager, "Apply"] = set(wanted)
    _record(made, managers, resource, live)
    return made


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


def track_update(resource: Resource, before: Json | None, made: Json, manager: str) -> None:
    """Record a create, update or patch: `manager` owns the changed fields; removed fields have no owner."""
    schema = schema_of(resource)
    old = owned(before, schema) if before else {}
    new = owned(made, schema)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    managers = managers_of(made)
    for key in managers:
        managers[key] = {path for path in managers[key] if path in new and path not in changed}
    managers[manager, "Update"] = managers.get((manager, "Update"), set()) | changed
    _record(made, managers, resource, before)
