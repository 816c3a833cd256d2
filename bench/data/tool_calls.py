"""Tools of a data line, the assistant's calls of them and their results.

    tools        of a line: [{"type": "function", "function": {"name": ..., "parameters": {...}}}, ...]
    tool_calls   of the assistant's turn: [{"id": ..., "type": "function", "function": {"name": ..., "arguments": ...}}]
    role tool    the result of a call: content, with tool_call_id or in the order of the calls

`tools` and `tool_calls` may be JSON text, as in CSV and Parquet, and so may `arguments`, as OpenAI's API gives them. A
tool or call may also be only its function.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from bench.data.file_types import parse_json
from bench.data.inputs import InputError
from bench.records import schema

Tool = dict[str, Any]
ToolCall = dict[str, Any]
T = TypeVar("T")
MAX_DEPTH = 64  # nesting of tools and arguments; JSON Schemas of real tools have less than 20
TOOL_SHAPE = 'an object with type: function and function: {"name": ..., "parameters": ...}'
CALL_SHAPE = 'an object with type: function and function: {"name": ..., "arguments": ...}'


def read_tools(location: str, value: object) -> tuple[Tool, ...]:
    """Return the tools of a line, from a list or its JSON text. Raises InputError."""
    return tuple(
        {"type": "function", "function": _function(f"{location}: tools[{index}]", tool, TOOL_SHAPE)}
        for index, tool in enumerate(_list(f"{location}: tools", value))
    )


def read_calls(location: str, value: object, tools: tuple[Tool, ...]) -> list[ToolCall]:
    """Return the calls of a turn, each with its arguments as an object, and its id if it has one. Raises InputError.

    If the line has tools, the calls are of these.
    """
    names = {tool["function"]["name"] for tool in tools}
    calls = []
    for index, document in enumerate(_list(f"{location}: tool_calls", value)):
        call_location = f"{location}: tool_calls[{index}]"
        function = _function(call_location, document, CALL_SHAPE)
        if unknown := function.keys() - {"name", "arguments"}:
            raise InputError(f"{call_location}: function: {min(unknown)[:40]!r}: expected only name and arguments")
        if names and function["name"] not in names:
            raise InputError(
                f"{call_location}: function: name: {function['name'][:40]!r} is not one of the line's tools",
                remedy="add the tool, or correct the name",
            )
        arguments = _arguments(f"{call_location}: function: arguments", function.get("arguments"))
        call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
        identifier = _optional_text(call_location, document, "id")
        calls.append(call if identifier is None else {"id": identifier, **call})
    return calls


class CallTracker:
    """The calls of a conversation that have no result yet, in order. Turns are added one after another."""

    def __init__(self) -> None:
        self._waiting: list[ToolCall] = []
        self._location = ""

    def add_calls(self, location: str, calls: list[ToolCall]) -> None:
        """Note the calls of a turn. Raises InputError for ids that are not one for each call."""
        identifiers = [call["id"] for call in calls if "id" in call]
        if identifiers and len(set(identifiers)) < len(calls):
            raise InputError(
                f"{location}: tool_calls: an id is missing or occurs twice", remedy="give each call an id, or none"
            )
        self._waiting, self._location = list(calls), location

    def add_result(self, location: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys that a result has in addition to its text: `name`, and `tool_call_id` if the call has an id.

        Raises InputError for a result without a call, or of another call.
        """
        if not self._waiting:
            raise InputError(
                f"{location}: role tool: no tool call before it waits for a result",
                remedy="add tool_calls to the assistant's turn, or remove the turn",
            )
        identifier = _optional_text(location, document, "tool_call_id")
        name = _optional_text(location, document, "name")
        waiting = [call.get("id") for call in self._waiting]
        is_ordered = identifier is None or not any(waiting)
        if not is_ordered and identifier not in waiting:
            expected = ", ".join(repr(other[:40]) for other in waiting if other is not None)
            raise InputError(
                f"{location}: tool_call_id: {identifier!r:.42} is of no waiting call; expected one of {expected[:200]}",
                remedy="correct the id",
            )
        call = self._waiting.pop(0 if is_ordered else waiting.index(identifier))
        if name is not None and name != call["function"]["name"]:
            raise InputError(
                f"{location}: name: {name[:40]!r}, but the call is of {call['function']['name'][:40]!r}",
                remedy="correct the name or the order of the results",
            )
        result = {"name": call["function"]["name"]}
        return result if "id" not in call else {**result, "tool_call_id": call["id"]}

    def check_answered(self, location: str) -> None:
        """Check before a turn that every call has its result. Raises InputError."""
        if self._waiting:
            names = ", ".join(repr(call["function"]["name"][:40]) for call in self._waiting[:4])
            raise InputError(
                f"{location}: follows {self._location}, whose calls of {names} have no result",
                remedy="add a turn of role tool for each call, or end the conversation with the calls",
            )


def strings(value: object) -> Iterator[str]:
    """Iterate over all texts of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)


def map_strings(change: Callable[[str], str], value: T) -> T:
    """Return a JSON value with every text replaced by `change(text)`, keys included."""
    result: Any = value
    if isinstance(value, str):
        result = change(value)
    elif isinstance(value, Mapping):
        result = {change(key): map_strings(change, item) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        result = type(value)(map_strings(change, item) for item in value)
    return result  # type: ignore[no-any-return]


def _list(location: str, value: object) -> list[Any]:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        value = parse_json(location, value, "write a list or its JSON text")
    if not isinstance(value, list):
        raise InputError(f"{location}: expected a list or its JSON text, found {schema.type_name(value)}")
    _check_value(location, value)
    return [_with_function(document) for document in value]


def _with_function(document: Any) -> Any:
    """Return a tool or call with its function under a key, also where it is only that."""
    if not isinstance(document, dict) or "function" in document or "name" not in document:
        return document
    function = {key: value for key, value in document.items() if key not in ("id", "type")}
    return {**{key: document[key] for key in document.keys() - function.keys()}, "function": function}


def _function(location: str, document: object, shape: str) -> dict[str, Any]:
    """Return the function of a tool or a call, which has a name."""
    function = document.get("function") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(function, dict):
        raise InputError(f"{location}: expected {shape}, found {schema.type_name(document)}")
    if document.get("type", "function") != "function":
        raise InputError(f"{location}: type: expected function, found {document['type']!r:.42}")
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{location}: function: name: expected text, found {schema.type_name(name)}")
    return function


def _arguments(location: str, value: object) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = parse_json(location, value, "write an object or its JSON text")
        _check_value(location, value)
    if not isinstance(value, dict):
        raise InputError(f"{location}: expected an object or its JSON text, found {schema.type_name(value)}")
    return value


def _optional_text(location: str, document: Mapping[str, Any], key: str) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{location}: {key}: expected text, found {schema.type_name(value)}")
    return value or None


def _check_value(location: str, value: object, depth: int = 1) -> None:
    """Check nesting and types, so that every template can write the value as JSON. Raises InputError."""
    if depth > MAX_DEPTH:
        raise InputError(f"{location}: nested deeper than {MAX_DEPTH} levels", remedy="remove the line")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_value(location, item, depth + 1)
    elif not isinstance(value, str | int | float | None) or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"{location}: {value!s:.40} is not a value of JSON", remedy="write null or a text")
