"""Numbers that flags are given: flags come as text, so that what is wrong with one can be said in one line.

A flag whose default is a number Invoke would cast itself, and end in a traceback where that fails.
"""

from __future__ import annotations

from collections.abc import Callable

from tasks.errors import UsageError


def number(flag: str, text: str, expected: str, fits: Callable[[float], bool]) -> float:
    """The number in `text`, if it `fits`. Raises UsageError, which names the flag and says what was `expected`."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not fits(value):  # nothing fits that is no number: every comparison with it is false
        raise UsageError(f"{flag}: expected {expected}, found {text!r}")
    return value
