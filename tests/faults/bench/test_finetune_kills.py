"""A training that is killed at any point ends with the same adapter as an undisturbed one, bit by bit.

Uses the first points of a seed, which have every kind of fault; `python -m tests.support.kill_points 200` does the same
with 200.
"""

import json
import subprocess

import pytest

pytestmark = pytest.mark.slow
POINTS = 2


def test_a_training_killed_at_any_point_ends_with_the_same_adapter(bench_environment, bench_server):
    argv = ("-m", "tests.support.kill_points", str(POINTS), "--seed", "7")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server.start(*argv, env=bench_environment, **pipes) as process:
        out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err[-2000:] + out
    report = json.loads(out)
    outcomes = report["found"]
    assert (report["points"], outcomes.pop("same")) == (POINTS, POINTS)
    assert outcomes.keys() <= {"killed: moment", "killed: write", "killed: full disk", "damaged"}
    assert sum(outcomes.values()) > 0
