"""The promise: a training that is killed anywhere ends with the adapter of one that nobody touched, bit by bit.

Here with a few moments drawn anew from one seed; `python -m tests.support.kill_points 200` is the same with 200.
"""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
POINTS = 8


def test_killed_anywhere_it_ends_with_the_same_adapter(bench_environment):
    argv = (sys.executable, "-m", "tests.support.kill_points", str(POINTS), "--seed", "7")
    done = subprocess.run(argv, env=bench_environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout
    found = json.loads(done.stdout)
    assert found["found"] == {found["wanted"]: POINTS}
    assert found["killed"] > 0
