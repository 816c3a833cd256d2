"""A result whose writer is killed at any point is either complete or absent."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

ROUNDS = 100


def test_a_writer_killed_at_random_points_never_leaves_a_partial_result(tmp_path: Path, bench_environment):
    script = ROOT / "tests" / "support" / "hosts" / "kill_writers.py"
    argv = (sys.executable, str(script), str(tmp_path), str(ROUNDS), "20260101")
    done = subprocess.run(argv, env=bench_environment, capture_output=True, text=True, timeout=240, check=True)
    report = json.loads(done.stdout)
    assert set(report["found"]) <= {"whole", "absent"}, report
    assert sum(report["found"].values()) == ROUNDS
    assert report["found"]["whole"] > 0
    # The kills were effective: many writers left the temporary file that they were writing.
    assert report["killed_inside_a_write"] > ROUNDS // 10
