"""Label and field selectors of queries and specs."""

import re
from collections.abc import Callable

from tests.support.kubernetes.api.answers import Json, bad_request

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^(]*\))", text) if term.strip()]


def labels_match(text: str, labels: dict[str, str]) -> bool:
    """Return whether `labels` satisfy a selector such as `app=bench,tier in (a,b),!old`."""
    for term in _terms(text):
        if match := _SET.match(term):
            key, how, values = match.groups()
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


def selector_matches(selector: Json | None, labels: dict[str, str]) -> bool:
    """Return whether `labels` satisfy a spec's selector (matchLabels, matchExpressions)."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(expression_matches(rule, labels) for rule in selector.get("matchExpressions", []))


def expression_matches(rule: Json, labels: dict[str, str]) -> bool:
    """Evaluate one matchExpression of a label selector or a node affinity."""
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
