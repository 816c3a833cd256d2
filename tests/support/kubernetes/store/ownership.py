"""Fields of an object as paths, which managers own."""

import json
from typing import Any

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.schema import child, items, list_keys

Path = tuple[str, ...]
"""Steps in the FieldsV1 form: `f:spec`, `k:{"name":"main"}`, `v:"x"`."""

_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def key_of(item: Json, keys: list[str]) -> str:
    """Return the step of an item in a keyed list; a port without protocol is a TCP port."""
    values = {key: item.get(key, "TCP" if key == "protocol" else None) for key in keys}
    return "k:" + _compact({key: value for key, value in values.items() if value is not None})


def paths(value: Any, schema: Json, at: Path = ()) -> dict[Path, Any]:
    """Return every path below `value` with its value; items of keyed lists are paths too."""
    if isinstance(value, dict) and value and schema.get("x-kubernetes-map-type") != "atomic":
        values: dict[Path, Any] = {}
        for name, inner in value.items():
            values |= paths(inner, child(schema, name) or {}, (*at, f"f:{name}"))
        return values
    if isinstance(value, list) and value:
        if keys := list_keys(schema):
            values = {}
            for item in value:
                step = (*at, key_of(item, keys))
                values[step] = None
                values |= paths(item, items(schema), step)
            return values
        if schema.get("x-kubernetes-list-type") == "set":
            return {(*at, f"v:{_compact(item)}"): item for item in value}
    return {at: value}


def owned(obj: Json, schema: Json) -> dict[Path, Any]:
    """Return the paths of an object that can be owned: all but its identity and its status."""
    metadata = {name: value for name, value in obj.get("metadata", {}).items() if name in _METADATA}
    rest = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    if metadata:
        rest["metadata"] = metadata
    return paths(rest, schema) if rest else {}


def format_path(path: Path) -> str:
    """Format a path for a conflict's message: `.spec.containers[name="main"].image`."""
    text = ""
    for step in path:
        kind, _, rest = step.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{name}={_compact(value)}" for name, value in json.loads(rest).items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def remove(value: Any, path: Path, schema: Json) -> None:
    """Remove only the field at `path` from `value`."""
    step, rest = path[0], path[1:]
    kind, _, name = step.partition(":")
    if kind == "f" and isinstance(value, dict) and name in value:
        if not rest:
            del value[name]
            return
        remove(value[name], rest, child(schema, name) or {})
        if value[name] in ({}, []):
            del value[name]
    elif kind == "k" and isinstance(value, list):
        keys = list_keys(schema)
        for item in [item for item in value if key_of(item, keys) == step]:
            if not rest:
                value.remove(item)
            else:
                remove(item, rest, items(schema))
    elif kind == "v" and isinstance(value, list):
        value[:] = [item for item in value if _compact(item) != name]
