"""Schemas of Kubernetes 1.34, from the package kubernetes-validate: types of fields, and how they merge."""

import json
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.kubernetes.api.answers import Json, bad_request
from tests.support.kubernetes.controllers.quantities import PATTERN
from tests.support.kubernetes.store.resources import Resource

_RELEASE = "v1.34.0-local-strict"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


@cache
def _definitions() -> Json:
    package = find_spec("kubernetes_validate")  # located without importing it: only its data is needed
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("kubernetes-json-schema") / _RELEASE / "_definitions.json"
    return json.loads(file.read_text())["$defs"]  # type: ignore[no-any-return]


def resolved(schema: Json) -> Json:
    """Follow a `$ref`; keep the keys next to it (merge keys)."""
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    return {**_definitions()[name], **{k: v for k, v in schema.items() if k != "$ref"}, "name": name}


def schema_of(resource: Resource) -> Json:
    """Return the schema of a kind; an empty one, which allows everything, if the package has none."""
    group = resource.group.split(".")[0] or "core"
    name = f"io.k8s.api.{group}.{resource.version}.{resource.kind}"
    return {**_definitions()[name], "name": name} if name in _definitions() else {}


def child(schema: Json, field: str) -> Json | None:
    """Return the schema of a field; None if it is not declared, an empty one if it may hold any value."""
    if field in schema.get("properties", {}):
        return resolved(schema["properties"][field])
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return resolved(more)
    return {} if more is not False and "properties" not in schema else None


def items(schema: Json) -> Json:
    return resolved(schema.get("items", {}))


def list_keys(schema: Json) -> list[str]:
    """Return the keys that identify the items of a list; empty for lists that are replaced as a whole."""
    return list(schema.get("x-kubernetes-list-map-keys", [])) if schema.get("x-kubernetes-list-type") == "map" else []


def _types(schema: Json) -> set[str]:
    kind = schema.get("type", [])
    return {kind} if isinstance(kind, str) else set(kind)


_JSON_NAMES = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}
_FITS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}


def _go_type(schema: Json) -> str:
    types = _types(schema)
    if "integer" in types:
        return str(schema.get("format", "int32"))
    if "boolean" in types:
        return "bool"
    if "array" in types:
        return f"[]{_go_type(items(schema))}"
    if "properties" in schema:
        return "v1." + str(schema.get("name", "")).rpartition(".")[2]
    return "map[string]string" if "object" in types else "string"


def _check_type(schema: Json, value: Any, owner: str, path: str) -> None:
    if schema.get("name") == _QUANTITY:
        if isinstance(value, dict | list | bool) or not PATTERN.match(str(value)):
            expression = "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            raise ValueError(f"quantities must match the regular expression {expression}")
        return
    types = _types(schema) - {"null"}
    if not types or value is None:
        return
    fitting = tuple(python_type for kind in types for python_type in _FITS[kind])
    if not isinstance(value, fitting) or (isinstance(value, bool) and bool not in fitting):
        go_field = f"{owner}.{path}" if path else owner
        got = _JSON_NAMES[type(value)]
        raise ValueError(f"json: cannot unmarshal {got} into Go struct field {go_field} of type {_go_type(schema)}")


def _walk(schema: Json, value: Any, owner: str, fields: str, path: str) -> Iterator[str]:
    """Yield the unknown fields below `value`. Raises ValueError at the first value of a wrong type."""
    _check_type(schema, value, owner, fields)
    if isinstance(value, dict) and schema.get("name") != _QUANTITY:
        struct = str(schema.get("name", owner)).rpartition(".")[2] if "properties" in schema else owner
        for field, inner in value.items():
            below = child(schema, field)
            where = f"{path}.{field}" if path else field
            if below is None:
                yield where
            else:
                yield from _walk(below, inner, struct, f"{fields}.{field}" if fields else field, where)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _walk(items(schema), inner, owner, fields, f"{path}[{index}]")


def unknown_fields(resource: Resource, obj: Json) -> list[str]:
    """Return the paths of undeclared fields. Raises Refusal (400) with the API server's message for a wrong type."""
    try:
        return list(_walk(schema_of(resource), obj, resource.kind, "", ""))
    except ValueError as error:
        raise bad_request(cannot_handle(resource, str(error))) from error


def cannot_handle(resource: Resource, reason: str) -> str:
    return f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {reason}'


def check_strict(resource: Resource, obj: Json) -> None:
    """Check for undeclared fields, as with `fieldValidation=Strict`. Raises Refusal (400)."""
    unknown = unknown_fields(resource, obj)
    if unknown:
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise bad_request(cannot_handle(resource, f"strict decoding error: {listed}"))
