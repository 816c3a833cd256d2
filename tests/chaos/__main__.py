"""python -m tests.chaos --seed S --minutes M: one seed after the other until the time is over.

Needs root and the packages of the tests' cluster (`make system`). Each step is a line; the first broken
invariant ends the run with exit 1, the seed and the command's output.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.chaos.scenario import run_scenario, running


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit; a started seed is finished")
    parser.add_argument("--steps", type=int, default=12, help="commands for each seed (default: 12)")
    arguments = parser.parse_args()
    seed, deadline = arguments.seed, time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, running(Path(folder)) as target:
        while time.monotonic() < deadline:
            run_scenario(target, seed, arguments.steps)
            target.finish()
            seed += 1


if __name__ == "__main__":
    try:
        main()
    except AssertionError as untrue:
        sys.exit(str(untrue))
    except pytest.skip.Exception as missing:
        sys.exit(f"cannot run here: {missing}")
