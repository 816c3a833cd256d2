"""The outcome of a trial for every way a job may end (outcomes.yaml)."""

from dataclasses import replace
from typing import Any

import pytest

from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.outcome import judge
from remote.jobs.job import JobState, JobStatus
from tests.support.cases import Case, load_cases
from tests.support.hosts.local_fleet import make_trial

TRIAL = make_trial("one")
PLANNED = PlannedTrial(trial_id="one", trial=TRIAL, worker="worker-0")


def make_result(status: str, seed: int = TRIAL.seed, **fields: Any) -> TrialResult:
    own = {"trial_id": "one", "attempt": 2, "reason": None if status == "SUCCEEDED" else "its own words"} | fields
    return TrialResult(trial=replace(TRIAL, seed=seed), status=TrialStatus(status), **own)


@pytest.mark.parametrize("case", load_cases(__file__, "outcomes.yaml"))
def test_the_end_of_an_attempt(case: Case) -> None:
    status = JobStatus(**case["job"] | {"state": JobState(case["job"]["state"])})
    result = make_result(**case["result"]) if "result" in case else None
    outcome = judge(PLANNED, 2, status, result, case.get("log", []), case.get("verification_error"))
    if case["expected"] in TrialStatus.__members__:
        assert result is not None
        assert outcome == result.outcome
    else:
        assert outcome.reason_code is ReasonCode(case["expected"])
    assert case.get("reason", "") in (outcome.reason or "")


@pytest.mark.parametrize("end", list(TrialStatus))
def test_only_ends_from_outside_are_transient(end: TrialStatus) -> None:
    assert Outcome(end).is_transient == (end in (TrialStatus.LOST, TrialStatus.PREEMPTED))
    assert not Outcome.of(ReasonCode.MAX_HOURS, "stopped").is_transient
