"""Local hosts for tests: real processes in separate folders, and checks for leftover processes.

Run as a program, this file is an operator that drives a Fleet over the hosts in a folder and kills itself with SIGKILL
at a given moment.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import pytest

from bench.records import Trial
from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.events import EventType, FleetEvent
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Ledger
from remote.fleet.outcome import OUT_FOLDER, TRIAL_FILE
from remote.fleet.retry_policy import RetryLimits
from remote.fleet.worker import CommandFactory
from remote.hosts.command import Command
from remote.hosts.host_protocol import Completed, Host, HostUnreachable, RunOptions
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent, Job, JobSpec, slot_path
from tests.support.faults import PATIENCE_SEC
from tests.support.faults import wait_for as wait_for
from tests.support.paths import ROOT

FAKE_BENCH = ROOT / "tests" / "support" / "hosts" / "fake_bench.py"
QUICK_LIMITS = RetryLimits(lost_after_sec=0.5, reconnect_timeout_sec=PATIENCE_SEC, grace_sec=5.0, poll_sec=0.05)


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Read the process's output up to a line with this text. Raises AssertionError if it ends before."""
    assert process.stdout is not None
    while text not in (line := process.stdout.readline()):
        assert line, process.communicate()


@contextlib.contextmanager
def running_in_thread(act: Callable[[], object], stop: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Run `act` in a thread during the block and re-raise its exception; call `stop` if the block fails."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        stop()
        raise
    finally:
        thread.join(PATIENCE_SEC)
    assert not thread.is_alive(), f"{act} did not return"
    if failures:
        raise failures[0]


def processes_under(folder: Path) -> dict[int, str]:
    """Map pid to command line for every other process that works in `folder` or names it."""
    processes = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            inside = str(folder) in line or (process / "cwd").readlink().is_relative_to(folder)
            if inside and int(process.name) != os.getpid():
                processes[int(process.name)] = line
    return processes


def kill_kubectl_execs() -> None:
    """Kill every `kubectl exec` among this process's children; the others include servers."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"kubectl" in line and b"\0exec\0" in line:
                    os.kill(int(child), signal.SIGKILL)


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, size: str = "1m") -> Iterator[Path]:
    """Mount a small file system at `folder` during the block."""
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip(f"cannot mount a small disk here: {mount.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill_disk(disk: Path) -> None:
    """Fill a small file system to the last byte."""
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
        while filler.write(bytes(1 << 12)):
            pass
    assert shutil.disk_usage(disk).free == 0


def supervisor_pid(job: Path) -> int:
    return int(json.loads((job / "supervisor.json").read_text())["pid"])


class LocalFleet:
    """Folder with hosts in it, a context manager. On exit, kills leftover processes and raises AssertionError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "bench.log"
        self.fleet_events: list[FleetEvent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        # Watchers of a killed operator exit at their next line; all other processes must have exited already.
        deadline = time.monotonic() + (PATIENCE_SEC if kind is None else 0.0)
        while processes_under(self.folder) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = processes_under(self.folder)
        self.kill_processes()
        assert kind is not None or not left, f"processes were left behind: {left}"

    def kill_processes(self) -> None:
        """Kill every process that works in the folder."""
        while processes := processes_under(self.folder):
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def host(self, name: str = "worker-1", workdir: Path | None = None) -> LocalHost:
        return LocalHost(name=name, workdir=str(workdir or self.folder / "hosts" / name))

    def agent(self) -> Agent:
        return Agent(self.host())

    def hosts(self, count: int) -> list[LocalHost]:
        return [self.host(f"worker-{number}") for number in range(1, count + 1)]

    def start_other_job(self, name: str = "other.1") -> Job:
        """Start another operator's job, which holds the first worker's slot."""
        host = self.host()
        job = Job(Agent(host), f"{host.workdir}/runs/theirs/{name}", slot=slot_path(host))
        job.start(JobSpec(command=Command(argv=("sleep", "300")), deadline_sec=300.0, grace_sec=1.0))
        return job

    def bench_log_lines(self, word: str, trial_id: str | None = None) -> list[str]:
        """Return the fake bench's log lines for this event: word, trial id, attempt, worker."""
        if not self.log.exists():
            return []
        lines = [line for line in self.log.read_text().splitlines() if line.startswith(f"{word} ")]
        return [line for line in lines if trial_id in (None, line.split()[1])]

    def release_slow_trials(self, attempt: int | None = None) -> None:
        """Let every `slow` trial finish, or only those with this attempt number."""
        self.log.with_name(self.log.name + (".go" if attempt is None else f".go.{attempt}")).touch()

    # --- runs ---

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def plan(
        self,
        *names: str,
        workers: int = 2,
        deadline_sec: float = 300.0,
    ) -> RunRecord:
        """Write a plan and an empty ledger, with each trial once, on the workers in turn.

        The first word of a trial's name selects the fake bench's behaviour.
        """
        ids = [f"worker-{number}" for number in range(1, workers + 1)]
        trials = [make_trial(name, deadline_sec=deadline_sec) for name in names]
        planned = [
            PlannedTrial(trial_id=trial.trial_id, trial=trial, worker=worker)
            for trial, worker in zip(trials, itertools.cycle(ids), strict=False)
        ]
        record = RunRecord(
            run_id="r1",
            created_at="2026-01-01T00:00:00+00:00",
            suite="test",
            profile="tiny",
            fleet_kind="local",
            is_on_one_machine=True,
            workers=ids,
            planned=planned,
            settings={},
            provenance={},
        )
        self.run_folder.mkdir()
        record.write(self.run_folder)
        Ledger.create(self.run_folder / LEDGER_FILE, [trial.trial_id for trial in planned])
        return record

    def fleet(
        self,
        hosts: Sequence[Host],
        *,
        limits: RetryLimits = QUICK_LIMITS,
        launch: CommandFactory | None = None,
        **more: Any,
    ) -> Fleet:
        """Make a fleet from the plan and the ledger in the run's folder; `more` are arguments of `Fleet`."""
        ledger = Ledger(self.run_folder / LEDGER_FILE)
        for trial_id, entry in ledger.entries.items():
            if entry.status is not None and entry.status.is_external:
                ledger.reopen(trial_id)
        return Fleet(
            hosts=hosts,
            run=RunRecord.read(self.run_folder / "run.json"),
            run_folder=self.run_folder,
            ledger=ledger,
            make_command=launch or self.launch,
            limits=limits,
            **({"on_event": self.fleet_events.append} | more),
        )

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        return run_fake_bench(host, planned, attempt, folder, log=str(self.log))

    def first_attempt(self, host: Host) -> tuple[Job, JobSpec]:
        """Record the start of the only trial, as an operator does who is killed then; return its job and spec."""
        (planned,) = RunRecord.read(self.run_folder / "run.json").planned
        folder = f"{host.workdir}/runs/r1/{planned.trial_id}.1"
        Ledger(self.run_folder / LEDGER_FILE).record_start(planned.trial_id, 1, host.name, folder)
        command, files = self.launch(host, planned, 1, folder), {TRIAL_FILE: planned.trial.to_text()}
        return Job(Agent(host), folder, slot=slot_path(host)), JobSpec(command=command, deadline_sec=60.0, files=files)

    @contextlib.contextmanager
    def running(self, fleet: Fleet) -> Iterator[Fleet]:
        """Run the fleet in a thread; on exit, wait for it and re-raise its exception."""
        with running_in_thread(fleet.run, fleet.stop):
            yield fleet

    def events_of(self, kind: EventType, worker: str | None = None) -> list[FleetEvent]:
        """Return the events of this kind, except those of fleets with their own `on_event`."""
        return [e for e in list(self.fleet_events) if e.kind is kind and worker in (None, e.worker)]

    def winner(self, trial_id: str) -> tuple[int, str]:
        """Return the attempt and the worker that decided a trial's status."""
        winner = Ledger(self.run_folder / LEDGER_FILE).entries[trial_id].winner
        assert winner is not None
        return winner.number, winner.worker

    def ledger_lines(self, event: str) -> list[dict[str, object]]:
        lines = (self.run_folder / LEDGER_FILE).read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def statuses(self) -> dict[str, str]:
        """Return each trial's status, after checking the invariants that hold for every run."""
        ledger = Ledger(self.run_folder / LEDGER_FILE)
        reopened = [line["trial_id"] for line in self.ledger_lines("reopened")]
        ended = [line["trial_id"] for line in self.ledger_lines("ended")]
        for trial_id, entry in ledger.entries.items():
            assert entry.status is not None, f"{trial_id} has not ended"
            assert ended.count(trial_id) == reopened.count(trial_id) + 1, f"{trial_id}: did not end exactly once"
            path = self.run_folder / "trials" / trial_id / "result.json"
            if entry.status.value == "SUCCEEDED" or path.exists():
                result = TrialResult.read(path)
                assert entry.winner is not None
                assert (result.trial_id, result.attempt) == (trial_id, entry.winner.number)
                assert result.status is entry.status
        return {trial_id: entry.status.value for trial_id, entry in ledger.entries.items() if entry.status is not None}

    def reasons(self) -> dict[str, str | None]:
        ledger = Ledger(self.run_folder / LEDGER_FILE)
        return {trial_id: entry.reason for trial_id, entry in ledger.entries.items()}


def run_fake_bench(host: Host, planned: PlannedTrial, attempt: int, folder: str, *, log: str) -> Command:
    """Return the command that starts the fake bench on `host` with the log file `log`."""
    flags = {
        "--trial": f"{folder}/{TRIAL_FILE}",
        "--out": f"{folder}/{OUT_FOLDER}",
        "--trial-id": planned.trial_id,
        "--worker": host.name,
        "--run-id": "r1",
        "--attempt": str(attempt),
    }
    arguments = [argument for pair in flags.items() for argument in pair]
    return Command(
        argv=(*host.python, "-S", "-B", str(FAKE_BENCH), "run", *arguments), environment={"FAKE_BENCH_LOG": log}
    )


def make_trial(name: str, *, deadline_sec: float = 300.0) -> Trial:
    return Trial(
        name=name,
        reason="a test",
        suite="test",
        profile="tiny",
        model="no/model",
        data="none",
        deadline_sec=deadline_sec,
    )


@dataclasses.dataclass(kw_only=True)
class CuttableHost:
    """Real host behind a connection that tests can cut.

    `plugged` False: the host is unreachable, and open streams break at their next chunk. `cuts`: the number of bytes
    of output that each further command delivers (None: all). `garble` transforms every chunk; `before` is called
    before each command.
    """

    host: Host
    plugged: bool = True
    cuts: Iterator[int | None] = dataclasses.field(default_factory=lambda: iter(()))
    garble: Callable[[Command, bytes], bytes] = lambda _, piece: piece
    before: Callable[[Command], None] = lambda _: None

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def workdir(self) -> str:
        return self.host.workdir

    @property
    def python(self) -> tuple[str, ...]:
        return self.host.python

    def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        self.before(command)
        self._check()
        left = next(self.cuts, None)
        gathered = bytearray()
        on_stdout = options.get("on_stdout")

        def deliver(chunk: bytes) -> None:
            nonlocal left
            self._check()
            chunk = self.garble(command, chunk)
            delivered = chunk if left is None else chunk[:left]
            (gathered.extend if on_stdout is None else on_stdout)(delivered)
            if left is not None:
                left -= len(delivered)
                if len(delivered) < len(chunk):
                    raise HostUnreachable(f"{self.name}: the stream was cut")

        completed = self.host.run(command, **options | {"on_stdout": deliver})
        self._check()
        return dataclasses.replace(completed, stdout=bytes(gathered))

    def _check(self) -> None:
        if not self.plugged:
            raise HostUnreachable(f"{self.name}: unplugged")


class _KillCountdown:
    """Kill this process at its n-th event: a command sent, a chunk received, a ledger line begun or written."""

    def __init__(self, events: int) -> None:
        self._left, self._lock = events, threading.Lock()

    def count_down(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def operate(folder: Path, workers: int, events: int) -> None:
    """Resume the run in `folder`; kill this process after `events` events (0: run to the end)."""
    countdown, chooser = _KillCountdown(events), random.Random(events)

    def count_command(_: Command) -> None:
        countdown.count_down()

    def count_chunk(_: Command, chunk: bytes) -> bytes:
        countdown.count_down()
        return chunk

    real_write, real_fsync = os.write, os.fsync

    def write(handle: int, content: bytes) -> int:
        if countdown._left == 1 and bytes(content[:7]) == b'{"time"':
            real_write(handle, content[: chooser.randrange(len(content))])  # a crash may leave a torn line
        countdown.count_down()
        return real_write(handle, content)

    def fsync(handle: int) -> None:
        real_fsync(handle)
        countdown.count_down()

    os.write, os.fsync = write, fsync  # type: ignore[assignment]
    local = LocalFleet(folder)
    hosts = [CuttableHost(host=host, garble=count_chunk, before=count_command) for host in local.hosts(workers)]
    local.fleet(hosts).run()


if __name__ == "__main__":
    operate(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
