"""A result is there whole or not there, wherever its writer was killed."""

import json
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

ROUNDS = 200


def test_a_writer_killed_at_200_random_points_never_leaves_a_torn_result(tmp_path: Path, bench_environment):
    script = ROOT / "tests" / "support" / "hosts" / "kill_writers.py"
    argv = (sys.executable, str(script), str(tmp_path), str(ROUNDS), "20260101")
    done = subprocess.run(argv, env=bench_environment, capture_output=True, text=True, timeout=240, check=True)
    said = json.loads(done.stdout)
    assert set(said["found"]) <= {"whole", "absent"}, said
    assert sum(said["found"].values()) == ROUNDS
    assert said["found"]["whole"] > 0
    # The kills fell where they can hurt: many writers left the temporary file they were in the middle of.
    assert said["killed_inside_a_write"] > ROUNDS // 10
