"""Local hosts for tests: real processes in folders of their own, and a look at what is left of them.

Also an operator that can be killed: run as a program, this file drives a Fleet over the hosts in a folder, and kills
itself with SIGKILL at the moment it is told.
"""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
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
from remote.fleet.fetch_result import OUT_FOLDER, TRIAL_FILE
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Ledger
from remote.fleet.retry_policy import RetryLimits
from remote.fleet.worker import Launch
from remote.hosts.command import Command
from remote.hosts.host import Completed, Host, HostUnreachable, RunOptions
from remote.hosts.local import LocalHost
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec, slot_of
from tests.support.faults import PATIENCE_SEC, until
from tests.support.paths import ROOT

FAKE_BENCH = ROOT / "tests" / "support" / "hosts" / "fake_bench.py"
wait_for = until
QUICK = RetryLimits(lost_after_sec=0.5, give_up_after_sec=PATIENCE_SEC, grace_sec=5.0, every_sec=0.05)


def wait_for_words(process: subprocess.Popen[str], words: str) -> None:
    """Read what it says up to the line with these words; the test fails where it ends before that."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, process.communicate()


@contextlib.contextmanager
def meanwhile(act: Callable[[], object], stop: Callable[[], object] = lambda: None) -> Iterator[None]:
    """`act` in another thread while the block runs; what it raises comes through. A block that fails calls `stop`."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
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
    assert not thread.is_alive(), f"{act} does not come to its end"
    if failures:
        raise failures[0]


