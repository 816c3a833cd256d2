"""The operator process is killed repeatedly; every trial still ends exactly once."""

import random
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.support.forked import ForkServer
from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import LocalFleet
from tests.support.paths import ROOT

KILLS = 6


@pytest.fixture
def operate(local: LocalFleet, inv_server: ForkServer) -> Callable[..., int]:
    """Function that runs one operator process and returns its exit code. `moments` 0: it is not killed."""

    def run_operator(*, workers: int, moments: int) -> int:
        argv = ("-m", local_fleet.__name__, str(local.folder), str(workers), str(moments))
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        with inv_server.start(*argv, cwd=ROOT, **options) as process:
            _, stderr = process.communicate(timeout=local_fleet.PATIENCE_SEC)
        assert process.returncode in (0, -signal.SIGKILL), stderr
        return process.returncode

    return run_operator


def test_an_operator_killed_again_and_again_repeats_nothing_and_loses_nothing(
    local: LocalFleet, operate: Callable[..., int]
) -> None:
    kinds = ["steps", "fine", "killed-once", "preempted-once", "oom-result", "crash", "exit-2"]
    plan = local.plan(*[f"{kind} {number}" for number in range(2) for kind in kinds], workers=3)
    chooser, killed = random.Random(KILLS), 0
    while operate(workers=3, moments=chooser.randrange(1, 50) if killed < KILLS else 0) != 0:
        killed += 1
    assert killed >= 5 * KILLS // 6, "the run ended before enough kills; plan more trials"

    expected = {"oom-result": "OUT_OF_MEMORY", "crash": "FAILED", "exit-2": "FAILED"}
    statuses = local.statuses()
    for planned in plan.planned:
        end = expected.get(planned.trial.name.split()[0], "SUCCEEDED")
        assert statuses[planned.trial_id] == end, local.reasons()[planned.trial_id]
        events = [line.split()[0] for line in local.log.read_text().splitlines() if line.split()[1] == planned.trial_id]
        assert events.count("succeeded") == (1 if end == "SUCCEEDED" else 0)
        assert events[-1] == ("succeeded" if end == "SUCCEEDED" else "started"), "started again after it had succeeded"
