"""The outcome of a trial for every way a job may end."""

import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.outcome import judge
from remote.jobs.job import JobState, JobStatus
from tests.support.hosts.local_fleet import make_trial

TRIAL = make_trial("one")
PLANNED = PlannedTrial(trial_id="one", trial=TRIAL)
IN_STEP_7 = {"phase": "measure", "step": 7, "steps": 18}


def result(status: TrialStatus, reason: str | None = "its own words", **changed: Any) -> TrialResult:
    return replace(TrialResult(trial_id="one", trial=TRIAL, status=status, reason=reason, attempt=2), **changed)


def exited(code: int = 0, **changed: Any) -> JobStatus:
    return JobStatus(state=JobState.ENDED, exit_code=code, why=changed.pop("why", "exited"), **changed)


def case(
    name: str,
    end: TrialStatus | ReasonCode,
    reason: str | None,
    status: JobStatus,
    existing_result: TrialResult | None = None,
    log: Sequence[str] = (),
    verification_error: str | None = None,
) -> ParameterSet:
    return pytest.param(
        Outcome.of(end, reason or "") if isinstance(end, ReasonCode) else Outcome(end, reason=reason),
        status,
        existing_result,
        list(log),
        verification_error,
        id=name,
    )


GOOD = result(TrialStatus.SUCCEEDED, None)
OWN, BY_OPERATOR = "its own words", "cancelled by the operator"
KILLED = "killed by SIGKILL in phase measure, step 7 of 18; the kernel does that when the worker's memory is used up"
OTHER = "its result is of another trial"
CANNOT_START = "python: cannot be started: No such file or directory"
DISK_FULL = "out/result.json: the result cannot be written: No space left on device"
CASES = [
    # a verified result counts, whatever the exit code is
    case("succeeded", TrialStatus.SUCCEEDED, None, exited(0), GOOD),
    case("succeeded but exited 1", TrialStatus.SUCCEEDED, None, exited(1), GOOD),
    case("succeeded, killed on its way out", TrialStatus.SUCCEEDED, None, exited(137, signal=9), GOOD),
    case("succeeded, supervisor killed", TrialStatus.SUCCEEDED, None, JobStatus(state=JobState.LOST), GOOD),
    case("succeeded at the deadline", TrialStatus.SUCCEEDED, None, exited(137, signal=9, why="deadline"), GOOD),
    case("out of memory", TrialStatus.OUT_OF_MEMORY, OWN, exited(1), result(TrialStatus.OUT_OF_MEMORY)),
    case("failed", TrialStatus.FAILED, OWN, exited(1), result(TrialStatus.FAILED)),
    case("own timeout", TrialStatus.TIMED_OUT, OWN, exited(1), result(TrialStatus.TIMED_OUT)),
    case("preempted", TrialStatus.PREEMPTED, OWN, exited(143, why="terminated"), result(TrialStatus.PREEMPTED)),
    # a cancel counts unless the trial had reached an end of its own before
    case("cancelled", ReasonCode.CANCELLED, BY_OPERATOR, exited(130, why="cancelled"), result(TrialStatus.CANCELLED)),
    case("no result", ReasonCode.CANCELLED, BY_OPERATOR, exited(137, signal=9, why="cancelled"), log=["noise"]),
    case(
        "torn result",
        ReasonCode.CANCELLED,
        BY_OPERATOR,
        exited(137, signal=9, why="cancelled"),
        verification_error="result.json: torn",
    ),
    case(
        "TERM was quicker",
        ReasonCode.CANCELLED,
        BY_OPERATOR,
        exited(143, why="cancelled"),
        result(TrialStatus.PREEMPTED),
    ),
    case("cancelled after success", TrialStatus.SUCCEEDED, None, exited(130, why="cancelled"), GOOD),
    case("after OOM", TrialStatus.OUT_OF_MEMORY, OWN, exited(130, why="cancelled"), result(TrialStatus.OUT_OF_MEMORY)),
    # a result that is not this attempt's does not count
    case("another trial's", ReasonCode.RESULT_MISMATCH, f"{OTHER} ('two')", exited(0), replace(GOOD, trial_id="two")),
    case("another attempt's", ReasonCode.RESULT_MISMATCH, f"{OTHER} ('one')", exited(0), replace(GOOD, attempt=1)),
    case(
        "another trial",
        ReasonCode.RESULT_MISMATCH,
        f"{OTHER} ('one')",
        exited(0),
        replace(GOOD, trial=replace(TRIAL, seed=7)),
    ),
    case(
        "torn",
        ReasonCode.RESULT_UNVERIFIED,
        "result.json: not complete",
        exited(0),
        verification_error="result.json: not complete",
    ),
    # without a result, how the job ended says what stopped it
    case(
        "supervisor killed",
        ReasonCode.SUPERVISOR_LOST,
        "ended in phase measure, step 7 of 18 without an exit code: its supervisor was killed, or its disk is full; "
        "it left no result",
        JobStatus(state=JobState.LOST, progress=IN_STEP_7),
    ),
    case(
        "unknown to the host",
        ReasonCode.WORKER_LOST,
        "its job died with its worker; it left no result",
        JobStatus(state=JobState.ABSENT),
    ),
    case(
        "killed at the deadline",
        ReasonCode.DEADLINE,
        "stopped from outside at its deadline in phase measure, step 7 of 18",
        exited(137, signal=9, why="deadline", progress=IN_STEP_7),
    ),
    case(
        "terminated at the deadline",
        ReasonCode.DEADLINE,
        "stopped from outside at its deadline",
        exited(143, why="deadline"),
    ),
    case(
        "terminated by the host",
        ReasonCode.WORKER_STOPPED,
        "its worker was stopped in phase load",
        exited(143, signal=15, why="terminated", progress={"phase": "load"}),
    ),
    case("killed", ReasonCode.KILLED, KILLED, exited(137, signal=9, progress=IN_STEP_7)),
    case("segmentation fault", ReasonCode.KILLED, "killed by SIGSEGV", exited(139, signal=11)),
    case("an unknown signal", ReasonCode.KILLED, "killed by signal 99", exited(128 + 99, signal=99)),
    case(
        "no result after success", ReasonCode.NO_RESULT, "exit 0, but it left no result", exited(0), log=["all done!"]
    ),
    case(
        "bad input",
        ReasonCode.BAD_INPUT,
        "x: no such folder",
        exited(2),
        log=["noise", "x: no such folder", "  "],
    ),
    case(
        "program cannot be started",
        ReasonCode.CANNOT_START,
        f"exit 127: {CANNOT_START}",
        exited(127),
        log=[CANNOT_START],
    ),
    case("disk full", ReasonCode.NOT_WRITTEN, f"exit 74: {DISK_FULL}", exited(74), log=[DISK_FULL]),
    case(
        "stopped at once", ReasonCode.WORKER_STOPPED, "stopped by SIGTERM before it began", exited(128 + signal.SIGTERM)
    ),
    case(
        "stopped without a result",
        ReasonCode.WORKER_STOPPED,
        "stopped by SIGTERM in phase train, step 7 of 9",
        exited(128 + signal.SIGTERM, progress={"phase": "train", "step": 7, "steps": 9}),
    ),
    case("silent failure", ReasonCode.PROCESS_FAILED, "exit 1: no output", exited(1)),
]


@pytest.mark.parametrize(("verdict", "status", "existing_result", "log_tail", "verification_error"), CASES)
def test_the_end_of_an_attempt(
    verdict: Outcome,
    status: JobStatus,
    existing_result: TrialResult | None,
    log_tail: list[str],
    verification_error: str | None,
) -> None:
    assert judge(PLANNED, 2, status, existing_result, log_tail, verification_error) == verdict


@pytest.mark.parametrize("end", list(TrialStatus))
def test_only_ends_from_outside_are_transient(end: TrialStatus) -> None:
    assert Outcome(end).is_transient == (end in (TrialStatus.LOST, TrialStatus.PREEMPTED))


@pytest.mark.parametrize("code", [ReasonCode.MAX_HOURS, ReasonCode.BUDGET_USD])
def test_a_training_at_its_limit_is_not_retried(code: ReasonCode) -> None:
    assert not Outcome.of(code, "stopped").is_transient
