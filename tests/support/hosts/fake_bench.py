"""Fake `python -m bench run` for tests of the fleet: same flags, files and exit codes, without torch.

The first word of the trial's name selects its behaviour (BEHAVIOURS below). Each start and each success appends one
line to the file FAKE_BENCH_LOG, so that tests can count them. `slow` waits for the file FAKE_BENCH_LOG + ".go" (every
attempt) or ".go.N" (attempt N).

It starts some hundred times per test run, so it does not import the bench, which took three quarters of its time. Each
fleet validates its records with `bench.records.TrialResult.read`.

Not covered: measurements, memory, telemetry, the trial's own deadline, reading model or data, large results, and a
process that needs seconds to exit after it has written its result.
"""

import hashlib
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

PROGRESS_FILE, RESULT_FILE, EXIT_NOT_WRITTEN = "progress.json", "result.json", 74  # as in bench.records.status
MAX_LIFETIME_SEC = 300.0  # bounds what a broken test may leave running


class StopRequested(Exception):
    """Raised by the signal handlers."""

    def __init__(self, status: str) -> None:
        self.end = status


class Bench:
    def __init__(self, flags: dict[str, str]) -> None:
        self.flags = flags
        self.out, self.trial_id = flags["--out"], flags["--trial-id"]
        with open(flags["--trial"], encoding="utf-8") as file:
            self.trial = json.load(file)
        self.log = os.environ["FAKE_BENCH_LOG"]
        self.began = time.monotonic()
        self.started_before = self.count_starts()

    def count_starts(self) -> int:
        if not os.path.exists(self.log):
            return 0
        with open(self.log, encoding="utf-8") as log:
            return sum(line.split()[:2] == ["started", self.trial_id] for line in log)

    def log_event(self, word: str) -> None:
        handle = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, f"{word} {self.trial_id} {self.flags['--attempt']} {self.flags['--worker']}\n".encode())
        os.close(handle)

    def write_file(self, name: str, document: object) -> None:
        """Write a file of the trial atomically."""
        temporary = f"{self.out}/.{name}.{os.getpid()}.part"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(json.dumps(document))
        os.replace(temporary, f"{self.out}/{name}")

    def has_result(self) -> bool:
        return os.path.exists(f"{self.out}/{RESULT_FILE}")

    def step(self, number: int, steps: int, pause_sec: float) -> None:
        elapsed = time.monotonic() - self.began
        if elapsed > MAX_LIFETIME_SEC:
            raise SystemExit("the test that started this has not stopped it")
        progress = {"phase": "measure", "step": number, "steps": steps, "elapsed_sec": elapsed, "samples_per_sec": 1.5}
        try:  # noqa: SIM105 - contextlib is not imported
            self.write_file(PROGRESS_FILE, progress)
        except OSError:  # like the bench: a failed progress update must not end a trial
            pass
        time.sleep(pause_sec)

    def write_result(self, end: str, reason: str | None, **more: str) -> int:
        result = {
            "kind": "trial_result",
            "schema_version": 2,
            "version": "2.0.0",
            "trial_id": self.trial_id,
            "trial": self.trial,
            "status": end,
            "reason": reason,
            "worker": self.flags["--worker"],
            "run_id": self.flags["--run-id"],
            "attempt": int(self.flags["--attempt"]),
            **more,
        }
        sealed = json.dumps(result, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.write_file(RESULT_FILE, {**result, "sha256": hashlib.sha256(sealed.encode()).hexdigest()})
        if end == "SUCCEEDED":
            self.log_event("succeeded")
        return {"SUCCEEDED": 0, "CANCELLED": 130, "PREEMPTED": 143}.get(end, 1)


# --- behaviours: each returns the exit code ---------------------------------------------------------------------------


def fine(bench: Bench) -> int:
    for number in range(1, 4):
        bench.step(number, 3, 0.0)
    return bench.write_result("SUCCEEDED", None)


def steps(bench: Bench) -> int:
    """Run for 0.3 s, long enough to kill an operator meanwhile."""
    for number in range(1, 16):
        bench.step(number, 15, 0.02)
    return bench.write_result("SUCCEEDED", None)


def slow(bench: Bench) -> int:
    """Run until the test creates the `.go` file."""
    number, go = 0, f"{bench.log}.go"
    while not os.path.exists(go) and not os.path.exists(f"{go}.{bench.flags['--attempt']}"):
        number += 1
        bench.step(number, 10_000, 0.1)
    return bench.write_result("SUCCEEDED", None)


def crash(bench: Bench) -> int:
    bench.step(1, 3, 0.0)
    raise RuntimeError("the loss is not finite")


def exit_2(bench: Bench) -> int:
    sys.stderr.write(f"{bench.trial['model']}: no such folder\n")
    return 2


def killed(bench: Bench) -> "NoReturn":
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
    return bench.write_result("OUT_OF_MEMORY", "CUDA out of memory in phase measure")


def oom_once(bench: Bench) -> int:
    return fine(bench) if bench.started_before else oom_result(bench)


def faulty_once(bench: Bench) -> int:
    if bench.started_before:
        return fine(bench)
    return bench.write_result("LOST", "GPU 0: XID 79", reason_code="gpu_fault")


def torn_result(bench: Bench) -> int:
    code = bench.write_result("SUCCEEDED", None)
    path = f"{bench.out}/{RESULT_FILE}"
    os.truncate(path, os.path.getsize(path) // 2)
    return code


def success_then_lingers(bench: Bench) -> int:
    """Write the result and exit late, as torch does."""
    bench.write_result("SUCCEEDED", None)
    return slow(bench)


BEHAVIOURS: "dict[str, Callable[[Bench], int]]" = {
    act.__name__.replace("_", "-"): act
    for act in (
        *(fine, steps, slow, crash, exit_2, killed, killed_once, preempted_once, oom_result),
        *(oom_once, faulty_once, torn_result, success_then_lingers),
    )
}


def main() -> int:
    verb, *arguments = sys.argv[1:]
    flags = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert verb == "run"
    assert {*flags} == {"--trial", "--out", "--trial-id", "--worker", "--run-id", "--attempt"}
    os.makedirs(flags["--out"], exist_ok=True)
    bench = Bench(flags)

    def leave(number: int, _frame: object) -> "NoReturn":
        raise StopRequested("CANCELLED" if number == signal.SIGINT else "PREEMPTED")

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)
    bench.log_event("started")
    try:
        return BEHAVIOURS[bench.trial["name"].split()[0]](bench)
    except StopRequested as ended:
        if bench.has_result():
            return 130
        return bench.write_result(ended.end, f"told to stop: {ended.end}")
    except OSError as error:
        sys.stderr.write(f"{bench.out}: the result could not be written: {error.strerror}\n")
        return EXIT_NOT_WRITTEN


if __name__ == "__main__":
    sys.exit(main())
