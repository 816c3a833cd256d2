"""Table responses for `kubectl get`: only names and ages, because no test reads other columns."""

from datetime import UTC, datetime

from tests.support.kubernetes.api.answers import Json

_COLUMNS = [
    {"name": "Name", "type": "string", "format": "name", "priority": 0},
    {"name": "Age", "type": "string", "format": "", "priority": 0},
]


def _row(obj: Json, whole: bool) -> Json:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
    age = datetime.now(UTC) - datetime.fromisoformat(obj["metadata"]["creationTimestamp"])
    return {"cells": [obj["metadata"]["name"], f"{age.total_seconds():.0f}s"], "object": obj if whole else partial}


def table(objects: list[Json], version: str, *, whole: bool, columns: bool = True) -> Json:
    """Make a Table of `objects`; with `whole` each row contains its object (`includeObject=Object`)."""
    made: Json = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version}}
    if columns:
        made["columnDefinitions"] = _COLUMNS
    return {**made, "rows": [_row(obj, whole) for obj in objects]}
