"""Server-side apply: field owners, conflicts, and removal of fields that are no longer applied.

A list is one field, which its last manager owns as a whole. The owners are in `Store.owners`, not in the objects'
`managedFields`, which no client here reads.
"""

from typing import Any

from tests.support.kubernetes.api.answers import Json, Refusal, deep_copy

Path = tuple[str, ...]
Managers = dict[tuple[str, str], set[Path]]
"""(manager, operation) to the paths that it owns."""

_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


def _paths(value: Any, at: Path = ()) -> dict[Path, Any]:
    """Return the path of every value but filled maps."""
    if not isinstance(value, dict) or not value:
        return {at: value} if at else {}
    return {path: leaf for name, inner in value.items() for path, leaf in _paths(inner, (*at, name)).items()}


def _owned(obj: Json) -> dict[Path, Any]:
    """Return the paths of an object that can be owned: all but its identity and its status."""
    rest = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    metadata = {name: value for name, value in obj.get("metadata", {}).items() if name in _METADATA}
    return _paths({**rest, "metadata": metadata} if metadata else rest)


def _merge(live: Any, config: Any) -> Any:
    if not isinstance(live, dict) or not isinstance(config, dict):
        return deep_copy(config)
    return {**live, **{name: _merge(live.get(name), value) for name, value in config.items()}}


def _remove(value: Json, path: Path) -> None:
    """Remove the field at `path`, and the maps that it leaves empty."""
    name, rest = path[0], path[1:]
    if rest and isinstance(value.get(name), dict):
        _remove(value[name], rest)
    if not rest or value.get(name) == {}:
        value.pop(name, None)


def apply(live: Json | None, owners: Managers, config: Json, manager: str, *, force: bool) -> tuple[Json, Managers]:
    """Return the object and its owners after `manager` applies `config`. Raises Refusal (409) on conflicts."""
    wanted, key = _owned(config), (manager, "Apply")
    if live is None:
        return deep_copy(config), {key: set(wanted)}
    present = _owned(live)
    changed = {path for path, value in wanted.items() if present.get(path) != value}
    others = {name: paths for name, paths in owners.items() if name != key}
    if not force:
        _check_conflicts(others, changed)
    others = {name: paths - changed for name, paths in others.items()}
    made = _merge(live, config)
    for path in owners.get(key, set()) - wanted.keys() - set[Path]().union(*others.values()):
        _remove(made, path)
    return made, {**others, key: set(wanted)}


def _check_conflicts(others: Managers, changed: set[Path]) -> None:
    conflicts = [
        (name, f".{'.'.join(path)}") for (name, _), paths in others.items() for path in sorted(paths & changed)
    ]
    if conflicts:
        causes = [
            {"reason": "FieldManagerConflict", "message": f'conflict with "{name}"', "field": path}
            for name, path in conflicts
        ]
        number = "1 conflict" if len(conflicts) == 1 else f"{len(conflicts)} conflicts"
        text = "; ".join(f'conflict with "{name}": {path}' for name, path in conflicts)
        raise Refusal(409, "Conflict", f"Apply failed with {number}: {text}", {"causes": causes})


def owners_after_update(before: Json | None, owners: Managers, made: Json, by: str) -> Managers:
    """Return the owners after a create, update or patch: `by` owns the changed fields; removed fields have no owner."""
    old, new = _owned(before or {}), _owned(made)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    kept = {name: paths & new.keys() - changed for name, paths in owners.items()}
    return {**kept, (by, "Update"): kept.get((by, "Update"), set()) | changed}
