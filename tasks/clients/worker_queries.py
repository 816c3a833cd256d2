"""Asking workers before a run: how long one that does not answer is asked again, and how the task ends then."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from time import monotonic
from typing import TypeVar

from remote.cluster.errors import KubectlUnusable
from remote.hosts.host import CommandTimedOut, Host, HostError, HostUnreachable, PermissionDenied, one_line
from tasks.errors import RetryableError, UsageError
from tasks.errors import one_line as printable
from tasks.settings.load import Settings

T = TypeVar("T")
_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 0.5, 5.0


@contextlib.contextmanager
def translate_host_errors() -> Iterator[None]:
    """Within, a worker that cannot be asked ends the task with its exit code."""
    try:
        yield
    except (PermissionDenied, KubectlUnusable) as error:
        raise UsageError(f"{error}, then type the same again") from None
    except HostError as error:
        raise RetryableError(f"{error}; check that the workers are up, then type the same again") from None


def query_all(settings: Settings, hosts: Sequence[Host], ask: Callable[[Host], T]) -> list[T]:
    """What `ask` says of each host, all of them asked at once.

    As in a running bench, one that does not answer is asked again until fleet.lost_after_sec have passed, and a line
    says so. Raises what `ask` raises as a task's error (`answering`).
    """
    patience = _RetryPolicy(settings.fleet.lost_after_sec)
    with translate_host_errors(), ThreadPoolExecutor(max_workers=min(32, len(hosts))) as pool:
        try:
            return list(pool.map(lambda host: patience.ask(lambda: ask(host)), hosts))
        finally:
            patience.over.set()  # once one of them has ended the task, nobody is asked again


class _RetryPolicy:
    """How long the hosts of one question are asked again. Used by a thread for each host."""

    def __init__(self, within_sec: float) -> None:
        self._within_sec = within_sec
        self._said = Lock()  # held from the first line on: an API server that restarts is one line, not 64
        self.over = Event()

    def ask(self, ask: Callable[[], T]) -> T:
        began, pause_sec = monotonic(), _FIRST_PAUSE_SEC
        while True:
            try:
                return ask()
            except (HostUnreachable, CommandTimedOut) as error:
                took_sec = monotonic() - began
                if took_sec >= self._within_sec or self.over.is_set():
                    raise HostUnreachable(f"{one_line(error)} (asked for {took_sec:.0f} s)") from None
                if self._said.acquire(blocking=False):
                    limit = f"up to {self._within_sec:g} s (fleet.lost_after_sec)"
                    print(printable(f"{one_line(error)}; asked again, for {limit}"), flush=True)
            self.over.wait(pause_sec)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
