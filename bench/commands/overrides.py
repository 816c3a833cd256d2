"""Overrides of a trial's fields, given on the command line as `key=value`. Only the standard library."""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bench.records import Trial, TrialError
from bench.records.trial import old_names_text, rename_old_fields

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def apply_overrides(trial: Trial, settings: Sequence[str]) -> Trial:
    """Return the trial with these `key=value` changes, and list them in its reason.

    Raises TrialError for text that is not key=value, an unknown or repeated key, or a value of the wrong type or range.
    """
    types = {field.name: str(field.type) for field in dataclasses.fields(trial) if field.name != "training"}
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise TrialError(f"--set {_clip(setting)}: expected key=value, e.g. --set max_seq_len=256")
        if (renamed := old_names_text({key: text})) is not None:
            print(f"--set {renamed}", file=sys.stderr)
            ((key, text),) = rename_old_fields({key: text}, "--set").items()
        if key not in types:
            raise TrialError(f"--set {_clip(key)}: unknown field", remedy=f"the fields are {', '.join(types)}")
        if key in values:
            raise TrialError(f"--set {key}: given twice")
        values[key] = _parse_value(key, types[key], text)
    if not values:
        return trial
    values.setdefault("reason", f"{trial.reason}; changed by hand: {', '.join(settings)}")
    try:
        return dataclasses.replace(trial, **values)
    except TrialError as error:
        raise TrialError(f"--set {error}") from error


def _parse_value(key: str, type_name: str, text: str) -> Any:
    parsers: dict[str, tuple[Callable[[str], Any], str]] = {
        "str": (str, "text"),
        "int": (int, "a whole number"),
        "float": (float, "a number"),
        "bool": (lambda word: BOOLEANS[word.lower()], "true or false"),
        "tuple[str, ...]": (
            lambda names: tuple(word.strip() for word in names.split(",")),
            "names separated by commas",
        ),
    }
    parse, expected = parsers[type_name]
    try:
        return parse(text)
    except (ValueError, KeyError) as error:
        raise TrialError(f"--set {key}: expected {expected}, found {_clip(text)!r}") from error


def _clip(text: str) -> str:
    """Shorten to 40 characters, for a message."""
    return text if len(text) <= 40 else f"{text[:39]}\N{HORIZONTAL ELLIPSIS}"
