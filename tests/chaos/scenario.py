"""Random scenarios: one command at a time under faults or signals, with checks that hold for every command.

    run_scenario(target, seed=7, steps=20)
    finish(target)

A target runs the commands, injects the faults and checks the state after each. Without faults, the same commands must
then succeed.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.over_pods import PodsTarget

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


def run_scenario(target: PodsTarget, seed: int, steps: int) -> None:
    """Run this many steps. Raises AssertionError with the command at the first broken invariant."""
    rng = random.Random(seed)
    print(f"seed {seed}", flush=True)
    for number in range(1, steps + 1):
        command = target.next_command(rng)
        kill = rng.choice(KILLS) if rng.random() < 0.25 else None
        began = time.monotonic()
        with target.injecting_faults(rng) as fallen:
            done = run_command(target, command, kill=kill, after_sec=rng.uniform(0.2, 10.0))
        print(f"{number}. {done} [{time.monotonic() - began:.0f} s; {fallen() or 'no fault'}]", flush=True)
        with with_output(done):
            target.check(done)


def finish(target: PodsTarget) -> None:
    """Finish interrupted work after any number of steps. Raises AssertionError if it does not succeed."""
    target.finish(lambda *command: _run_until_success(target, command))
    print("finished", flush=True)


def run_command(
    target: PodsTarget, command: Sequence[str], *, kill: signal.Signals | None = None, after_sec: float = 0.0
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


def _run_until_success(world: PodsTarget, command: tuple[str, ...]) -> CommandResult:
    """Run a command until it succeeds: leftovers of a killed one may still block it. Asserts that it does."""
    for _ in range(MAX_TRIES):
        done = run_command(world, command)
        print(f"   {done}", flush=True)
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
