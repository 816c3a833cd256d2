"""Dataclasses from JSON: unknown, missing and mistyped fields are errors that name their path in the document.

Supported types: scalars, `X | None`, lists, dictionaries with text keys, enums and nested dataclasses. Untrusted input
is bounded: number of values, nesting depth, and size of integers.
"""

import dataclasses
import difflib
import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from bench.records.validation import TrialError

T = TypeVar("T")
MAX_VALUES = 2_000_000  # four times a result of 100,000 steps; a value takes up to 200 bytes of memory
MAX_DEPTH = 16
MAX_INTEGER = 2**53  # floats represent larger integers inexactly


class SchemaError(TrialError):
    """Document with a missing, unknown, mistyped or impossible field; the message names the field."""


def parse(content: bytes | str, *, max_values: int = MAX_VALUES) -> Any:
    """Parse untrusted JSON. Raises ValueError; a SchemaError (a ValueError) has the reason."""
    content = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if content.count(b",") + content.count(b"[") + content.count(b"{") > max_values:
        raise SchemaError(f"it has more than {max_values:,} values")
    try:
        return json.loads(content, parse_constant=_reject_constant, object_pairs_hook=object_from_pairs)
    except RecursionError as error:
        raise SchemaError("not usable JSON: its values are nested too deep") from error


def parse_object(content: bytes | str) -> dict[str, Any]:
    """Parse an untrusted JSON object. Raises like `parse`, also for another type."""
    document = parse(content)
    if not isinstance(document, dict):
        raise SchemaError(f"expected an object, found {type_name(document)}")
    return document


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def object_from_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a parsed object. Raises SchemaError for a key that appears twice."""
    result = dict(pairs)
    if len(result) != len(pairs):  # two readers could use different values
        (name, _), *_ = (pair for number, pair in enumerate(pairs) if pair[0] in dict(pairs[:number]))
        raise SchemaError(f"the key {name[:80]!r} appears twice in one object")
    return result


def to_json(value: object) -> Any:
    """Convert a record to plain JSON values. Non-finite floats become null, since JSON lacks them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_json(cls: type[T], document: object, where: str = "") -> T:
    """Build dataclass `cls` from parsed JSON; `where` prefixes the path in messages. Raises SchemaError."""
    prefix = f"{where}: " if where else ""
    if not isinstance(document, Mapping):
        raise SchemaError(f"{prefix}expected an object, found {type_name(document)}")
    fields = _fields_of(cast(Any, cls))
    if not document.keys() <= fields.keys():
        unknown = min(set(document) - fields.keys())
        near = difflib.get_close_matches(unknown, fields, 1)
        hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(fields)}"
        raise SchemaError(f"{prefix}{unknown}: unknown field; {hint}")
    values = {}
    for name, (hint, is_required) in fields.items():
        if name in document:
            values[name] = _read(hint, document[name], f"{prefix}{name}")
        elif is_required:
            raise SchemaError(f"{prefix}{name}: missing")
    try:
        return cls(**values)
    except TrialError as error:  # its __post_init__ raised it
        raise SchemaError.from_error(error, prefix=prefix) from error


def type_name(value: object) -> str:
    """Describe the type of a parsed value."""
    names = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true/false", "NoneType": "nothing"}
    names |= {"dict": "an object", "list": "a list", "tuple": "a list"}
    return names.get(type(value).__name__, type(value).__name__)


_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@functools.cache
def _fields_of(cls: type) -> dict[str, tuple[Any, bool]]:
    """Map field names to (annotation, True if required)."""
    hints = typing.get_type_hints(cls)  # resolving them took two thirds of the time to read a thousand results
    missing = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(cls)
    }


def _read(hint: Any, value: Any, path: str) -> Any:
    """Return a value as its annotation says. Raises SchemaError."""
    if hint in _SCALARS:
        return _read_scalar(hint, value, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _read(inner, value, path)
    if origin in (list, tuple):
        return origin(_read_items(arguments[0], value, path))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise SchemaError(f"{path}: expected an object, found {type_name(value)}")
        return {key: _read(arguments[1], item, f"{path}.{key}") for key, item in value.items()}
    if hint is Any:
        return checked_value(value, path)
    if not issubclass(hint, Enum):
        return from_json(hint, value, path)
    try:
        return hint(value)
    except ValueError as error:
        allowed = ", ".join(str(member.value) for member in hint)
        raise SchemaError(f"{path}: expected one of {allowed}, found {value!r}") from error


def checked_value(value: Any, path: str, depth: int = 0) -> Any:
    """Return a value of any type unchanged. Raises SchemaError if it is nested too deep or has too large a number."""
    if depth > MAX_DEPTH:
        raise SchemaError(f"{path[:80]}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            checked_value(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for item in value:
            checked_value(item, path, depth + 1)
    elif type(value) is int and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise SchemaError(f"{path}: expected at most {MAX_INTEGER}, found a number of {len(str(abs(value)))} digits")
    return value


def _read_items(item: Any, value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise SchemaError(f"{path}: expected a list, found {type_name(value)}")
    kinds = set(map(type, value))  # reading hundreds of step times separately took most of the time
    is_union = typing.get_origin(item) in (types.UnionType, typing.Union)
    plain = {*_SCALARS, type(None)} & {*(typing.get_args(item) if is_union else [item])}
    if kinds <= plain and (int not in kinds or (kinds == {int} and max(map(abs, value)) <= MAX_INTEGER)):
        return value
    return [_read(item, entry, f"{path}[{index}]") for index, entry in enumerate(value)]


def _read_scalar(hint: type, value: Any, path: str) -> Any:
    if type(value) is hint is not int:
        return value
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise SchemaError(f"{path}: expected a number, found one of {len(str(value))} digits") from error
    if type(value) is not hint:
        raise SchemaError(f"{path}: expected {_SCALARS[hint]}, found {type_name(value)}")
    return checked_value(value, path)
