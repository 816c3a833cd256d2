"""Random scenarios: one command at a time under faults or signals, with checks that hold for every command.

    run_scenario(target, random.Random(7), go_on=iter(range(20)), log=print)
    finish(target, log=print)

A target runs the commands, injects the faults and checks the state after each. Without faults, the same commands must
then succeed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

CODES = (0, 1, 2, 3, 4, 130)
TIMEOUT_SEC = 600.0  # limit of one command under faults; its own timeouts are far shorter
MAX_MEMORY_BYTES = 500_000_000  # includes libraries that a forked command shares with its parent
KILLS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
MAX_TRIES = 6  # tries of a resumed command without faults


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """A finished command. `killed` is the signal that it was sent, or None."""

    command: tuple[str, ...]
    code: int
    out: str
    err: str
    killed: signal.Signals | None
    peak_bytes: int

    def __str__(self) -> str:
        last = (self.err.strip() or self.out.strip()).splitlines()[-1:]
        return f"inv {' '.join(self.command)}: {self.code} {''.join(last)[:300]}"


class ChaosTarget(Protocol):
    """System under test. Commands write below `folder`."""

    folder: Path

    def next_command(self, chooser: random.Random) -> tuple[str, ...]:
        """Choose the next command, and change the files and settings that it needs."""

    def start(self, command: Sequence[str], out: Path, err: Path) -> subprocess.Popen[str]:
        """Start `inv COMMAND` with its streams in these files."""

    def injecting_faults(self, chooser: random.Random) -> contextlib.AbstractContextManager[Callable[[], str]]:
        """Inject faults inside the block and repair all after it. Yields a function that lists the injected ones."""

    def check(self, done: CommandResult) -> None:
        """Assert the invariants after this command."""

    def finish(self, at_last: Callable[..., CommandResult]) -> None:
        """Finish all interrupted work without faults, and assert that it succeeds."""


class FaultThread:
    """Thread that injects `count` random faults, or until it is stopped, then repairs all of them.

    `pause_sec` are the shortest and the longest pause before a fault.
    """

    pause_sec: tuple[float, float]

    def __init__(self, rng: random.Random, count: int) -> None:
        self.rng, self._left = rng, count  # bounded: a slow machine would never finish
        self.injected: Counter[str] = Counter()
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._inject, daemon=True)
        self._failure: BaseException | None = None

    def faults_to_inject(self) -> list[Callable[[], None]]:
        """List the faults to choose from; a frequent one several times."""
        raise NotImplementedError

    def repair(self) -> None:
        """Repair all faults. Called when all are injected, and again at the end."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join(120)
        self.repair()
        if self._failure is not None:
            raise self._failure

    def describe(self) -> str:
        return ", ".join(sorted(name.strip("_") for name in self.injected.elements()))

    def inject(self, fault: Callable[[], None]) -> None:
        self.injected[fault.__name__] += 1
        fault()

    def wait(self, shortest_sec: float, longest_sec: float) -> bool:
        """Wait for a random time; return True at once when stopped."""
        return self.stopped.wait(self.rng.uniform(shortest_sec, longest_sec))

    def _inject(self) -> None:
        try:
            faults = self.faults_to_inject()
            while self._left and not self.wait(*self.pause_sec):
                self._left -= 1
                self.inject(self.rng.choice(faults))
            self.repair()
        except BaseException as error:  # noqa: BLE001 - raised again in the scenario's own thread
            self._failure = error


def run_scenario(
    target: ChaosTarget, rng: random.Random, *, go_on: Iterator[object], log: Callable[[str], None]
) -> None:
    """Run one step for each item of `go_on`. Raises AssertionError with the command at the first broken invariant."""
    for number, _ in enumerate(go_on, start=1):
        command = target.next_command(rng)
        kill = rng.choice(KILLS) if rng.random() < 0.25 else None
        began = time.monotonic()
        with target.injecting_faults(rng) as fallen:
            done = run_command(target, command, kill=kill, after_sec=rng.uniform(0.2, 10.0))
        log(f"{number}. {done} [{time.monotonic() - began:.0f} s; {fallen() or 'no fault'}]")
        with with_output(done):
            target.check(done)


def finish(target: ChaosTarget, *, log: Callable[[str], None]) -> None:
    """Finish interrupted work after any number of steps. Raises AssertionError if it does not succeed."""
    target.finish(lambda *command: _run_until_success(target, command, log))
    log("finished")


def run_command(
    target: ChaosTarget, command: Sequence[str], *, kill: signal.Signals | None = None, after_sec: float = 0.0
) -> CommandResult:
    """Run a command, kill it if asked to, and assert what holds for every command."""
    streams = target.folder / "out.txt", target.folder / "err.txt"
    process = target.start(command, *streams)
    began, peak, sent = time.monotonic(), 0, None
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration, IndexError):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max(peak, 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]))
        elapsed_sec = time.monotonic() - began
        if kill is not None and sent is None and elapsed_sec > after_sec:
            process.send_signal(sent := kill)
        if elapsed_sec > TIMEOUT_SEC:
            process.kill()
            raise AssertionError(f"inv {' '.join(command)}: no end after {TIMEOUT_SEC:.0f} s\n{streams[1].read_text()}")
        time.sleep(0.05)
    out, err = (stream.read_text(errors="replace") for stream in streams)
    done = CommandResult(command=tuple(command), code=process.wait(), out=out, err=err, killed=sent, peak_bytes=peak)
    with with_output(done):
        assert "Traceback" not in out + err
        assert done.code in CODES or (sent is not None and done.code == -sent), "unexpected exit code"
        assert done.code != 130 or sent is not None, "exit 130 without an interrupt"
        assert done.code in (0, 1, 130) or done.code < 0 or err.strip(), "no message"
        assert peak < MAX_MEMORY_BYTES, f"{peak:,} bytes of memory"
    return done


def _run_until_success(world: ChaosTarget, command: tuple[str, ...], say: Callable[[str], None]) -> CommandResult:
    """Run a command until it succeeds: leftovers of a killed one may still block it. Asserts that it does."""
    for _ in range(MAX_TRIES):
        done = run_command(world, command)
        say(f"   {done}")
        with with_output(done):
            world.check(done)
        if done.code == 0:
            return done
        assert done.code in (1, 3), f"{done}\n{done.err}\nrefused without a reason"
        time.sleep(1.0)
    raise AssertionError(f"{done}\n{done.out}\n{done.err}\nno success after {MAX_TRIES} tries without faults")


@contextlib.contextmanager
def with_output(done: CommandResult) -> Iterator[None]:
    """Add the command and its output to an AssertionError."""
    try:
        yield
    except AssertionError as untrue:
        raise AssertionError(f"{done}\n{done.out}\n{done.err}\nfailed: {untrue}") from untrue
