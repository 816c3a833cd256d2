"""Numbers that are given as flags. The flags are declared as text: Invoke's own cast would end in a traceback."""

from collections.abc import Callable

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
