"""Dataclasses from JSON: unknown, missing and mistyped fields are errors that name their place.

Supports what our records use: scalars, `X | None`, lists, dictionaries with text keys, enums and nested dataclasses.
What comes from outside is bounded: how many values a document has, how deep they are nested, how large whole numbers
are.
"""

import contextlib
import dataclasses
import functools
import json
import marshal
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar, cast

T = TypeVar("T")
MOST_VALUES = 2_000_000  # four times what a result of 100,000 steps holds; each takes up to 200 bytes of memory
MOST_NESTED = 16
MOST_INTEGER = 2**53  # beyond it numbers with a fraction cannot hold a whole one exactly


class SchemaError(ValueError):
    """A document that does not have the fields it must have; the message names the field."""


def parse(content: bytes) -> Any:
    """The value of JSON text from outside. Raises ValueError where it is none; SchemaError, which is one, says why."""
    if content.count(b",") + content.count(b"[") + content.count(b"{") > MOST_VALUES:
        raise SchemaError(f"it holds more than {MOST_VALUES:,} values")
    try:
        return json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_table_of_pairs)
    except RecursionError:
        raise SchemaError("not usable JSON: its values are nested too deep") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _table_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):  # two readers could take either
        (name, _), *_ = (pair for number, pair in enumerate(pairs) if pair[0] in dict(pairs[:number]))
        raise SchemaError(f"the key {name[:80]!r} stands twice in one object")
    return table


def to_json(value: object) -> Any:
    """A record as plain JSON values. Floats that are not finite become null: JSON has none."""
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
    upgrade = getattr(cls, "upgrade_json", None)  # a record with renamed fields has this class method
    document = document if upgrade is None else upgrade(document, where)
    fields = _fields(cast(Any, cls))
    if not document.keys() <= fields.keys():
        unknown = min(set(document) - fields.keys())
        raise SchemaError(f"{place}{unknown}: unknown field; the fields are {', '.join(fields)}")
    values = {}
    for name, (read, plain, is_required) in fields.items():
        if name in document:
            value = document[name]
            is_plain = type(value) in plain and (type(value) is not int or -MOST_INTEGER <= value <= MOST_INTEGER)
            values[name] = value if is_plain else read(value, f"{place}{name}")
        elif is_required:
            raise SchemaError(f"{place}{name}: missing")
    return cls(**values)


_SHARED: set[type] = set()
_MADE: dict[tuple[type, bytes], Any] = {}
MOST_MADE = 1000


def shared(cls: type[T]) -> type[T]:
    """A frozen record of which thousands of others hold equal ones: they are made once."""
    _SHARED.add(cls)
    return cls


def _made_once(cls: type[T], document: object, where: str) -> T:
    try:
        packed = marshal.dumps(cast(Any, document), 2)  # in this version equal bytes are equal values of equal types
    except ValueError:  # nested too deep, or no JSON value
        return from_json(cls, document, where)
    if (made := _MADE.get((cls, packed))) is None:
        made = from_json(cls, document, where)
        if len(_MADE) < MOST_MADE:
            _MADE[cls, packed] = made
    return cast(T, made)


def kind(value: object) -> str:
    """The kind of a parsed value, in plain words."""
    names = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true/false", "NoneType": "nothing"}
    names |= {"dict": "an object", "list": "a list", "tuple": "a list"}
    return names.get(type(value).__name__, type(value).__name__)


_Read = Callable[[Any, str], Any]  # a parsed value and its place in, the record's value out
_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@functools.cache
def _fields(cls: type) -> dict[str, tuple[_Read, frozenset[type], bool]]:
    """Field name -> its reader, the types of values that need none, and whether the document must have it."""
    # Cached: resolving annotations took two thirds of the time to read a thousand results, choosing readers most of
    # the rest.
    hints = typing.get_type_hints(cls)
    return {
        field.name: (
            _reader(hints[field.name]),
            _plain_types(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(cls)
    }


@functools.cache
def _reader(hint: Any) -> _Read:
    """How a value of this annotation is read."""
    if hint is Any:
        return bounded
    if hint in _SCALARS:
        return functools.partial(_scalar, hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return functools.partial(_member, hint)
    if dataclasses.is_dataclass(hint):
        return functools.partial(_made_once if hint in _SHARED else from_json, cast(type, hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (inner,) = [_reader(argument) for argument in arguments if argument is not type(None)]
        return lambda value, place: None if value is None else inner(value, place)
    if origin in (list, tuple):
        return functools.partial(_list, origin, _reader(arguments[0]), _plain_types(arguments[0]))
    if origin is dict:
        return functools.partial(_table, _reader(arguments[1]))
    raise TypeError(f"no reader for {hint!r}")


def bounded(value: Any, place: str, depth: int = 0) -> Any:
    """A value of any kind, as it is. Raises SchemaError where it is nested too deep or holds too large a number."""
    if depth > MOST_NESTED:
        raise SchemaError(f"{place[:80]}: nested deeper than {MOST_NESTED} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            bounded(item, f"{place}.{key}", depth + 1)
    elif isinstance(value, list):
        for item in value:
            bounded(item, place, depth + 1)
    elif type(value) is int:
        _check_size(value, place)
    return value


def _plain_types(hint: Any) -> frozenset[type]:
    """The types whose values need no conversion under this annotation; empty where each value is read on its own."""
    if hint in _SCALARS:
        return frozenset({hint})
    arguments = typing.get_args(hint)
    is_scalar_or_none = type(None) in arguments and all(
        argument in _SCALARS or argument is type(None) for argument in arguments
    )
    return frozenset(arguments) if is_scalar_or_none else frozenset()


def _list(origin: Callable[[Any], Any], read: _Read, plain: frozenset[type], value: Any, place: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise SchemaError(f"{place}: expected a list, found {kind(value)}")
    found = set(map(type, value))
    if found <= plain:  # reading hundreds of step times one by one took most of the time
        if int in found:
            whole = value if len(found) == 1 else [item for item in value if type(item) is int]
            _check_size(max(whole), place)
            _check_size(min(whole), place)
        return value if type(value) is origin else origin(value)
    if float in plain and found <= plain | {int}:
        with contextlib.suppress(OverflowError):  # the loop below reports it with its place
            return origin(float(item) if type(item) is int else item for item in value)
    return origin(read(item, f"{place}[{index}]") for index, item in enumerate(value))


def _table(read: _Read, value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"{place}: expected an object, found {kind(value)}")
    return {key: read(item, f"{place}.{key}") for key, item in value.items()}


def _scalar(hint: type, value: Any, place: str) -> Any:
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise SchemaError(f"{place}: expected a number, found one of {len(str(value))} digits") from None
    if type(value) is not hint:
        raise SchemaError(f"{place}: expected {_SCALARS[hint]}, found {kind(value)}")
    if hint is int:
        _check_size(value, place)
    return value


def _check_size(value: Any, place: str) -> None:
    if not -MOST_INTEGER <= value <= MOST_INTEGER:
        raise SchemaError(f"{place}: expected at most {MOST_INTEGER}, found a number of {len(str(abs(value)))} digits")


def _member(enum: type[Enum], value: Any, place: str) -> Enum:
    try:
        return enum(value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in enum)
        raise SchemaError(f"{place}: expected one of {allowed}, found {value!r}") from None
