"""Patches other than apply: strategic merge, JSON merge (RFC 7386) and JSON patch (RFC 6902)."""

from typing import Any

from tests.support.kubernetes.api.answers import Json, Refusal, deep_copy
from tests.support.kubernetes.store.schema import child, items

_DIRECTIVES = ("$patch", "$retainKeys")


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


def strategic(live: Json, patch: Json, schema: Json) -> Json:
    """Apply a strategic merge patch; lists merge by the schema's keys."""
    if patch.get("$patch") == "replace":
        return {k: deep_copy(v) for k, v in patch.items() if k not in _DIRECTIVES}
    made = deep_copy(live)
    if "$retainKeys" in patch:
        made = {k: v for k, v in made.items() if k in patch["$retainKeys"]}
    for name, value in patch.items():
        if name in _DIRECTIVES or name.startswith("$setElementOrder/"):
            continue
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            made[field] = [v for v in made.get(field, []) if v not in value]
            continue
        below = child(schema, name) or {}
        if value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            made.pop(name, None)
        elif isinstance(value, dict):
            old = made.get(name)
            made[name] = strategic(old if isinstance(old, dict) else {}, value, below)
        elif isinstance(value, list) and "merge" in below.get("x-kubernetes-patch-strategy", ""):
            made[name] = _merge_lists(made.get(name) or [], value, below)
        else:
            made[name] = deep_copy(value)
    for name, order in patch.items():
        if name.startswith("$setElementOrder/"):
            _reorder(made, name.partition("/")[2], order, schema)
    return made


def _merge_lists(live: list[Any], patch: list[Any], schema: Json) -> list[Any]:
    key = schema.get("x-kubernetes-patch-merge-key")
    if not key:
        return live + [value for value in patch if value not in live]
    if any(item.get("$patch") == "replace" for item in patch):
        return [deep_copy(item) for item in patch if "$patch" not in item]
    made = deep_copy(live)
    for item in patch:
        at = next((i for i, old in enumerate(made) if old.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            made = [old for old in made if old.get(key) != item.get(key)]
        elif at is None:
            made.append(strategic({}, item, items(schema)))
        else:
            made[at] = strategic(made[at], item, items(schema))
    return made


def _reorder(made: Json, field: str, order: list[Any], schema: Json) -> None:
    """Sort a list in the patch's order; elements that the patch does not name come last, in their old order."""
    if field not in made:
        return
    key = (child(schema, field) or {}).get("x-kubernetes-patch-merge-key")
    names = [item.get(key) if isinstance(item, dict) else item for item in order]

    def position(item: Any) -> int:
        name = item.get(key) if isinstance(item, dict) else item
        return names.index(name) if name in names else len(names)

    made[field] = sorted(made[field], key=position)


def json_patch(live: Json, operations: list[Json]) -> Json:
    """Apply a JSON patch (RFC 6902), without `copy` and `move`. Raises Refusal (422) if a test or a path fails."""
    made = deep_copy(live)
    for step in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        at: Any = made
        try:
            for part in way:
                at = at[int(part)] if isinstance(at, list) else at[part]
            _apply_operation(at, last, step)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {step}"
            raise Refusal(422, "Invalid", message) from error
    return made


def _apply_operation(at: Any, last: str, step: Json) -> None:
    index: Any = last
    if isinstance(at, list):
        index = len(at) if last == "-" else int(last)
    match step["op"]:
        case "add" if isinstance(at, list):
            at.insert(index, step["value"])
        case "add":
            at[index] = step["value"]
        case "replace":
            at[index]  # raises if it does not exist
            at[index] = step["value"]
        case "remove":
            del at[index]
        case "test":
            if at[index] != step["value"]:
                raise ValueError(step["path"])
        case _:
            raise ValueError(step["op"])
