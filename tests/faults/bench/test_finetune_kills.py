"""The promise: a training that is killed anywhere ends with the adapter of one that nobody touched, bit by bit.

Here with a few moments drawn anew from one seed; `python -m tests.support.kill_points 200` is the same with 200.
"""

import json
import subprocess

import pytest

pytestmark = pytest.mark.slow
POINTS = 6


def test_killed_anywhere_it_ends_with_the_same_adapter(bench_environment, bench_server):
    words = ("-m", "tests.support.kill_points", str(POINTS), "--seed", "7")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with bench_server.start(*words, env=bench_environment, **pipes) as process:
        said, complaint = process.communicate(timeout=280)
    assert process.returncode == 0, complaint[-2000:] + said
    told = json.loads(said)
    befell = told["found"]
    assert befell.pop(told["wanted"]) == POINTS
    assert befell.keys() <= {"killed: moment", "killed: write", "killed: full disk", "damaged"}
    assert sum(befell.values()) > 0
