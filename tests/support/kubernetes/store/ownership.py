"""Which manager owns which field: sets of paths, kept in `metadata.managedFields` in the FieldsV1 form."""

import json
from typing import Any

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.schema import child, items, list_keys

Path = tuple[str, ...]
"""Steps as FieldsV1 writes them: `f:spec`, `k:{"name":"main"}`, `v:"x"`."""

_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def key_of(item: Json, keys: list[str]) -> str:
    """The step of one item of a list with keys; a port without protocol is a TCP port."""
    found = {key: item.get(key, "TCP" if key == "protocol" else None) for key in keys}
    return "k:" + _compact({key: value for key, value in found.items() if value is not None})


def paths(value: Any, schema: Json, at: Path = ()) -> dict[Path, Any]:
    """Every path that owning `value` means, with the value there; items of keyed lists count by themselves too."""
    if isinstance(value, dict) and value and schema.get("x-kubernetes-map-type") != "atomic":
        found: dict[Path, Any] = {}
        for name, inner in value.items():
            found |= paths(inner, child(schema, name) or {}, (*at, f"f:{name}"))
        return found
    if isinstance(value, list) and value:
        if keys := list_keys(schema):
            found = {}
            for item in value:
                step = (*at, key_of(item, keys))
                found[step] = None
                found |= paths(item, items(schema), step)
            return found
        if schema.get("x-kubernetes-list-type") == "set":
            return {(*at, f"v:{_compact(item)}"): item for item in value}
    return {at: value}


def owned(obj: Json, schema: Json) -> dict[Path, Any]:
    """The paths of an object that can be owned: not its identity, not its status."""
    metadata = {name: value for name, value in obj.get("metadata", {}).items() if name in _METADATA}
    rest = {name: value for name, value in obj.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    if metadata:
        rest["metadata"] = metadata
    return paths(rest, schema) if rest else {}


def to_fields(found: set[Path]) -> Json:
    made: Json = {}
    for path in sorted(found):
        at = made
        for step in path:
            at = at.setdefault(step, {})
        if path[-1].startswith("k:"):
            at.setdefault(".", {})
    return made


def from_fields(fields: Json, at: Path = ()) -> set[Path]:
    found: set[Path] = set()
    for step, inner in fields.items():
        if step == ".":
            found.add(at)
        elif inner:
            found |= from_fields(inner, (*at, step))
        else:
            found.add((*at, step))
    return found


def shown(path: Path) -> str:
    """As conflicts name it: `.spec.containers[name="main"].image`."""
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
    """Take the field at `path` out of `value`, and nothing else."""
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
