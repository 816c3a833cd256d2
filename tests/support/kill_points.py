"""`python -m tests.support.kill_points 200 [--seed 1]`: a short training, killed at so many moments of its life.

Each moment: a forked copy of one warmed process trains, and is killed by SIGKILL, half of them after a random time and
half just before a random sync, rename or removal of a file; some a second or third time. Then it trains to the end. The
adapter must be, bit by bit, the one of a training that nobody touched. Prints one JSON line with what was found.

Not covered: more than one rank; a machine that loses what was written and not synced.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import stack
from tests.support import tiny_training
from tests.support.tiny_training import Lab, in_child

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


def ended(pid: int) -> int:
    """How a child ended: its exit code, or less than 0 for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


def kill_and_finish(lab: Lab, folder: Path, chooser: random.Random, quiet_sec: float, writes: int) -> tuple[str, int]:
    """(the adapter's digest, how often it was really killed)."""
    folder.mkdir()
    killed = 0
    for _ in range(chooser.choice((1, 1, 1, 2, 3))):

        def train() -> None:
            lab.train(folder)

        if chooser.random() < 0.5:
            pid = in_child(train)
            time.sleep(chooser.uniform(0.0, quiet_sec))
            os.kill(pid, signal.SIGKILL)
        else:
            pid = in_child(dying_at(chooser.randrange(writes), train))
        killed += ended(pid) == -signal.SIGKILL
    code = ended(in_child(lambda: lab.train(folder)))
    found = digest(folder) if code == 0 else f"exit code {code}"
    shutil.rmtree(folder)
    return found, killed


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("points", type=int)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    modules, chooser = stack.load(), random.Random(arguments.seed)
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
        found: dict[str, int] = {}
        killed = 0
        for number in range(arguments.points):
            one, times = kill_and_finish(lab, here / f"killed-{number}", chooser, quiet_sec, writes)
            found[one] = found.get(one, 0) + 1
            killed += times
    seconds = round(time.monotonic() - start, 1)
    print(json.dumps({"wanted": wanted, "found": found, "killed": killed, "seconds": seconds}))
    return 0 if list(found) == [wanted] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
