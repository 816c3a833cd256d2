"""Queries to all workers before a run, with retries, and their errors translated to exit codes."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Event, Lock
from time import monotonic
from typing import TypeVar

from remote.hosts.host_protocol import (
    CommandTimedOut,
    Host,
    HostError,
    HostUnreachable,
    PermissionDenied,
    collapse_whitespace,
)
from remote.hosts.pods.kubectl import PodUnusable
from remote.jobs.job import HostRefused
from tasks.cli.waiting import Wait
from tasks.errors import RetryableError, UsageError, escape_controls

T = TypeVar("T")
_MIN_PAUSE_SEC, _MAX_PAUSE_SEC = 0.5, 5.0


@contextlib.contextmanager
def translate_host_errors() -> Iterator[None]:
    """Turn errors of a worker into task errors."""
    try:
        yield
    except (PermissionDenied, PodUnusable) as error:
        raise UsageError(f"{error}, then rerun the command") from error
    except HostError as error:
        advice = "correct that on the worker" if isinstance(error, HostRefused) else "check that the workers are up"
        raise RetryableError.from_error(error, remedy=f"{advice}, then rerun the command") from error


def query_all(
    hosts: Sequence[Host], query: Callable[[Host], T], lost_after_sec: float, *, activity: str = "an answer"
) -> list[T]:
    """Call `query` for all hosts at once; return the results in their order.

    Like in a running bench, a host that does not answer is queried again until `lost_after_sec` have passed, with one
    printed line. While hosts work, a line names the `activity` that is waited for. Errors of a host become task errors
    (`translate_host_errors`).
    """
    has_printed, stopped = Lock(), Event()  # never released: a restart of the API server prints one line, not 64

    def retry(host: Host) -> T:
        started, pause_sec = monotonic(), _MIN_PAUSE_SEC
        while True:
            try:
                return query(host)
            except (HostUnreachable, CommandTimedOut) as error:
                elapsed_sec = monotonic() - started
                if elapsed_sec >= lost_after_sec or stopped.is_set():
                    raise HostUnreachable(f"{collapse_whitespace(error)} (tried for {elapsed_sec:.0f} s)") from error
                if has_printed.acquire(blocking=False):
                    limit = f"up to {lost_after_sec:g} s (fleet.lost_after_sec)"
                    print(escape_controls(f"{collapse_whitespace(error)}; retrying {limit}"), flush=True)
            stopped.wait(pause_sec)
            pause_sec = min(2 * pause_sec, _MAX_PAUSE_SEC)

    with translate_host_errors(), ThreadPoolExecutor(max_workers=min(32, len(hosts))) as pool:
        futures = {pool.submit(retry, host): host.name for host in hosts}
        try:
            with Wait(partial(_describe, futures, activity)):
                wait(futures, return_when=FIRST_EXCEPTION)
            return [future.result() for future in futures]
        finally:
            stopped.set()  # after the first error there are no more retries


def _describe(futures: Mapping[Future[T], str], activity: str) -> str:
    names = [name for future, name in futures.items() if not future.done()]
    more = f" and {len(names) - 1} more of {len(futures)} workers" if len(names) > 1 else ""
    return f"waiting for {next(iter(names), 'the workers')}{more}: {activity}"
