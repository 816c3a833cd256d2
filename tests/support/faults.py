"""What goes wrong in tests, and how long they wait for what should happen."""

import errno
import os
import time
from collections.abc import Callable
from typing import Any, NoReturn

PATIENCE_SEC = 120.0  # for things that take milliseconds; only a broken system waits this long


class OutOfMemoryError(RuntimeError):
    """Named as torch's own."""


def full_disk(*_args: object, **_named: object) -> NoReturn:
    """In the place of a function that writes."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def until(holds: Callable[[], Any], what: str = "it", sec: float = PATIENCE_SEC) -> Any:
    """What `holds` returns once that is true; an AssertionError after `sec` seconds."""
    deadline = time.monotonic() + sec
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited {sec:g} s for {what}"
        time.sleep(0.01)
    return found


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """In the place of a function that fails."""

    def fail(*_args: object, **_named: object) -> NoReturn:
        raise error

    return fail
