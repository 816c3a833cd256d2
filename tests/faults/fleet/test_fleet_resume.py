"""The operator is killed again and again; the run still reaches its ends, each trial once."""

import random
import signal
import subprocess
import sys

import pytest

from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import LocalFleet


def operate(local: LocalFleet, *, workers: int, moments: int) -> int:
    """One life of the operator; how it ended. `moments` 0: it is not killed."""
    done = subprocess.run(
        [sys.executable, "-B", local_fleet.__file__, str(local.folder), str(workers), str(moments)],
        capture_output=True,
        timeout=local_fleet.PATIENCE_SEC,
        start_new_session=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode


@pytest.mark.parametrize(("kills", "replicate"), [(12, False), (6, True)])
def test_an_operator_killed_again_and_again_repeats_nothing_and_loses_nothing(
    local: LocalFleet, kills: int, replicate: bool
) -> None:
    kinds = ["steps", "fine", "killed-once", "preempted-once", "oom-result", "crash", "exit-2"]
    names = [f"{kind} {number}" for number in range(1 if replicate else 3) for kind in kinds]
    plan = local.plan(*names, workers=3, replicate=replicate)
    chooser, killed = random.Random(kills), 0
    while operate(local, workers=3, moments=chooser.randrange(1, 50) if killed < kills else 0) != 0:
        killed += 1
    assert killed >= 5 * kills // 6, "the run was over before it was disturbed enough; plan more trials"

    expected = {"oom-result": "OUT_OF_MEMORY", "crash": "FAILED", "exit-2": "FAILED"}
    ends = local.ends()
    for planned in plan.planned:
        end = expected.get(planned.trial.name.split()[0], "SUCCEEDED")
        assert ends[planned.trial_id] == end, local.reasons()[planned.trial_id]
        words = [line.split()[0] for line in local.log.read_text().splitlines() if line.split()[1] == planned.trial_id]
        assert words.count("succeeded") == (1 if end == "SUCCEEDED" else 0)
        assert words[-1] == ("succeeded" if end == "SUCCEEDED" else "started"), "started again after it had succeeded"
