"""Label and field selectors of queries."""

import re
from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json


def field_of(obj: Json, path: str) -> str:
    """Return the value at a path such as `status.podIP`; "" if it is missing."""
    at: object = obj
    for part in path.split("."):
        at = at.get(part, "") if isinstance(at, dict) else ""
    return str(at)


def object_filter(label_text: str, field_text: str) -> Callable[[Json], bool]:
    """Return the filter of a list or watch request; labels are compared only, as in `app=bench,tier=a`."""
    labels = [re.split("==?", term) for term in label_text.split(",") if term]
    fields = [re.split("(!?)==?", term) for term in field_text.split(",") if term]

    def holds(obj: Json) -> bool:
        own = obj["metadata"].get("labels") or {}
        return all(own.get(name) == value for name, value in labels) and all(
            (field_of(obj, path) == value) != bool(unequal) for path, unequal, value in fields
        )

    return holds
