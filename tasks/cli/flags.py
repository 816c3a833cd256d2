"""Flags' values, checked. Numbers are declared as text: Invoke's own cast would end in a traceback."""

from collections.abc import Callable, Iterable, Sequence

from tasks.errors import UsageError


def number(flag: str, text: str, expected: str, fits: Callable[[float], bool]) -> float:
    """The number in `text`, if it `fits`. Raises UsageError, which names the flag and says what was `expected`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):  # NaN, the value of what is no number, fits nothing
        raise UsageError(f"{flag}: expected {expected}, found {text!r}")
    return value


def one_of_each(flag: str, given: Iterable[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names given with a flag, each once, several in one value parted by commas. Raises UsageError for one that is
    not `known`."""
    names = dict.fromkeys(name.strip() for one in given for name in one.split(",") if name.strip())
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} {name}: expected one of {', '.join(known)}")
    return tuple(names)
