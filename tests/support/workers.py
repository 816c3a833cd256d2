"""pytest in several processes, forked from the one that has collected the tests: `pytest --workers 4`.

Imports and collection take 10 s of processor time, once instead of in each worker. An idle worker takes the next unit
from a pipe: tests that share servers, in collection order. If a worker dies, its current test fails, and a new worker
runs the rest of its unit.
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

from tests.support.forked import die_with_parent

UNIT_BYTES = 4  # size of a unit's number in the pipe
PIPE_BYTES = 65_536  # capacity of a pipe
STOP_TIMEOUT_SEC = 60.0
WORKER_PREFIX = "worker-"


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the folder for files that all workers of a session share."""
    base = factory.getbasetemp()
    return base.parent if base.name.startswith(WORKER_PREFIX) else base


@dataclass(kw_only=True, eq=False)
class Worker:
    """One worker process, seen from the main process; `current` is the test that it started last."""

    id: str
    pid: int
    reports: Connection
    current: pytest.Item | None = None

    def __post_init__(self) -> None:
        self.ended = os.pidfd_open(self.pid)

    def reap(self) -> int:
        """Return the exit code; negative for a signal."""
        os.close(self.ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Workers:
    """pytest plugin: one worker runs all tests whose ids `unit_of` maps to the same unit."""

    def __init__(self, config: Any, count: int, unit_of: Callable[[str], str]) -> None:
        self._config, self._count, self._unit_of = config, count, unit_of
        self._started = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop handles these cases
        self._session = session
        self._units: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            self._units[self._unit_of(item.nodeid)].append(item)
        self._index = {item: index for index, item in enumerate(session.items)}
        self._config._tmp_path_factory.getbasetemp()
        gc.collect()
        gc.set_threshold(50_000, 20, 20)
        gc.freeze()  # otherwise each worker's garbage collector would touch, and so copy, the collected tests
        self._queue, writer = os.pipe()
        assert len(self._units) * UNIT_BYTES < PIPE_BYTES
        os.write(writer, b"".join(index.to_bytes(UNIT_BYTES, "big") for index in range(len(self._units))))
        os.close(writer)
        workers: list[Worker] = []
        try:
            workers += [self._start() for _ in range(min(self._count, len(self._units)))]
            self._supervise(workers)
        finally:
            _stop(workers)
        return True

    # In the main process ----------------------------------------------------------------------------------------------

    def _start(self, first: Sequence[pytest.Item] = ()) -> Worker:
        """Start a worker; it runs `first` before it takes units."""
        self._started += 1
        name = f"{WORKER_PREFIX}{self._started}"
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        receiver, sender = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            receiver.close()
            self._work(name, sender, first)
        sender.close()
        return Worker(id=name, pid=pid, reports=receiver)

    def _supervise(self, workers: list[Worker]) -> None:
        """Report the workers' results until all workers have exited."""
        while workers:
            open_ends = [worker.reports for worker in workers if not worker.reports.closed]
            ready = wait([*open_ends, *(worker.ended for worker in workers)])
            for worker in list(workers):
                self._receive_reports(worker)
                if worker.ended in ready:
                    self._receive_reports(worker)
                    workers.remove(worker)
                    workers += self._replacements(worker, worker.reap())
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)

    def _receive_reports(self, worker: Worker) -> None:
        hook = self._config.hook
        try:
            while not worker.reports.closed and worker.reports.poll():
                message = worker.reports.recv()
                if isinstance(message, int):
                    worker.current = self._session.items[message]
                else:
                    report = hook.pytest_report_from_serializable(config=self._config, data=message)
                    hook.pytest_runtest_logreport(report=report)
        except EOFError:
            worker.reports.close()

    def _replacements(self, worker: Worker, code: int) -> list[Worker]:
        """Start a replacement if a worker has died; none if it exited because no units are left."""
        if code == 0:
            return []
        if worker.current is None:
            raise RuntimeError(f"{worker.id} ended with {code} before its first test")
        item = worker.current
        reason = f"{worker.id} ended with {code} in this test"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "teardown")
        self._config.hook.pytest_runtest_logreport(report=report)
        unit = self._units[self._unit_of(item.nodeid)]
        return [self._start(unit[unit.index(item) + 1 :])]

    # In a worker ------------------------------------------------------------------------------------------------------

    def _work(self, name: str, reports: Connection, first: Sequence[pytest.Item]) -> NoReturn:
        code = 1
        try:
            die_with_parent()
            self._reports = reports
            factory, capture = self._config._tmp_path_factory, self._config.pluginmanager.getplugin("capturemanager")
            factory._basetemp = factory.getbasetemp() / name
            factory._basetemp.mkdir(mode=0o700)
            capture.stop_global_capturing()  # its files belong to the main process
            capture.start_global_capturing()
            capture.suspend_global_capture()
            try:
                for unit in chain([first], self._next_units()):
                    # The next item decides which fixtures are torn down: after a unit, all but the session's.
                    for item, after in zip(unit, [*unit[1:], self._session], strict=False):
                        self._config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that the teardown completes
                self._session._setupstate.teardown_exact(None)
            code = 0
        except KeyboardInterrupt:
            pass
        except BaseException:  # noqa: BLE001 - the forked child has no caller
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def _next_units(self) -> Iterator[list[pytest.Item]]:
        units = list(self._units.values())
        while word := os.read(self._queue, UNIT_BYTES):
            yield units[int.from_bytes(word, "big")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: Any) -> bool:
        self._reports.send(self._index[item])
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            self._reports.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
        return True


def _stop(workers: list[Worker]) -> None:
    """Interrupt the remaining workers; kill those that do not exit in time."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)
    deadline = time.monotonic() + STOP_TIMEOUT_SEC
    for worker in workers:
        if not wait([worker.ended], max(0.0, deadline - time.monotonic())):
            os.kill(worker.pid, signal.SIGKILL)
        worker.reap()
