"""Type and range checks for the fields of records, at construction."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

from bench.records import schema
from bench.records.status import Failure

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")


class TrialError(Failure, ValueError):
    """Invalid trial, trial file or selection of trials; the message names the key and the reason."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(printable(problem), remedy=printable(remedy))


class FieldError(TrialError):
    """Invalid value of one field, `key`; `detail` says what was expected."""

    def __init__(self, key: str, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"{key}: {detail}", remedy=remedy)
        self.key, self.detail = key, detail


def printable(text: str) -> str:
    """Escape line breaks, terminal escapes and lone surrogates, so that `text` is one printable line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def check_types(record: Any) -> None:
    """Raise TrialError for a scalar or a tuple of strings of the wrong type. The schema checks other fields."""
    for name, kind, description, is_optional in _scalar_fields(record.__class__):
        value = getattr(record, name)
        if is_optional and value is None:
            continue
        fits = type(value) is kind if kind is not tuple else isinstance(value, tuple)
        if fits and kind is float:
            fits = math.isfinite(value)
        if fits and kind is tuple:
            fits = all(type(item) is str for item in value)
        if not fits:
            actual = str(value) if type(value) is float and not math.isfinite(value) else schema.type_name(value)
            raise FieldError(name, f"expected {description}, found {actual}")


@functools.cache
def _scalar_fields(cls: type) -> tuple[tuple[str, type, str, bool], ...]:
    """Return (name, type, description of the type, True if optional) of each field that is checked here."""
    # Under `from __future__ import annotations`, field types are strings; the table below is keyed by them.
    annotations = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    return tuple(
        (name, *_SCALAR_TYPES[plain], plain != annotation)
        for name, annotation in annotations.items()
        if (plain := annotation.removesuffix(" | None")) in _SCALAR_TYPES
    )


_SCALAR_TYPES: dict[str, tuple[type, str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "float": (float, "a finite number"),
    "bool": (bool, "true or false"),
    "tuple[str, ...]": (tuple, "a list of texts"),
}


def expect(condition: bool, key: str, expected: str) -> None:
    if not condition:
        raise FieldError(key, f"expected {expected}")


def expect_one_of(value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise FieldError(key, f"expected one of {', '.join(allowed)}, found {value!r}")


def expect_in_range(value: int, low: int, high: int, key: str) -> None:
    if not low <= value <= high:
        raise FieldError(key, f"expected {low} to {high}, found {value}")


# Declarations ---------------------------------------------------------------------------------------------------------

_METADATA_KEY = "setting"
REQUIRED = object()  # as `stored_default`: a record must have the field


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of the section `train`.

    `default` is the user's default. A value is one of `choices`, or at least `ge` or above `gt`, and at most `le`.
    `help` is the comment in invoke.yaml. `expected` describes the values in an error; empty: their type. `fixed` is the
    reason why a resumed training cannot change it.
    """

    name: str
    default: Any
    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    expected: str = ""
    fixed: str | None = None

    def problem(self, value: object) -> str | None:
        """Return what was expected instead of a value of the right type; None if the value is valid."""
        if self.choices:
            return None if value in self.choices else f"one of {', '.join(self.choices)}"
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        is_low = (self.ge is not None and value < self.ge) or (self.gt is not None and value <= self.gt)
        if not is_low and (self.le is None or value <= self.le):
            return None
        if self.gt is not None:
            return f"above {self.gt:g}" + ("" if self.le is None else f", at most {self.le:.12g}")
        return f"at least {self.ge:g}" if self.le is None else f"{self.ge or 0:.12g} to {self.le:.12g}"


def setting(default: Any, help: str, *, name: str = "", stored_default: Any = None, **rules: Any) -> Any:  # noqa: A002
    """Return a dataclass field that is a setting called `name` (default: like the field).

    `stored_default` is the value in a record without the field, where it differs from the user's default. `rules` are
    further fields of Setting.
    """
    metadata = {_METADATA_KEY: functools.partial(Setting, default=default, help=help, **rules), "name": name}
    if stored_default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default if stored_default is None else stored_default, metadata=metadata)


def settings_of(record: type) -> dict[str, Setting]:
    """Return the settings that a record declares, by field."""
    return {
        field.name: field.metadata[_METADATA_KEY](name=field.metadata["name"] or field.name)
        for field in dataclasses.fields(record)
        if _METADATA_KEY in field.metadata
    }


_cached_settings: Any = functools.cache(settings_of)


def check_settings(record: Any) -> None:
    """Raise TrialError, naming the field, for the first declared field whose value is out of range."""
    for field, declared in _cached_settings(type(record)).items():
        value = getattr(record, field)
        expected = None if value is None else declared.problem(value)
        if expected is not None:
            raise FieldError(field, f"expected {expected}, found {value!r}")
