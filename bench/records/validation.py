"""What a record refuses at construction: types and ranges of its fields, by name."""

import dataclasses
import functools
import math
from typing import Any

from bench.records import schema


class TrialError(ValueError):
    """A trial, a trial file or a choice of trials that cannot be used; the message names the key and what is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """`text` as one line: what a file holds may have line breaks, terminal escapes and lone surrogates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def check_types(record: Any) -> None:
    """Refuse a scalar or a tuple of texts of the wrong type. Other fields are the schema's to check."""
    for name, kind, words, may_be_none in _checked(record.__class__):
        value = getattr(record, name)
        if may_be_none and value is None:
            continue
        fits = type(value) is kind if kind is not tuple else isinstance(value, tuple)
        if fits and kind is float:
            fits = math.isfinite(value)
        if fits and kind is tuple:
            fits = all(type(item) is str for item in value)
        if not fits:
            found = str(value) if type(value) is float and not math.isfinite(value) else schema.kind(value)
            raise TrialError(f"{name}: expected {words}, found {found}")


@functools.cache
def _checked(cls: type) -> tuple[tuple[str, type, str, bool], ...]:
    """Field name, type, its words and whether it may be None, of each field that is checked here."""
    # Under `from __future__ import annotations`, field types are strings; the table below is keyed by them.
    annotations = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    return tuple(
        (name, *_TYPES[plain], plain != annotation)
        for name, annotation in annotations.items()
        if (plain := annotation.removesuffix(" | None")) in _TYPES
    )


_TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "float": (float, "a finite number"),
    "bool": (bool, "true or false"),
    "tuple[str, ...]": (tuple, "a list of texts"),
}


def expect(holds: bool, key: str, expected: str) -> None:
    if not holds:
        raise TrialError(f"{key}: expected {expected}")


def among(value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise TrialError(f"{key}: expected one of {', '.join(allowed)}, found {value!r}")


def within(value: int, low: int, high: int, key: str) -> None:
    if not low <= value <= high:
        raise TrialError(f"{key}: expected {low} to {high}, found {value}")
