"""Checks of the values of records, at construction, and declarations of settings."""

import dataclasses
import functools
import re
import typing
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from bench.records.status import Failure

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")
LORA_TARGETS = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}  # by the value of train.lora_targets


class TrialError(Failure, ValueError):
    """Invalid trial, trial file or selection of trials; the message names the key and the reason."""


class FieldError(TrialError):
    """Invalid value of one field, `key`; `detail` says what was expected."""

    def __init__(self, key: str, detail: str, *, remedy: str = "") -> None:
        super().__init__(f"{key}: {detail}", remedy=remedy)
        self.key, self.detail = key, detail


def expect(condition: bool, key: str, expected: str) -> None:
    if not condition:
        raise FieldError(key, f"expected {expected}")


def expect_one_of(value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise FieldError(key, f"expected one of {', '.join(allowed)}, found {value!r}")


# Declarations ---------------------------------------------------------------------------------------------------------

_METADATA_KEY = "setting"
AUTO = "auto"  # the value of a setting that is derived
REQUIRED = object()  # as `stored_default`: a record must have the field
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list", dict: "a mapping"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting of the user, or without `help` the valid values of a record's field.

    `kind` is the type, without null, which `is_nullable` allows. `default` is the user's default. A value is one of
    `choices`, or has the form of the regular expression `pattern`, or is at least `ge` or above `gt`, and at most `le`,
    in `unit`. `help` is the comment in invoke.yaml, without unit and range. `expected` describes the values in an
    error; empty: their type and the help. With `usual`, the user may leave the value open by AUTO, as the default does:
    it is then derived, and otherwise `usual`.
    """

    name: str
    kind: Any
    is_nullable: bool
    default: Any = None
    help: str = ""
    unit: str = ""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    choices: Collection[str] = ()
    pattern: str = ""
    expected: str = ""
    usual: Any = None

    def problem(self, value: object) -> str | None:
        """Return what was expected instead of a value of the right type; None if the value is valid."""
        if self.choices:
            return None if value in self.choices else self._choices
        if isinstance(value, str) and self.pattern:
            return None if re.search(self.pattern, value) else self.expected
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return None
        # Each comparison with NaN is False.
        is_low = (self.ge is not None and not value >= self.ge) or (self.gt is not None and not value > self.gt)
        return self.range if is_low or (self.le is not None and not value <= self.le) else None

    @property
    def range(self) -> str:
        """The valid numbers with their unit; empty without bounds."""
        if self.gt is not None:
            text = f"above {self.gt:g}" + ("" if self.le is None else f", at most {self.le:.12g}")
        elif self.ge is not None:
            text = f"at least {self.ge:g}" if self.le is None else f"{self.ge:.12g} to {self.le:.12g}"
        else:
            text = "" if self.le is None else f"0 to {self.le:.12g}"
        return f"{text} {self.unit}".strip()

    @property
    def comment(self) -> str:
        """The comment in invoke.yaml: the first clause of the help, the range, and the rest of the help."""
        head, separator, rest = self.help.partition("; ")
        return f"{head}{self.range and ', '}{self.range}{separator}{rest}"

    @property
    def values(self) -> str:
        """The values that a user may set, in an error."""
        name = _NAMES.get(typing.get_origin(self.kind) or self.kind, "text")
        is_free = self.kind is str or name in ("a list", "a mapping")
        text = self._choices or self.expected or (f"{name}: {self.help.partition('; ')[0]}" if is_free else name)
        between = f" {'from ' if self.range[0].isdigit() else ''}{self.range}" if self.range else ""
        nothing = ", or null" if self.is_nullable else ""
        return f"{text}{between}{nothing if self.usual is None else f', or {AUTO}'}"

    @property
    def _choices(self) -> str:
        names = ", ".join(self.choices)
        return f"one of {names}" if len(self.choices) > 1 else names


def declared_field(declared: Setting) -> Any:
    """Return a dataclass field with this setting and the user's default."""
    factory = declared.default.copy if isinstance(declared.default, dict) else lambda: declared.default
    return dataclasses.field(default_factory=factory, metadata={_METADATA_KEY: declared})


def setting(default: Any, help: str, *, name: str = "", stored_default: Any = None, **rules: Any) -> Any:  # noqa: A002
    """Return a dataclass field that is a setting called `name` (default: like the field).

    `stored_default` is the value in a record without the field, or a function that returns it, where it differs from
    the user's default. `rules` are further fields of Setting.
    """
    metadata = {_METADATA_KEY: {"name": name, "default": default, "help": help, **rules}}
    if stored_default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    value = default if stored_default is None else stored_default
    if isinstance(value, dict) or callable(value):
        return dataclasses.field(default_factory=value if callable(value) else value.copy, metadata=metadata)
    return dataclasses.field(default=value, metadata=metadata)


def checked(default: Any = REQUIRED, **rules: Any) -> Any:
    """Return a dataclass field with rules for its values; `rules` are fields of Setting."""
    return setting(default, "", stored_default=default, **rules)


def settings_of(record: type) -> dict[str, Setting]:
    """Return the settings that a record or a section declares, by field."""
    return {field: declared for field, declared in _declarations(record).items() if declared.help}


@functools.cache
def _declarations(record: type) -> dict[str, Setting]:
    hints = typing.get_type_hints(record)
    declared = {}
    for field in dataclasses.fields(record):
        rules = field.metadata.get(_METADATA_KEY)
        if isinstance(rules, Setting):
            declared[field.name] = rules
        elif rules is not None:
            kinds = [kind for kind in typing.get_args(hints[field.name]) if kind is not type(None)]
            is_nullable = type(None) in typing.get_args(hints[field.name])
            kind = kinds[0] if is_nullable else hints[field.name]
            named = {**rules, "name": rules["name"] or field.name}
            declared[field.name] = Setting(**named, kind=kind, is_nullable=is_nullable)
    return declared


def check_ranges(record: Any) -> None:
    """Raise FieldError for the first value out of its declared range. The types are those of the fields."""
    for field, declared in _declarations(record.__class__).items():
        value = getattr(record, field)
        expected = None if value is None else declared.problem(value)
        if expected is not None:
            raise FieldError(field, f"expected {expected}, found {value!r}")
