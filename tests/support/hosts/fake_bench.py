"""Stands in for `python -m bench run` in tests of the fleet: same flags, same files, same exit codes, no torch.

What it does is the first word of its trial's name (BEHAVIOURS below). Each start and each success appends one line to
the file that FAKE_BENCH_LOG names, so that a test can count what really ran; `slow` waits for the file
FAKE_BENCH_LOG + ".go" (every attempt) or ".go.N" (attempt N). Starting it takes 0.1 s.

Not covered: measuring anything, memory, telemetry, the trial's own deadline, reading model or data, a result that is
large, a process that needs seconds to leave after its result is written.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.records import Trial
from bench.records.durable import write_atomic
from bench.records.layout import EXIT_NOT_WRITTEN, PROGRESS_FILE, RESULT_FILE
from bench.records.result import End, TrialResult
from bench.records.run import Progress
from bench.records.schema import to_json

LONGEST_LIFE_SEC = 300.0  # a test that goes wrong must not leave this running for ever


class Ended(Exception):
    """The signal handlers' way out of the work."""

    def __init__(self, end: End) -> None:
        self.end = end


class Bench:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.out = Path(flags.out)
        self.trial = Trial.read(Path(flags.trial))
        self.log = Path(os.environ["FAKE_BENCH_LOG"])
        self.began = time.monotonic()
        self.started_before = self.count_starts()

    def count_starts(self) -> int:
        if not self.log.exists():
            return 0
        return sum(line.split()[:2] == ["started", self.flags.trial_id] for line in self.log.read_text().splitlines())

    def note(self, word: str) -> None:
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, f"{word} {self.flags.trial_id} {self.flags.attempt} {self.flags.worker}\n".encode())
        os.close(handle)

    def step(self, number: int, steps: int, pause_sec: float) -> None:
        elapsed = time.monotonic() - self.began
        if elapsed > LONGEST_LIFE_SEC:
            raise SystemExit("the test that started this has forgotten it")
        progress = Progress(phase="measure", step=number, steps=steps, elapsed_sec=elapsed, samples_per_sec=1.5)
        with contextlib.suppress(OSError):  # as the real one: what only people watch must not end a trial
            write_atomic(self.out / PROGRESS_FILE, repr_json(to_json(progress)))
        time.sleep(pause_sec)

    def write(self, end: End, reason: str | None, trial_id: str | None = None) -> int:
        result = TrialResult(
            trial_id=trial_id or self.flags.trial_id,
            trial=self.trial,
            status=end,
            reason=reason,
            worker=self.flags.worker,
            run_id=self.flags.run_id,
            attempt=self.flags.attempt,
        )
        result.write(self.out)
        if end is End.SUCCEEDED:
            self.note("succeeded")
        return {End.SUCCEEDED: 0, End.CANCELLED: 130, End.PREEMPTED: 143}.get(end, 1)


def repr_json(document: object) -> bytes:
    import json

    return json.dumps(document).encode()


# --- behaviours: each returns the exit code ---------------------------------------------------------------------------


def fine(bench: Bench) -> int:
    for number in range(1, 4):
        bench.step(number, 3, 0.0)
    return bench.write(End.SUCCEEDED, None)


def steps(bench: Bench) -> int:
    """Long enough (0.3 s) for an operator to be killed while it runs."""
    for number in range(1, 16):
        bench.step(number, 15, 0.02)
    return bench.write(End.SUCCEEDED, None)


def slow(bench: Bench) -> int:
    """Until the test says go."""
    number, go = 0, bench.log.with_name(bench.log.name + ".go")
    while not go.exists() and not go.with_suffix(f".go.{bench.flags.attempt}").exists():
        number += 1
        bench.step(number, 10_000, 0.1)
    return bench.write(End.SUCCEEDED, None)


def hang(bench: Bench) -> int:
    """Deaf to INT and TERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        bench.step(1, 2, 0.2)


def crash(bench: Bench) -> int:
    bench.step(1, 3, 0.0)
    raise RuntimeError("the loss is not finite")


def exit_2(bench: Bench) -> int:
    sys.stderr.write(f"{bench.trial.model}: no such folder\n")
    return 2


def killed(bench: Bench) -> NoReturn:
    bench.step(2, 3, 0.0)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def killed_once(bench: Bench) -> int:
    return fine(bench) if bench.started_before else killed(bench)


def preempted_once(bench: Bench) -> int:
    if bench.started_before:
        return fine(bench)
    os.kill(os.getpid(), signal.SIGTERM)
    return slow(bench)


def oom_result(bench: Bench) -> int:
    return bench.write(End.OUT_OF_MEMORY, "CUDA out of memory in phase measure")


def wrong_result(bench: Bench) -> int:
    return bench.write(End.SUCCEEDED, None, trial_id="somebody-else")


def torn_result(bench: Bench) -> int:
    code = bench.write(End.SUCCEEDED, None)
    path = bench.out / RESULT_FILE
    os.truncate(path, path.stat().st_size // 2)
    return code


def says_done_leaves_nothing(bench: Bench) -> int:  # noqa: ARG001 - one signature for all
    return 0


def success_then_lingers(bench: Bench) -> int:
    """Writes its result, then takes its time to leave, as torch does."""
    bench.write(End.SUCCEEDED, None)
    return slow(bench)


BEHAVIOURS: dict[str, Callable[[Bench], int]] = {
    "fine": fine,
    "steps": steps,
    "slow": slow,
    "hang": hang,
    "crash": crash,
    "exit-2": exit_2,
    "killed": killed,
    "killed-once": killed_once,
    "preempted-once": preempted_once,
    "oom-result": oom_result,
    "wrong-result": wrong_result,
    "torn-result": torn_result,
    "says-done-leaves-nothing": says_done_leaves_nothing,
    "success-then-lingers": success_then_lingers,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["run"])
    for flag in ("--trial", "--out", "--trial-id", "--worker", "--run-id"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--attempt", type=int, required=True)
    flags = parser.parse_args()
    Path(flags.out).mkdir(parents=True, exist_ok=True)
    bench = Bench(flags)

    def leave(number: int, _frame: object) -> NoReturn:
        raise Ended(End.CANCELLED if number == signal.SIGINT else End.PREEMPTED)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    bench.note("started")
    try:
        return BEHAVIOURS[bench.trial.name.split()[0]](bench)
    except Ended as ended:
        if (bench.out / RESULT_FILE).exists():
            return 130
        return bench.write(ended.end, f"told to stop: {ended.end.value}")
    except OSError as error:
        sys.stderr.write(f"{bench.out}: the result could not be written: {error.strerror}\n")
        return EXIT_NOT_WRITTEN


if __name__ == "__main__":
    sys.exit(main())