def processes_under(folder: Path) -> dict[int, str]:
    """pid to command line of every living process (ourselves aside) that works in `folder` or names it."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            inside = str(folder) in line or (process / "cwd").readlink().is_relative_to(folder)
            if inside and int(process.name) != os.getpid():
                found[int(process.name)] = line
    return found


def kill_kubectls() -> None:
    """Every kubectl exec that this process has started, and nothing else of its children: servers are among them."""
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{child}/cmdline").read_bytes()
                if b"kubectl" in line and b"\0exec\0" in line:
                    os.kill(int(child), signal.SIGKILL)


@contextlib.contextmanager
def mounted(folder: Path, size: str = "1m") -> Iterator[Path]:
    """A small file system of its own at `folder`, for as long as the block lasts."""
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


def fill(disk: Path) -> None:
    """No byte more goes onto a small file system."""
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
        while filler.write(bytes(1 << 12)):
            pass
    assert shutil.disk_usage(disk).free == 0


def supervisor_of(job: Path) -> int:
    return int(json.loads((job / "supervisor.json").read_text())["pid"])


class LocalFleet:
    """A folder with hosts in it. On leaving, what still runs there is killed, and is an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "bench.log"
        self.heard: list[FleetEvent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        # Watchers of a killed operator notice at their next line; everything else has to be gone already.
        deadline = time.monotonic() + (PATIENCE_SEC if kind is None else 0.0)
        while processes_under(self.folder) and time.monotonic() < deadline:
            time.sleep(0.02)
        left = processes_under(self.folder)
        self.sweep()
        assert kind is not None or not left, f"processes were left behind: {left}"

    def sweep(self) -> None:
        """Kill everything that works in the folder."""
        while found := processes_under(self.folder):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def host(self, name: str = "worker-1", workdir: Path | None = None) -> LocalHost:
        return LocalHost(name=name, workdir=str(workdir or self.folder / "hosts" / name))

    def agent(self) -> Agent:
        return Agent(self.host())

    def hosts(self, count: int) -> list[LocalHost]:
        return [self.host(f"worker-{number}") for number in range(1, count + 1)]

    def occupied(self, name: str = "other.1") -> Job:
        """Another operator's job, which holds the first worker's slot."""
        host = self.host()
        job = Job(Agent(host), f"{host.workdir}/runs/theirs/{name}", slot=slot_of(host))
        job.start(JobSpec(command=Command(argv=("sleep", "300")), deadline_sec=300.0, grace_sec=1.0))
        return job

    def noted(self, word: str, trial_id: str | None = None) -> list[str]:
        """What the stand-in bench wrote down: lines of word, trial id, attempt, worker."""
        if not self.log.exists():
            return []
        lines = [line for line in self.log.read_text().splitlines() if line.startswith(f"{word} ")]
        return [line for line in lines if trial_id in (None, line.split()[1])]

    def started_after_success(self) -> list[str]:
        """Trials that were begun again although the fleet's own look came after their success (`Looking`)."""
        return started_after_success(self.log.read_text().splitlines())

    def say_go(self, attempt: int | None = None) -> None:
        """Let every `slow` trial finish, or these attempts at them."""
        self.log.with_name(self.log.name + (".go" if attempt is None else f".go.{attempt}")).touch()

    # --- runs ---

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def plan(
        self,
        *names: str,
        workers: int = 2,
        replicate: bool = False,
        deadline_sec: float = 300.0,
        pin: str | None = None,
    ) -> RunRecord:
        """Write a plan of trials with these names (the first word says what each does) and its empty ledger."""
        ids = [f"worker-{number}" for number in range(1, workers + 1)]
        trials = [make_trial(name, deadline_sec=deadline_sec) for name in names]
        places = [(f".{worker}", worker) for worker in ids] if replicate else [("", pin)]
        planned = [
            PlannedTrial(trial_id=f"{trial.trial_id}{ending}", trial=trial, worker=worker)
            for trial in trials
            for ending, worker in places
        ]
        record = RunRecord(
            run_id="r1",
            created_at="2026-01-01T00:00:00+00:00",
            suite="test",
            profile="tiny",
            spread="replicate" if replicate else "shard",
            fleet_kind="local",
            workers=ids,
            planned=planned,
            settings={},
            provenance={},
        )
        self.run_folder.mkdir()
        record.write(self.run_folder)
        Ledger.create(self.run_folder / LEDGER_FILE, [one.trial_id for one in planned])
        return record

    def fleet(
        self, hosts: Sequence[Host], *, limits: RetryLimits = QUICK, launch: Launch | None = None, **more: Any
    ) -> Fleet:
        """A fleet over the plan and the ledger as they lie in the run's folder now; `more` is `Fleet`'s."""
        ledger = Ledger(self.run_folder / LEDGER_FILE)
        for trial_id, entry in ledger.entries.items():
            if entry.end is not None and entry.end.is_resumable:
                ledger.reopened(trial_id)
        return Fleet(
            hosts=hosts,
            run=RunRecord.read(self.run_folder / "run.json"),
            run_folder=self.run_folder,
            ledger=ledger,
            launch=launch or self.launch,
            limits=limits,
            **({"on_event": self.heard.append} | more),
        )

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        return run_fake_bench(host, planned, attempt, folder, log=str(self.log))

    @contextlib.contextmanager
    def running(self, fleet: Fleet) -> Iterator[Fleet]:
        """The fleet at work in a thread of its own; on leaving it is waited for, and what it raised comes through."""
        with meanwhile(fleet.run, fleet.stop):
            yield fleet

    def heard_of(self, happening: EventType, worker: str | None = None) -> list[FleetEvent]:
        """What fleets have said, but for those with an `on_event` of their own."""
        return [e for e in list(self.heard) if e.happening is happening and worker in (None, e.worker)]

    def winner(self, trial_id: str) -> tuple[int, str]:
        """The attempt and the worker behind a trial's end."""
        won = Ledger(self.run_folder / LEDGER_FILE).entries[trial_id].winner
        assert won is not None
        return won.number, won.worker

    def ledger_lines(self, event: str) -> list[dict[str, object]]:
        lines = (self.run_folder / LEDGER_FILE).read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def ends(self) -> dict[str, str]:
        """Each trial's end, having checked the promises that hold for every run whatever befell it."""
        ledger = Ledger(self.run_folder / LEDGER_FILE)
        reopened = [line["trial_id"] for line in self.ledger_lines("reopened")]
        ended = [line["trial_id"] for line in self.ledger_lines("ended")]
        for trial_id, entry in ledger.entries.items():
            assert entry.end is not None, f"{trial_id} has no end"
            assert ended.count(trial_id) == reopened.count(trial_id) + 1, f"{trial_id}: not exactly one end"
            path = self.run_folder / "trials" / trial_id / "result.json"
            if entry.end.value == "SUCCEEDED" or path.exists():
                result = TrialResult.read(path)
                assert entry.winner is not None
                assert (result.trial_id, result.attempt) == (trial_id, entry.winner.number)
                assert result.status is entry.end
        return {trial_id: entry.end.value for trial_id, entry in ledger.entries.items() if entry.end is not None}

    def reasons(self) -> dict[str, str | None]:
        ledger = Ledger(self.run_folder / LEDGER_FILE)
        return {trial_id: entry.reason for trial_id, entry in ledger.entries.items()}


def run_fake_bench(
    host: Host, planned: PlannedTrial, attempt: int, folder: str, *, log: str, bench: str = str(FAKE_BENCH)
) -> Command:
    """What starts the stand-in bench there; it notes in `log` what it does."""
    flags = {
        "--trial": f"{folder}/{TRIAL_FILE}",
        "--out": f"{folder}/{OUT_FOLDER}",
        "--trial-id": planned.trial_id,
        "--worker": host.name,
        "--run-id": "r1",
        "--attempt": str(attempt),
    }
    words = [word for pair in flags.items() for word in pair]
    return Command(argv=(*host.python, "-S", "-B", bench, "run", *words), environment={"FAKE_BENCH_LOG": log})


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


class Looking(Agent):
    """Notes in the stand-in bench's log that the fleet is about to look for an attempt's result on the shared volume.

    The log is appended to by everybody, so its order says which successes a look had to find, by no clock.
    """

    def __init__(self, host: Host, log: Path) -> None:
        super().__init__(host)
        self._log = log

    def raw(self, verb: str, arguments: dict[str, Any], **more: Any) -> None:
        place = Path(arguments.get("root", ""))
        if verb == "send" and place.name != OUT_FOLDER:
            trial_id, _, attempt = place.name.rpartition(".")
            with self._log.open("a") as log:
                log.write(f"looks {trial_id} {attempt} {self.host.name}\n")
        super().raw(verb, arguments, **more)


def started_after_success(lines: Sequence[str]) -> list[str]:
    """Trials with a start that a look for an earlier attempt's success should have kept from being made.

    That is one after a success for which its worker had looked too, or had not looked although the attempt that
    succeeded is the older one. A success between look and start is not the fleet's fault: an attempt on a host that is
    cut off cannot be told from a dead one. The lines are in the order in which it happened.
    """
    succeeded: dict[str, set[str]] = defaultdict(set)
    seen: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)  # by trial and worker: which attempts' successes
    again = []
    for line in lines:
        word, trial_id, attempt, worker = line.split()
        looked = seen[trial_id, worker]
        if word == "succeeded":
            succeeded[trial_id].add(attempt)
        elif word == "looks":
            looked[attempt] = attempt in succeeded[trial_id]
        elif any(looked.get(one, int(one) < int(attempt)) for one in succeeded[trial_id] - {attempt}):
            again.append(trial_id)
    return again


