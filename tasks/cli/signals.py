"""Ctrl-C: while a task runs it is the task's; before and after, it ends the program at once, without a traceback."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from tasks.errors import Interrupted


def on_ctrl_c(handler: Callable[..., Any] | int | None) -> None:
    """Handle Ctrl-C like this from now on. Where it was ignored from the start (`nohup inv ... &`), it stays so."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


def leave(*_: object) -> None:
    """End this process now. What it has started ends with it, or is known to the ledger."""
    os._exit(Interrupted.exit_code)


@contextlib.contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Within, these signals end the task as Ctrl-C does, so that it leaves nothing half done."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
