"""Server-side apply with --force-conflicts: removes the fields that a manager applied before and no longer applies.

A list is one field. Not covered: conflicts, and fields that several managers applied.
"""

from typing import Any

from tests.support.kubernetes.api.answers import Json, deep_copy

Path = tuple[str, ...]


def _paths(value: Any, at: Path = ()) -> dict[Path, Any]:
    """Return the path of every value but filled maps."""
    if not isinstance(value, dict) or not value:
        return {at: value} if at else {}
    return {path: leaf for name, inner in value.items() for path, leaf in _paths(inner, (*at, name)).items()}


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


def _remove(value: Json, path: Path) -> None:
    """Remove the field at `path`, and the maps that it leaves empty."""
    name, rest = path[0], path[1:]
    if rest and isinstance(value.get(name), dict):
        _remove(value[name], rest)
    if not rest or value.get(name) == {}:
        value.pop(name, None)


def apply(live: Json | None, before: set[Path], config: Json) -> tuple[Json, set[Path]]:
    """Return the object after a manager applies `config`, and the paths in it; `before` are those of its last apply."""
    identity = ("apiVersion", "kind", "status")
    wanted = set(_paths({name: value for name, value in config.items() if name not in identity}))
    if live is None:
        return deep_copy(config), wanted
    made = merge_patch(live, config)
    for path in before - wanted:
        _remove(made, path)
    return made, wanted