@dataclasses.dataclass(kw_only=True)
class CuttableHost:
    """A host behind a wire that tests can cut: everything else is the real host's.

    `plugged` False: nothing reaches it, and streams that are open break at their next piece. `cuts`: how many bytes of
    its output each coming command may still deliver (None: all). `garble` sees every piece on its way.
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

    def run(self, command: Command, **how: Unpack[RunOptions]) -> Completed:
        self.before(command)
        self._check()
        left = next(self.cuts, None)
        gathered = bytearray()
        on_stdout = how.get("on_stdout")

        def hear(piece: bytes) -> None:
            nonlocal left
            self._check()
            piece = self.garble(command, piece)
            kept = piece if left is None else piece[:left]
            (gathered.extend if on_stdout is None else on_stdout)(kept)
            if left is not None:
                left -= len(kept)
                if len(kept) < len(piece):
                    raise HostUnreachable(f"{self.name}: the stream was cut")

        completed = self.host.run(command, **how | {"on_stdout": hear})
        self._check()
        return dataclasses.replace(completed, stdout=bytes(gathered))

    def _check(self) -> None:
        if not self.plugged:
            raise HostUnreachable(f"{self.name}: unplugged")


class _Fate:
    """Kills this process at its n-th moment: a command sent, a piece heard, a ledger line begun or written."""

    def __init__(self, moments: int) -> None:
        self._left, self._lock = moments, threading.Lock()

    def moment(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def operate(folder: Path, workers: int, moments: int) -> None:
    """Resume the run in `folder` until it is done or, `moments` from now, this process dies (0: it does not)."""
    fate, chooser = _Fate(moments), random.Random(moments)

    def sent(_: Command) -> None:
        fate.moment()

    def heard(_: Command, piece: bytes) -> bytes:
        fate.moment()
        return piece

    real_write, real_fsync = os.write, os.fsync

    def write(handle: int, content: bytes) -> int:
        if fate._left == 1 and bytes(content[:7]) == b'{"time"':
            real_write(handle, content[: chooser.randrange(len(content))])  # a torn line is what a crash may leave
        fate.moment()
        return real_write(handle, content)

    def fsync(handle: int) -> None:
        real_fsync(handle)
        fate.moment()

    os.write, os.fsync = write, fsync  # type: ignore[assignment]
    local = LocalFleet(folder)
    hosts = [CuttableHost(host=host, garble=heard, before=sent) for host in local.hosts(workers)]
    local.fleet(hosts).run()


if __name__ == "__main__":
    operate(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
