"""python -m tests.chaos --seed S --minutes M: one seed after the other until the time is over.

Needs root and the packages of the tests' cluster (`make system`). Each step is a line; the first broken
invariant ends the run with exit 1, the seed and the command's output. Exit 2: no seed was walked.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.records.status import ExitCode
from tests.chaos import over_pods
from tests.chaos.scenario import finish, run_scenario


def until(deadline: float, steps: int) -> Iterator[object]:
    for step in range(steps):
        if time.monotonic() > deadline:
            return
        yield step


def log(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit; started work is finished")
    parser.add_argument("--steps", type=int, default=12, help="commands for each seed (default: 12)")
    arguments = parser.parse_args(argv)
    seed, deadline = arguments.seed, time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, over_pods.running(Path(folder)) as world:
        while time.monotonic() < deadline:
            log(f"seed {seed}")
            run_scenario(world, random.Random(seed), go_on=until(deadline, arguments.steps), log=log)
            finish(world, log=log)
            seed += 1
    if seed == arguments.seed:
        print(f"--minutes: {arguments.minutes:g} are shorter than the start-up; no seed was walked", file=sys.stderr)
        return ExitCode.BAD_INPUT
    return ExitCode.OK


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AssertionError as untrue:
        sys.exit(str(untrue))
    except pytest.skip.Exception as missing:
        sys.exit(f"cannot run here: {missing}")
