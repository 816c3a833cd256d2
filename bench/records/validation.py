"""Type and range checks for the fields of records, at construction."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from bench.records import schema
from bench.records.status import Failure

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")


class TrialError(Failure, ValueError):
    """Invalid trial, trial file or selection of trials; the message names the key and the reason."""


class FieldError(TrialError):
    """Invalid value of one field, `key`; `detail` says what was expected."""

    def __init__(self, key: str, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"{key}: {detail}", remedy=remedy)
        self.key, self.detail = key, detail


def _check_types(record: Any) -> None:
    """Raise TrialError for a field that a document could not have, and for a list in place of a tuple."""
    for name, (read, plain, _) in schema.fields_of(record.__class__).items():
        value = getattr(record, name)
        if type(value) in plain or dataclasses.is_dataclass(value):
            continue
        try:
            read_value = read(value, name)
        except schema.SchemaError as error:
            raise FieldError(name, str(error).partition(": ")[2]) from error
        if type(read_value) is not type(value):
            raise FieldError(name, f"expected {type(read_value).__name__}, found {type(value).__name__}")


def expect(condition: bool, key: str, expected: str) -> None:
    if not condition:
        raise FieldError(key, f"expected {expected}")


def expect_one_of(value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise FieldError(key, f"expected one of {', '.join(allowed)}, found {value!r}")


# Declarations ---------------------------------------------------------------------------------------------------------

_METADATA_KEY = "setting"
REQUIRED = object()  # as `stored_default`: a record must have the field


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of the section `train`, or without `help` the valid values of another field.

    `default` is the user's default. A value is one of `choices`, or at least `ge` or above `gt`, and at most `le`.
    `help` is the comment in invoke.yaml. `expected` describes the values in an error; empty: their type. `usual` is the
    value of a record where the user has set none and it is not derived from the data.
    """

    name: str
    default: Any = None
    help: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    expected: str = ""
    usual: float | None = None

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
    value = default if stored_default is None else stored_default
    if isinstance(value, dict):
        return dataclasses.field(default_factory=value.copy, metadata=metadata)
    return dataclasses.field(default=value, metadata=metadata)


def checked(default: Any = REQUIRED, **rules: Any) -> Any:
    """Return a dataclass field with rules for its values; `rules` are fields of Setting."""
    return setting(default, "", stored_default=default, **rules)


def settings_of(record: type) -> dict[str, Setting]:
    """Return the settings that a record declares, by field."""
    return {field: declared for field, declared in _declarations(record).items() if declared.help}


@functools.cache
def _declarations(record: type) -> dict[str, Setting]:
    return {
        field.name: field.metadata[_METADATA_KEY](name=field.metadata["name"] or field.name)
        for field in dataclasses.fields(record)
        if _METADATA_KEY in field.metadata
    }


def check_fields(record: Any) -> None:
    """Raise TrialError, naming the field, for the first value of the wrong type or out of its declared range."""
    _check_types(record)
    for field, declared in _declarations(record.__class__).items():
        value = getattr(record, field)
        expected = None if value is None else declared.problem(value)
        if expected is not None:
            raise FieldError(field, f"expected {expected}, found {value!r}")
