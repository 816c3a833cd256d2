"""Kill a process that writes results at random points; print the states of the file as one JSON line.

python kill_writers.py FOLDER ROUNDS SEED

Each round forks a child that writes results of changing length in a loop, kills it with SIGKILL after a random part of
20 ms, and reads result.json as `inv collect` would.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from bench.records import suite
from bench.records.checksummed import ResultError
from bench.records.paths import RESULT_FILE
from bench.records.result import TrialResult
from bench.records.status import TrialStatus


def write_until_killed(folder: Path) -> None:
    trial = suite("quick", "tiny", "models/none", "data/none.jsonl")[0]
    attempt = 0
    while True:
        attempt += 1
        lines = [f"line {number} of attempt {attempt}" for number in range(attempt * 37 % 1000)]
        result = TrialResult(
            trial_id="t", trial=trial, status=TrialStatus.FAILED, reason="a test", attempt=attempt, log_tail=lines
        )
        result.write(folder)


def read(folder: Path) -> str:
    if not (folder / RESULT_FILE).exists():
        return "absent"
    try:
        result = TrialResult.read(folder / RESULT_FILE)
    except ResultError as error:
        return f"torn: {error}"
    return "whole" if len(result.log_tail) == result.attempt * 37 % 1000 else "mixed"


def main(root: Path, rounds: int, seed: int) -> None:
    chooser = random.Random(seed)
    states: dict[str, int] = {}
    parts = 0
    for round_ in range(rounds):
        folder = root / str(round_)
        folder.mkdir()
        child = os.fork()
        if child == 0:
            write_until_killed(folder)
        time.sleep(chooser.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = read(folder)
        states[state] = states.get(state, 0) + 1
        parts += any(entry.name.endswith(".part") for entry in folder.iterdir())
    print(json.dumps({"found": states, "killed_inside_a_write": parts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
