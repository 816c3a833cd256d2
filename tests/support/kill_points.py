"""`python -m tests.support.kill_points 200 [--seed 1]`: a short training, killed at so many moments of its life.

Each moment: a forked copy of one warmed process trains, and is killed by SIGKILL: after a random time, just before a
random sync, rename or removal of a file, or after a random time in which the disk was full for some syncs; some a
second or third time. In between the clock is set back or forth, and the newest checkpoint may lose a byte or have a bit
flipped. Then it trains to the end. The adapter must be, bit by bit, the one of a training that nobody touched. Prints
one JSON line with what was found.

Not covered: more than one rank; a machine that loses what was written and not synced; a disk that is really full
(tests/faults/bench/test_bench_ends.py has one).
"""

import argparse
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.workloads.finetune.checkpoints import checkpoint
from tests.support import tiny_training
from tests.support.tiny_training import Lab, in_child

CLOCK_SEC = 86_400.0  # the clock is set back or forth by so much at most
WRITES = ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"))


def dying_at(number: int, work: Callable[[], Any]) -> Callable[[], Any]:
    """`work`, killed just before its `number`-th write."""

    left = number

    def watched() -> None:
        for owner, name in WRITES:
            setattr(owner, name, counted(getattr(owner, name)))
        work()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*given: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)

        return instead

    return watched


def on_a_full_disk(number: int, syncs: int, work: Callable[[], Any]) -> Callable[[], Any]:
    """`work`, for which the disk is full from the `number`-th sync on, for so many `syncs`."""
    done, real = 0, os.fsync

    def instead(handle: int) -> None:
        nonlocal done
        done += 1
        if number <= done < number + syncs:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    def full() -> None:
        os.fsync = instead
        work()

    return full


def at_another_time(offset_sec: float, work: Callable[[], Any]) -> Callable[[], Any]:
    """`work`, by a clock that is so much ahead."""
    real = time.time

    def skewed() -> None:
        time.time = lambda: real() + offset_sec
        work()

    return skewed


def damage(checkpoints: Path, chooser: random.Random) -> bool:
    """Cut the newest checkpoint by a byte or flip a bit of it, if the one before it is whole."""
    newest = checkpoint.listed(checkpoints)[:2]
    try:
        checkpoint.verified(newest[1])
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


def ended(pid: int) -> int:
    """How a child ended: its exit code, or less than 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


def kill_and_finish(lab: Lab, folder: Path, chooser: random.Random, quiet_sec: float, writes: int) -> Counter[str]:
    """Its adapter's digest, and what befell it on the way, each as often as it did."""
    folder.mkdir()
    found = Counter[str]()

    def clocked() -> Callable[[], Any]:
        return at_another_time(chooser.uniform(-CLOCK_SEC, CLOCK_SEC), lambda: lab.train(folder))

    for _ in range(chooser.choice((1, 1, 1, 2, 3))):
        way = chooser.choice(("moment", "write", "full disk"))
        if way == "write":
            pid = in_child(dying_at(chooser.randrange(writes), clocked()))
        else:
            is_full = way == "full disk"
            work = (
                on_a_full_disk(chooser.randrange(writes), chooser.randrange(1, 9), clocked()) if is_full else clocked()
            )
            pid = in_child(work)
            time.sleep(chooser.uniform(0.0, quiet_sec))
            os.kill(pid, signal.SIGKILL)
        found[f"killed: {way}"] += ended(pid) == -signal.SIGKILL
        if chooser.random() < 0.5:
            found["damaged"] += damage(folder / "checkpoints", chooser)
    code = ended(in_child(clocked()))
    found[digest(folder) if code == 0 else f"exit code {code}"] += 1
    shutil.rmtree(folder)
    return found


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("points", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    modules, chooser = torch_stack.load(), random.Random(arguments.seed)
    modules.torch.set_num_threads(1)  # a fork does not have its parent's other threads, and would wait for them
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        folder = tiny_training.make_folder(modules, here / "models" / "tiny--tiny", layers=1)
        data = tiny_training.make_data(here / "chats.jsonl", lines=24)
        trial = tiny_training.plan(folder, data, training={"rows_per_step": 2})
        lab = Lab.of(modules, trial).warmed()
        (here / "quiet").mkdir()
        start = time.monotonic()
        assert ended(in_child(lambda: lab.train(here / "quiet"))) == 0
        quiet_sec, wanted = time.monotonic() - start, digest(here / "quiet")
        writes = 12 * 6  # of six steps, each with a checkpoint of seven files; beyond the last one nothing dies
        found = Counter[str]()
        for number in range(arguments.points):
            found += kill_and_finish(lab, here / f"killed-{number}", chooser, quiet_sec, writes)
    seconds = round(time.monotonic() - start, 1)
    print(json.dumps({"wanted": wanted, "found": dict(found), "seconds": seconds}))
    return 0 if found[wanted] == arguments.points else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
