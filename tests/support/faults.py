"""Faults and a clock to inject with `monkeypatch`, and a wait with a timeout."""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

PATIENCE_SEC = 120.0  # for things that take milliseconds; only a broken system waits this long


class OutOfMemoryError(RuntimeError):
    """Replacement for torch's error of this name."""


class Clock(threading.Event):
    """Event whose fake time advances instead of waiting."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        Clock.now += timeout or 0.0
        return self.is_set()


def full_disk(*_args: object, **_named: object) -> NoReturn:
    """Replace a function that writes: raise ENOSPC."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def wait_for(condition: Callable[[], Any], description: str = "it", sec: float = PATIENCE_SEC) -> Any:
    """Return the first true value of `condition`. Raises AssertionError after `sec` seconds."""
    deadline = time.monotonic() + sec
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {sec:g} s for {description}"
        time.sleep(0.01)
    return value


def raising(error: BaseException) -> Callable[..., NoReturn]:
    """Return a replacement for a function: it raises `error`."""

    def fail(*_args: object, **_named: object) -> NoReturn:
        raise error

    return fail


def read_process_table() -> Iterator[bytes]:
    """Yield the arguments and the variables of every process of this machine."""
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                yield (entry / name).read_bytes()
