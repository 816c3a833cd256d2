"""pytest in several processes, forked from the one that has collected the tests: `pytest --workers 4`.

10 s of processor time for imports and collection is paid once, not by each worker. Whoever is free takes the
next unit from one pipe: tests that share servers, in the order of the collection. A worker that dies fails the test
that it was at, and another one goes on with the rest.
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

WORD = 4  # bytes of a unit's number
PIPE_BYTES = 65_536  # what a pipe takes before it is read
END_SEC = 60.0
NAME = "worker-"


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder for what all workers of a session share."""
    base = factory.getbasetemp()
    return base.parent if base.name.startswith(NAME) else base


@dataclass(kw_only=True, eq=False)
class Worker:
    """One of the processes, as the first one sees it; `at` is the test that it has begun last."""

    id: str
    pid: int
    reports: Connection
    at: pytest.Item | None = None

    def __post_init__(self) -> None:
        self.ended = os.pidfd_open(self.pid)

    def reap(self) -> int:
        """Its exit code, or less than 0 for a signal."""
        os.close(self.ended)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Workers:
    """A plugin: `unit_of` says of a test's id which tests one worker runs, one after the other."""

    def __init__(self, config: Any, count: int, unit_of: Callable[[str], str]) -> None:
        self._config, self._count, self._unit_of = config, count, unit_of
        self._started = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly:
            return None  # pytest's own loop knows what to say
        self._session = session
        self._units: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            self._units[self._unit_of(item.nodeid)].append(item)
        self._index = {item: index for index, item in enumerate(session.items)}
        self._config._tmp_path_factory.getbasetemp()
        gc.collect()
        gc.set_threshold(50_000, 20, 20)
        gc.freeze()  # what was collected is not looked through, and so not copied, by each worker
        self._queue, end = os.pipe()
        assert len(self._units) * WORD < PIPE_BYTES
        os.write(end, b"".join(index.to_bytes(WORD, "big") for index in range(len(self._units))))
        os.close(end)
        workers: list[Worker] = []
        try:
            workers += [self._start() for _ in range(min(self._count, len(self._units)))]
            self._follow(workers)
        finally:
            _stop(workers)
        return True

    # In the first process ---------------------------------------------------------------------------------------------

    def _start(self, first: Sequence[pytest.Item] = ()) -> Worker:
        """A worker; it runs these tests before it takes units."""
        self._started += 1
        name = f"{NAME}{self._started}"
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        receiver, sender = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            receiver.close()
            self._work(name, sender, first)
        sender.close()
        return Worker(id=name, pid=pid, reports=receiver)

    def _follow(self, workers: list[Worker]) -> None:
        """Show what workers report until all have ended."""
        while workers:
            open_ends = [worker.reports for worker in workers if not worker.reports.closed]
            ready = wait([*open_ends, *(worker.ended for worker in workers)])
            for worker in list(workers):
                self._hear(worker)
                if worker.ended in ready:
                    self._hear(worker)
                    workers.remove(worker)
                    workers += self._followers(worker, worker.reap())
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)

    def _hear(self, worker: Worker) -> None:
        hook = self._config.hook
        try:
            while not worker.reports.closed and worker.reports.poll():
                said = worker.reports.recv()
                if isinstance(said, int):
                    worker.at = self._session.items[said]
                else:
                    report = hook.pytest_report_from_serializable(config=self._config, data=said)
                    hook.pytest_runtest_logreport(report=report)
        except EOFError:
            worker.reports.close()

    def _followers(self, worker: Worker, code: int) -> list[Worker]:
        """Who goes on after a worker that has died; nobody after one that has found nothing more to do."""
        if code == 0:
            return []
        if worker.at is None:
            raise RuntimeError(f"{worker.id} ended with {code} before its first test")
        item = worker.at
        why = f"{worker.id} ended with {code} in this test"
        died = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "teardown")
        self._config.hook.pytest_runtest_logreport(report=died)
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
            capture.stop_global_capturing()  # its files are the first process's
            capture.start_global_capturing()
            capture.suspend_global_capture()
            try:
                for unit in chain([first], self._taken()):
                    # What comes next decides what is torn down: of a unit's last test all but the session's fixtures.
                    for item, after in zip(unit, [*unit[1:], self._session], strict=False):
                        self._config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            finally:
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # so that what was started is also ended
                self._session._setupstate.teardown_exact(None)
            code = 0
        except KeyboardInterrupt:
            pass
        except BaseException:  # noqa: BLE001 - there is nobody above
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def _taken(self) -> Iterator[list[pytest.Item]]:
        units = list(self._units.values())
        while word := os.read(self._queue, WORD):
            yield units[int.from_bytes(word, "big")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: Any) -> bool:
        self._reports.send(self._index[item])
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            self._reports.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
        return True


def _stop(workers: list[Worker]) -> None:
    """End those that are left when nobody wants to know more."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)
    deadline = time.monotonic() + END_SEC
    for worker in workers:
        if not wait([worker.ended], max(0.0, deadline - time.monotonic())):
            os.kill(worker.pid, signal.SIGKILL)
        worker.reap()
