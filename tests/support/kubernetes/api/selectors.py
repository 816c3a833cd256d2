"""Label and field selectors of queries and specs."""

import re
from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def labels_match(text: str, labels: dict[str, str]) -> bool:
    """Return whether `labels` satisfy a selector such as `app=bench,tier=a`; no other operator is supported."""
    pairs = [term.partition("=") for term in _terms(text)]
    return all(labels.get(key) == value.removeprefix("=") for key, _, value in pairs)


def field_of(obj: Json, path: str) -> str:
    """Return the value at a path such as `status.podIP`; "" if it is missing."""
    at: object = obj
    for part in path.split("."):
        at = at.get(part, "") if isinstance(at, dict) else ""
    return str(at)


def fields_match(text: str, obj: Json) -> bool:
    for term in _terms(text):
        path, unequal, value = re.match(r"([^=!]+)(!?)==?(.*)", term).groups()  # type: ignore[union-attr]
        if (field_of(obj, path) == value) == bool(unequal):
            return False
    return True


def object_filter(label_text: str, field_text: str) -> Callable[[Json], bool]:
    """Return the filter of a list or watch request."""

    def holds(obj: Json) -> bool:
        return labels_match(label_text, obj["metadata"].get("labels") or {}) and fields_match(field_text, obj)

    return holds
