"""Renamed flags, and validation of flag values.

Numbers are declared as text, because Invoke's own conversion ends in a traceback.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tasks.errors import UsageError

# Old flags by task. `tasks.cli.parser` accepts each with one line that names the new flag; the help omits them.
RENAMED_FLAGS: dict[str, dict[str, str]] = {
    "adapter.merge": {"--anyway": "--force"},
    "bench": {"--trials": "--trial-file"},
    "build": {"--anew": "--force"},  # vocabulary: an old flag
    "data.check": {"--page": "--out"},
    "deploy": {"--replace": "--force", "--take-over": "--force-conflicts"},
    "push": {"--stale": "--force"},
    "report": {"--watch": "--follow"},
    "tenancy.nodes": {"--grow": "--add", "--shrink": "--remove"},
    "train": {"--trial": "--trial-file"},
}


def parse_number(flag: str, text: str, expected: str, is_valid: Callable[[float], bool]) -> float:
    """Parse a number. Raises UsageError, with the flag and the `expected` value, if it is not valid."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not is_valid(value):  # always False for NaN
        raise UsageError(f"{flag}: expected {expected}, found {text!r}")
    return value


def refuse_several(task: str, flags: Mapping[str, object]) -> None:
    """Raise UsageError if more than one of these flags is set: each value that is not None or False counts."""
    names = [name for name, value in flags.items() if value is not None and value is not False]
    if len(names) > 1:
        raise UsageError(f"{task}: {' and '.join(names)} exclude each other", remedy="pass only one of them")


def parse_names(flag: str, values: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """Split the values of a flag at commas, without duplicates. Raises UsageError for a name that is not `known`."""
    names = dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} {name}: expected one of {', '.join(known)}")
    return tuple(names)
