"""A trial of a suite, with fields changed on the command line as `key=value`. Standard library alone."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from bench.records import Trial, TrialError

TRUE_AND_FALSE = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def changed(trial: Trial, settings: Sequence[str]) -> Trial:
    """The trial with these `key=value` changes, which its reason then names.

    Raises TrialError for text that is no setting, an unknown or repeated key, and a value of the wrong type or range.
    """
    types = {field.name: str(field.type) for field in dataclasses.fields(trial) if field.name != "training"}
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise TrialError(f"--set {_clip(setting)}: expected key=value, e.g. --set max_seq_len=256")
        if key not in types:
            raise TrialError(f"--set {_clip(key)}: unknown field; the fields are {', '.join(types)}")
        if key in values:
            raise TrialError(f"--set {key}: given twice")
        values[key] = _value(key, types[key], text)
    if not values:
        return trial
    values.setdefault("reason", f"{trial.reason}; changed by hand: {', '.join(settings)}")
    try:
        return dataclasses.replace(trial, **values)
    except TrialError as error:
        raise TrialError(f"--set {error}") from None


def _value(key: str, wanted: str, text: str) -> Any:
    readers: dict[str, tuple[Callable[[str], Any], str]] = {
        "str": (str, "text"),
        "int": (int, "a whole number"),
        "float": (float, "a number"),
        "bool": (lambda word: TRUE_AND_FALSE[word.lower()], "true or false"),
        "tuple[str, ...]": (
            lambda words: tuple(word.strip() for word in words.split(",")),
            "names with commas between",
        ),
    }
    read, expected = readers[wanted]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise TrialError(f"--set {key}: expected {expected}, found {_clip(text)!r}") from None


def _clip(text: str) -> str:
    """Cut to 40 characters, for a message."""
    return text if len(text) <= 40 else f"{text[:39]}\N{HORIZONTAL ELLIPSIS}"
