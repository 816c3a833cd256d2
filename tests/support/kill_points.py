"""`python -m tests.support.kill_points 200 [--seed 1] [--jobs 16]`: kill a short training at 200 points.

A point is one training in a folder of its own; its faults follow from the seed and the point's number. A forked copy
of one warmed process trains and is killed with SIGKILL: after a random time, just before a random sync, rename or
removal of a file, or after a random time during which some syncs failed with a full disk; some are killed two or three
times. In between, the clock is changed, and the newest checkpoint may lose a byte or have a bit flipped. Then the
training runs to the end. Its adapter and its scores, before and after, must be bit-identical to those of an undisturbed
training, whose time is that within which the kills fall.

Prints one JSON line with the outcomes. Exit code 1 if an outcome differs.

Not covered: more than one rank; a machine that loses unsynced writes; a disk that is really full
(tests/faults/bench/test_bench_ends.py has one).
"""

import argparse
import errno
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.workloads.finetune import checkpoint
from tests.support import tiny_training
from tests.support.tiny_training import Lab, in_child

MAX_CLOCK_OFFSET_SEC = 86_400.0
# Six steps, each with a checkpoint of four or five files. Beyond the last write the training is not killed.
WRITE_COUNT = 18 * 6
OUTCOMES_FILE = "outcomes.jsonl"
WRITES = ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"))
SCORE_FILE = """
def score(prompt, answer, expected):
    return next((digit == expected[0] for digit in answer if digit.isdecimal()), False)
"""


def killed_at_write(
    number: int, work: Callable[[], Any], writes: Iterable[tuple[Any, str]] = WRITES
) -> Callable[[], Any]:
    """Wrap `work` so that it is killed just before its write with the index `number`."""
    left = number

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return counting

    return with_replaced({(owner, name): counted(getattr(owner, name)) for owner, name in writes}, work)


def with_full_disk(number: int, syncs: int, work: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap `work` so that `syncs` calls of fsync, from number `number` on, fail with ENOSPC."""
    calls, real = itertools.count(1), os.fsync

    def fail_if_full(handle: int) -> None:
        if number <= next(calls) < number + syncs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    return with_replaced({(os, "fsync"): fail_if_full}, work)


def with_replaced(functions: Mapping[tuple[Any, str], Any], work: Callable[[], Any]) -> Callable[[], Any]:
    """Wrap `work`, in a child process, so that these functions of modules are replaced."""

    def replaced() -> None:
        for (owner, name), function in functions.items():
            setattr(owner, name, function)
        work()

    return replaced


def damage(checkpoints: Path, chooser: random.Random) -> bool:
    """Remove a byte of the newest checkpoint or flip a bit, if the one before it is intact. Return whether it did."""
    newest = checkpoint.list_checkpoints(checkpoints)[:2]
    try:
        checkpoint.verify(newest[1])
    except (IndexError, checkpoint.BrokenCheckpoint):
        return False
    path = chooser.choice(sorted(newest[0].iterdir()))
    content = bytearray(path.read_bytes())
    if chooser.random() < 0.5:
        content.pop()
    else:
        content[chooser.randrange(len(content))] ^= 1 << chooser.randrange(8)
    path.write_bytes(content)
    return True


def wait_for_exit(pid: int) -> int:
    """Wait for a child and return its exit code; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(folder: Path) -> str:
    """Return the digest of adapter and scores."""
    parts = (folder / "adapter" / "adapter_model.safetensors", folder / tiny_training.SCORE_FILE)
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()


def kill_and_finish(lab: Lab, folder: Path, chooser: random.Random, quiet_sec: float) -> Counter[str]:
    """Train with kills and damage. Count these faults, and the resulting adapter's digest or the exit code."""
    folder.mkdir()
    outcomes = Counter[str]()

    def clocked() -> Callable[[], Any]:
        offset_sec, real = chooser.uniform(-MAX_CLOCK_OFFSET_SEC, MAX_CLOCK_OFFSET_SEC), time.time
        return with_replaced({(time, "time"): lambda: real() + offset_sec}, lambda: lab.train(folder))

    for _ in range(chooser.choice((1, 1, 1, 2, 3))):
        fault = chooser.choice(("moment", "write", "full disk"))
        if fault == "write":
            pid = in_child(killed_at_write(chooser.randrange(WRITE_COUNT), clocked()))
        else:
            work = clocked()
            if fault == "full disk":
                work = with_full_disk(chooser.randrange(WRITE_COUNT), chooser.randrange(1, 9), work)
            pid = in_child(work)
            time.sleep(chooser.uniform(0.0, quiet_sec))
            os.kill(pid, signal.SIGKILL)
        outcomes[f"killed: {fault}"] += wait_for_exit(pid) == -signal.SIGKILL
        if chooser.random() < 0.5:
            outcomes["damaged"] += damage(folder / "checkpoints", chooser)
    code = wait_for_exit(in_child(clocked()))
    outcomes[digest(folder) if code == 0 else f"exit code {code}"] += 1
    shutil.rmtree(folder)
    return outcomes


def train_undisturbed(lab: Lab, folder: Path) -> tuple[float, str]:
    """Train without a fault; return the seconds and the digest."""
    folder.mkdir()
    start = time.monotonic()
    assert wait_for_exit(in_child(lambda: lab.train(folder))) == 0
    return time.monotonic() - start, digest(folder)


def run_points(lab: Lab, folder: Path, numbers: Iterable[int], seed: int, quiet_sec: float) -> None:
    """Run points one after the other, each with a line of its outcomes in the folder's file."""
    folder.mkdir()
    with (folder / OUTCOMES_FILE).open("w", encoding="utf-8", buffering=1) as file:
        for number in numbers:
            outcomes = kill_and_finish(lab, folder / f"killed-{number}", random.Random(f"{seed}-{number}"), quiet_sec)
            file.write(json.dumps(outcomes) + "\n")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.kill_points")
    parser.add_argument("points", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args(argv)
    points, count = arguments.points, arguments.jobs
    modules, start = torch_stack.load(), time.monotonic()
    modules.torch.set_num_threads(1)  # a forked child would wait for its parent's other threads
    with tempfile.TemporaryDirectory() as folder_name:
        here = Path(folder_name)
        folder = tiny_training.make_folder(modules, here / "models" / "tiny--tiny", layers=1)
        data = tiny_training.make_data(here / "chats.jsonl", lines=24)
        (here / "digit.py").write_text(SCORE_FILE, encoding="utf-8")
        settings = {"rows_per_step": 2, "score": str(here / "digit.py")}
        trial = tiny_training.plan(folder, data, training=settings)
        lab = Lab.create(modules, trial).load_inputs()
        quiet_sec, wanted = train_undisturbed(lab, here / "quiet")
        train = partial(run_points, lab, seed=arguments.seed, quiet_sec=quiet_sec)
        jobs = [in_child(partial(train, here / f"job-{job}", range(job, points, count))) for job in range(count)]
        codes = [wait_for_exit(pid) for pid in jobs]
        lines = [line for path in here.glob(f"*/{OUTCOMES_FILE}") for line in path.read_text().splitlines()]
    outcomes = sum((Counter(json.loads(line)) for line in lines), Counter[str]())
    outcomes["same"] = outcomes.pop(wanted, 0)
    seconds = round(time.monotonic() - start, 1)
    print(json.dumps({"wanted": wanted, "points": len(lines), "found": outcomes, "seconds": seconds}))
    return 0 if not any(codes) and outcomes["same"] == points else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
