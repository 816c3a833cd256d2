"""Label and field selectors as the API takes them in a query."""

import re
from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json, bad_request

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def labels_match(text: str, labels: dict[str, str]) -> bool:
    """Whether `labels` satisfy a selector such as `app=bench,tier in (a,b),!old`."""
    for term in _terms(text):
        if found := _SET.match(term):
            key, how, values = found.groups()
            inside = labels.get(key) in [value.strip() for value in values.split(",")]
            holds = inside if how == "in" else not inside
        elif "!=" in term:
            key, value = term.split("!=")
            holds = labels.get(key.strip()) != value.strip()
        elif "=" in term:
            key, value = re.split("==?", term)
            holds = labels.get(key.strip()) == value.strip()
        elif term.startswith("!"):
            holds = term[1:] not in labels
        else:
            holds = term in labels
        if not holds:
            return False
    return True


def label_selector(selector: Json | None, labels: dict[str, str]) -> bool:
    """The same for the structured form of a spec (matchLabels, matchExpressions)."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(expression(rule, labels) for rule in selector.get("matchExpressions", []))


def expression(rule: Json, labels: dict[str, str]) -> bool:
    """One matchExpression, of a label selector or a node affinity."""
    value, values = labels.get(rule["key"]), rule.get("values", [])
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise bad_request(f"{rule['operator']!r} is not a valid label selector operator")


def field_of(obj: Json, path: str) -> str:
    """The value at a path such as `status.podIP`; "" where there is none."""
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


def wanted(label_text: str, field_text: str) -> Callable[[Json], bool]:
    """The filter of one list or watch."""

    def holds(obj: Json) -> bool:
        return labels_match(label_text, obj["metadata"].get("labels") or {}) and fields_match(field_text, obj)

    return holds
