"""Strict reading of dataclasses from JSON: unknown, missing and mistyped fields are errors with their place.

Standard library alone, because the records are read on every side of the system. Only the shapes our records use are
understood: scalars, `X | None`, lists, string-keyed dictionaries, enums and nested dataclasses.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, cast

T = TypeVar("T")


class SchemaError(ValueError):
    """A document that does not have the fields it must have; the message names the field."""


def to_json(value: object) -> Any:
    """A record as plain JSON values. Floats that are not finite become null: JSON has no word for them."""
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
    """Build dataclass `cls` from parsed JSON; `where` prefixes the place in messages. Raises SchemaError."""
    place = f"{where}: " if where else ""
    if not isinstance(document, Mapping):
        raise SchemaError(f"{place}expected an object, found {kind(document)}")
    fields = {field.name: field for field in dataclasses.fields(cast(Any, cls))}
    unknown = sorted(set(document) - set(fields))
    if unknown:
        raise SchemaError(f"{place}{unknown[0]}: unknown field; the fields are {', '.join(fields)}")
    hints = _hints(cast(Any, cls))
    values = {}
    for name, field in fields.items():
        if name in document:
            values[name] = _convert(hints[name], document[name], f"{place}{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SchemaError(f"{place}{name}: missing")
    return cls(**values)


def kind(value: object) -> str:
    """What a parsed value is, in words a reader of the file knows."""
    names = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true/false", "NoneType": "nothing"}
    names |= {"dict": "an object", "list": "a list", "tuple": "a list"}
    return names.get(type(value).__name__, type(value).__name__)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    # Resolving annotations took two thirds of the time to read a thousand results.
    return typing.get_type_hints(cls)


_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _convert(hint: Any, value: Any, place: str) -> Any:
    if hint is Any:
        return value
    if hint in _SCALARS:
        return _scalar(hint, value, place)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member(hint, value, place)
    if dataclasses.is_dataclass(hint):
        return from_json(cast(type, hint), value, place)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _convert(inner, value, place)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise SchemaError(f"{place}: expected a list, found {kind(value)}")
        return origin(_convert(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise SchemaError(f"{place}: expected an object, found {kind(value)}")
        return {key: _convert(arguments[1], item, f"{place}.{key}") for key, item in value.items()}
    raise TypeError(f"{place}: no reader for {hint!r}")


def _scalar(hint: type, value: Any, place: str) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise SchemaError(f"{place}: expected {_SCALARS[hint]}, found {kind(value)}")
    return value


def _member(enum: type[Enum], value: Any, place: str) -> Enum:
    try:
        return enum(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in enum)
        raise SchemaError(f"{place}: expected one of {allowed}, found {value!r}") from None
