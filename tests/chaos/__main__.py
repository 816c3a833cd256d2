"""python -m tests.chaos --seed S --minutes M [--over pods|vm]: one seed after the other until the time is up.

Needs what the tests' own cluster and build VM need (`make system`), and root. Each step is a line; the first thing that
is untrue ends the walk with exit 1, its seed, and all that the command said.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import over_pods, over_vm
from tests.chaos.scenario import settle, walk

WORLDS = {"pods": over_pods.running, "vm": over_vm.running}
STEPS = 12  # of one seed


def until(deadline: float) -> Iterator[object]:
    for step in range(STEPS):
        if time.monotonic() > deadline:
            return
        yield step


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long; what has begun is brought to its end")
    parser.add_argument("--over", choices=sorted(WORLDS), default="pods", help="deploy, bench, collect; or build, push")
    given = parser.parse_args()
    seed, deadline = given.seed, time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, WORLDS[given.over](Path(folder)) as world:
        while time.monotonic() < deadline:
            say(f"seed {seed}")
            walk(world, random.Random(seed), go_on=until(deadline), say=say)
            settle(world, say=say)
            seed += 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as untrue:
        sys.exit(str(untrue))
    except pytest.skip.Exception as missing:
        sys.exit(f"cannot be walked here: {missing}")
