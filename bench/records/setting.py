"""Declaration of a training setting, once, at the field of the record that it fills.

`setting()` is the field's default with its range, choices and help. The section `train` of the settings is built from
these declarations (`tasks.settings.schema`), the record checks its values against them, a resumed training learns from
them what cannot change, and a test compares them with invoke.yaml.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from bench.records.validation import FieldError

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
