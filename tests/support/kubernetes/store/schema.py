"""Schemas of Kubernetes 1.34, from the package kubernetes-validate: types of fields, and how they merge."""

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.resources import Resource

_RELEASE = "v1.34.0-local-strict"


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
