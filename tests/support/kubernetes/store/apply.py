"""Server-side apply: who owns what, conflicts, and fields that nobody applies any more."""

from typing import Any

from tests.support.kubernetes.api.answers import Json, Refusal, copied
from tests.support.kubernetes.store.ownership import Path, from_fields, key_of, owned, remove, shown, to_fields
from tests.support.kubernetes.store.resources import Resource
from tests.support.kubernetes.store.schema import child, items, list_keys, schema_of, unknown_fields
from tests.support.kubernetes.store.store import now

_Managers = dict[tuple[str, str], set[Path]]
"""(manager, operation) to the paths it owns."""


def check_declared(resource: Resource, obj: Json) -> None:
    """Raises Refusal (500, as the real one does) at an undeclared field, naming the shallowest alone."""
    unknown = unknown_fields(resource, obj)
    if unknown:
        metadata = obj.get("metadata", {})
        where = f"{metadata['namespace']}/{metadata['name']}" if "namespace" in metadata else f"/{metadata['name']}"
        api = f"{resource.group}/{resource.version}, Kind={resource.kind}"
        field = min(unknown, key=lambda path: path.count("."))
        message = f"failed to create typed patch object ({where}; {api}): .{field}: field not declared in schema"
        raise Refusal(500, "", message)


def managers_of(obj: Json) -> _Managers:
    found: _Managers = {}
    for entry in obj["metadata"].get("managedFields", []):
        found[entry["manager"], entry["operation"]] = from_fields(entry.get("fieldsV1", {}))
    return found


def _record(obj: Json, managers: _Managers, resource: Resource, before: Json | None) -> None:
    """Write the managers back; an entry whose fields did not change keeps its time."""
    old = {(e["manager"], e["operation"]): e for e in (before or {}).get("metadata", {}).get("managedFields", [])}
    entries = []
    for (manager, operation), found in managers.items():
        if not found:
            continue
        fields = to_fields(found)
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
    """`config` over `live`: maps by field, keyed lists by key, everything else replaced."""
    atomic = schema.get("x-kubernetes-map-type") == "atomic"
    if isinstance(live, dict) and isinstance(config, dict) and not atomic:
        made = dict(live)
        for name, value in config.items():
            made[name] = _merge(live[name], value, child(schema, name) or {}) if name in live else copied(value)
        return made
    if isinstance(live, list) and isinstance(config, list):
        if keys := list_keys(schema):
            made_list = list(live)
            at = {key_of(item, keys): index for index, item in enumerate(live)}
            for item in config:
                index = at.get(key_of(item, keys))
                if index is None:
                    made_list.append(copied(item))
                else:
                    made_list[index] = _merge(live[index], item, items(schema))
            return made_list
        if schema.get("x-kubernetes-list-type") == "set":
            return live + [value for value in config if value not in live]
    return copied(config)


def apply(resource: Resource, live: Json | None, config: Json, manager: str, *, force: bool) -> Json:
    """The object after `manager` applied `config`. Raises Refusal (409) on conflicts, unless forced."""
    check_declared(resource, config)
    schema = schema_of(resource)
    wanted = owned(config, schema)
    if live is None:
        made = copied(config)
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
        raise _conflict([(_called(key, resource), path) for key, path in conflicts])
    for key in managers:
        managers[key] = managers[key] - {path for loser, path in conflicts if loser == key}
    made = _merge(copied(live), {k: v for k, v in config.items() if k != "metadata"}, schema)
    made["metadata"] = _merge(made["metadata"], config.get("metadata", {}), child(schema, "metadata") or {})
    others: set[Path] = set().union(*managers.values())
    for path in sorted(mine - wanted.keys() - others, key=len, reverse=True):
        remove(made, path, schema)
    managers[manager, "Apply"] = set(wanted)
    _record(made, managers, resource, live)
    return made


def _called(manager: tuple[str, str], resource: Resource) -> str:
    """A manager as conflicts name it: an updater with its API version."""
    name, operation = manager
    return f'"{name}"' if operation == "Apply" else f'"{name}" using {resource.api_version}'


def _conflict(conflicts: list[tuple[str, Path]]) -> Refusal:
    if len(conflicts) > 1:
        by_manager: dict[str, list[str]] = {}
        for name, path in conflicts:
            by_manager.setdefault(name, []).append(shown(path))
        text = "\n".join(f"conflicts with {name}:\n- " + "\n- ".join(where) for name, where in by_manager.items())
        message = f"Apply failed with {len(conflicts)} conflicts: {text}"
    else:
        ((name, path),) = conflicts
        message = f"Apply failed with 1 conflict: conflict with {name}: {shown(path)}"
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {name}", "field": shown(path)}
        for name, path in conflicts
    ]
    return Refusal(409, "Conflict", message, {"causes": causes})


def track_update(resource: Resource, before: Json | None, made: Json, manager: str) -> None:
    """After a create, an update or a patch: `manager` owns what it changed, and nobody owns what is gone."""
    schema = schema_of(resource)
    old = owned(before, schema) if before else {}
    new = owned(made, schema)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    managers = managers_of(made)
    for key in managers:
        managers[key] = {path for path in managers[key] if path in new and path not in changed}
    managers[manager, "Update"] = managers.get((manager, "Update"), set()) | changed
    _record(made, managers, resource, before)
