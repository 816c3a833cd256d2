"""One command at a time, disturbed or killed, and what holds for every command whatever befell it.

    walk(world, random.Random(7), go_on=iter(range(20)), say=print)
    settle(world, say=print)

A world types the commands, throws the faults and knows what must hold after each. Once nothing disturbs them any more,
the same commands must come to their ends.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CODES = (0, 1, 2, 3, 4, 130)
LONGEST_SEC = 600.0  # of one command under faults; their patience is set far below it
MOST_BYTES = 500_000_000  # of memory; libraries that a forked command shares with its parent are counted
KILLS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TRIES = 6  # of a command that goes on with what was disturbed, once nothing disturbs it


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that has ended. `killed` is the signal that it was sent, if it was sent one."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    killed: signal.Signals | None
    peak_bytes: int

    def __str__(self) -> str:
        last = (self.err.strip() or self.out.strip()).splitlines()[-1:]
        return f"inv {' '.join(self.words)}: {self.code} {''.join(last)[:300]}"


class World(Protocol):
    """What a walk is over. `folder` is the walk's own; what is typed writes below it."""

    folder: Path

    def draw(self, chooser: random.Random) -> tuple[str, ...]:
        """The next command; what it needs of changed files and settings is done."""

    def start(self, words: Sequence[str], out: Path, err: Path) -> subprocess.Popen[str]:
        """Type `inv WORDS`; both streams go into these files."""

    def disturbed(self, chooser: random.Random) -> contextlib.AbstractContextManager[Callable[[], str]]:
        """Within, faults fall; after it all is mended. Says what has fallen."""

    def check(self, done: Done) -> None:
        """Assert what must be true after this command, and of everything before it."""

    def settle(self, at_last: Callable[..., Done]) -> None:
        """Nothing disturbs any more: bring everything to its end, and assert that it gets there."""


def walk(world: World, chooser: random.Random, *, go_on: Iterator[object], say: Callable[[str], None]) -> None:
    """A step for each of `go_on`. Raises AssertionError, which names the command, at the first thing that is untrue."""
    for number, _ in enumerate(go_on, start=1):
        words = world.draw(chooser)
        kill = chooser.choice(KILLS) if chooser.random() < 0.25 else None
        began = time.monotonic()
        with world.disturbed(chooser) as fallen:
            done = type_it(world, words, kill=kill, after_sec=chooser.uniform(0.2, 10.0))
        say(f"{number}. {done} [{time.monotonic() - began:.0f} s; {fallen() or 'no fault'}]")
        with named(done):
            world.check(done)


def settle(world: World, *, say: Callable[[str], None]) -> None:
    """After any number of walks. Raises AssertionError where what was disturbed does not come to its end."""
    world.settle(lambda *words: _at_last(world, words, say))
    say("settled")


def type_it(world: World, words: Sequence[str], *, kill: signal.Signals | None = None, after_sec: float = 0.0) -> Done:
    """Type it, kill it if asked to, and assert what holds for every command."""
    streams = world.folder / "out.txt", world.folder / "err.txt"
    process = world.start(words, *streams)
    began, peak, sent = time.monotonic(), 0, None
    while process.poll() is None:
        with contextlib.suppress(OSError, StopIteration, IndexError):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            peak = max(peak, 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]))
        so_far = time.monotonic() - began
        if kill is not None and sent is None and so_far > after_sec:
            process.send_signal(sent := kill)
        if so_far > LONGEST_SEC:
            process.kill()
            raise AssertionError(f"inv {' '.join(words)}: no end after {LONGEST_SEC:.0f} s\n{streams[1].read_text()}")
        time.sleep(0.05)
    out, err = (stream.read_text(errors="replace") for stream in streams)
    done = Done(words=tuple(words), code=process.wait(), out=out, err=err, killed=sent, peak_bytes=peak)
    with named(done):
        assert "Traceback" not in out + err
        assert done.code in CODES or (sent is not None and done.code == -sent), "no exit code of ours"
        assert done.code != 130 or sent is not None, "nobody interrupted it"
        assert done.code in (0, 1, 130) or done.code < 0 or err.strip(), "it does not say why"
        assert peak < MOST_BYTES, f"{peak:,} bytes of memory"
    return done


def _at_last(world: World, words: tuple[str, ...], say: Callable[[str], None]) -> Done:
    """Type it until it ends well: what a kill has left running may still be in its way. Asserts that it does."""
    for _ in range(TRIES):
        done = type_it(world, words)
        say(f"   {done}")
        with named(done):
            world.check(done)
        if done.code == 0:
            return done
        assert done.code in (1, 3), f"{done}\n{done.err}\nrefused though nothing is wrong"
        time.sleep(1.0)
    raise AssertionError(f"{done}\n{done.out}\n{done.err}\nnot well after {TRIES} tries, though nothing is wrong")


@contextlib.contextmanager
def named(done: Done) -> Iterator[None]:
    """What is untrue is told with the command and all that it said."""
    try:
        yield
    except AssertionError as untrue:
        raise AssertionError(f"{done}\n{done.out}\n{done.err}\nuntrue: {untrue}") from untrue
