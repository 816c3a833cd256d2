"""Handlers of Ctrl-C: interrupt a running task; before and after it, end the program without a traceback."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from tasks.errors import Interrupted


def set_ctrl_c_handler(handler: Callable[..., Any] | int | None) -> None:
    """Set the handler of Ctrl-C. If it was ignored from the start (`nohup inv ... &`), it stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler or signal.SIG_DFL)


def exit_now(*_: object) -> None:
    """End this process at once. Processes that it started end with it, or the ledger knows them."""
    os._exit(Interrupted.exit_code)


@contextlib.contextmanager
def as_ctrl_c(*numbers: signal.Signals) -> Iterator[None]:
    """Make these signals interrupt the task like Ctrl-C, so that it cleans up."""
    old_handlers = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)
