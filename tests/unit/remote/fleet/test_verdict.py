"""Every case of what a job may leave behind, and the end it means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.records.result import End, TrialResult
from bench.records.run import PlannedTrial
from remote.fleet.verdict import Verdict, judge
from remote.jobs.job import JobState, JobStatus
from tests.support.hosts.local_fleet import make_trial

TRIAL = make_trial("one")
PLANNED = PlannedTrial(trial_id="one", trial=TRIAL)
IN_STEP_7 = {"phase": "measure", "step": 7, "steps": 18}


def result(status: End, reason: str | None = "its own words", **changed: Any) -> TrialResult:
    return replace(TrialResult(trial_id="one", trial=TRIAL, status=status, reason=reason, attempt=2), **changed)


def exited(code: int = 0, **changed: Any) -> JobStatus:
    return JobStatus(state=JobState.ENDED, exit_code=code, why=changed.pop("why", "exited"), **changed)


CASES: dict[str, tuple[JobStatus, TrialResult | None, list[str], str | None, End, str | None]] = {
    # a verified result speaks for itself, whatever the exit code says
    "succeeded": (exited(0), result(End.SUCCEEDED, None), [], None, End.SUCCEEDED, None),
    "succeeded but exited 1": (exited(1), result(End.SUCCEEDED, None), [], None, End.SUCCEEDED, None),
    "succeeded, killed on its way out": (
        exited(137, signal=9),
        result(End.SUCCEEDED, None),
        [],
        None,
        End.SUCCEEDED,
        None,
    ),
    "succeeded, supervisor killed": (
        JobStatus(state=JobState.LOST),
        result(End.SUCCEEDED, None),
        [],
        None,
        End.SUCCEEDED,
        None,
    ),
    "succeeded at the deadline": (
        exited(137, signal=9, why="deadline"),
        result(End.SUCCEEDED, None),
        [],
        None,
        End.SUCCEEDED,
        None,
    ),
    "out of memory": (exited(1), result(End.OUT_OF_MEMORY), [], None, End.OUT_OF_MEMORY, "its own words"),
    "failed": (exited(1), result(End.FAILED), [], None, End.FAILED, "its own words"),
    "timed out by itself": (exited(1), result(End.TIMED_OUT), [], None, End.TIMED_OUT, "its own words"),
    "preempted": (
        exited(143, why="terminated"),
        result(End.PREEMPTED),
        [],
        None,
        End.PREEMPTED,
        "its own words",
    ),
    # a cancel counts unless the trial had reached an end of its own before
    "cancelled": (
        exited(130, why="cancelled"),
        result(End.CANCELLED),
        [],
        None,
        End.CANCELLED,
        "cancelled by the operator",
    ),
    "cancelled without a word": (
        exited(137, signal=9, why="cancelled"),
        None,
        ["noise"],
        None,
        End.CANCELLED,
        "cancelled by the operator",
    ),
    "cancelled with a torn result": (
        exited(137, signal=9, why="cancelled"),
        None,
        [],
        "result.json: torn",
        End.CANCELLED,
        "cancelled by the operator",
    ),
    "cancelled, TERM was quicker": (
        exited(143, why="cancelled"),
        result(End.PREEMPTED),
        [],
        None,
        End.CANCELLED,
        "cancelled by the operator",
    ),
    "cancelled after it had succeeded": (
        exited(130, why="cancelled"),
        result(End.SUCCEEDED, None),
        [],
        None,
        End.SUCCEEDED,
        None,
    ),
    "cancelled after it ran out of memory": (
        exited(130, why="cancelled"),
        result(End.OUT_OF_MEMORY),
        [],
        None,
        End.OUT_OF_MEMORY,
        "its own words",
    ),
    # a result that is not this attempt's is not believed
    "another trial's": (
        exited(0),
        result(End.SUCCEEDED, trial_id="two"),
        [],
        None,
        End.FAILED,
        "its result is of another trial ('two')",
    ),
    "another attempt's": (
        exited(0),
        result(End.SUCCEEDED, attempt=1),
        [],
        None,
        End.FAILED,
        "its result is of another trial ('one')",
    ),
    "another configuration's": (
        exited(0),
        result(End.SUCCEEDED, trial=replace(TRIAL, seed=7)),
        [],
        None,
        End.FAILED,
        "its result is of another trial ('one')",
    ),
    "torn": (exited(0), None, [], "result.json: not complete", End.LOST, "result.json: not complete"),
    # without a result, how the job ended says whose doing it was
    "supervisor killed": (
        JobStatus(state=JobState.LOST, progress=IN_STEP_7),
        None,
        [],
        None,
        End.LOST,
        "its job died with its worker in phase measure, step 7 of 18; nothing of it is left",
    ),
    "host without memory of it": (
        JobStatus(state=JobState.ABSENT),
        None,
        [],
        None,
        End.LOST,
        "its job died with its worker; nothing of it is left",
    ),
    "deaf at the deadline": (
        exited(137, signal=9, why="deadline", progress=IN_STEP_7),
        None,
        [],
        None,
        End.TIMED_OUT,
        "stopped from outside at its deadline in phase measure, step 7 of 18",
    ),
    "obeyed at the deadline": (
        exited(143, why="deadline"),
        None,
        [],
        None,
        End.TIMED_OUT,
        "stopped from outside at its deadline",
    ),
    "terminated by the host": (
        exited(143, signal=15, why="terminated", progress={"phase": "load"}),
        None,
        [],
        None,
        End.PREEMPTED,
        "its worker was told to stop in phase load",
    ),
    "killed": (
        exited(137, signal=9, progress=IN_STEP_7),
        None,
        [],
        None,
        End.LOST,
        "killed by SIGKILL (out of memory on its worker?) in phase measure, step 7 of 18",
    ),
    "segmentation fault": (exited(139, signal=11), None, [], None, End.LOST, "killed by SIGSEGV"),
    "an unknown signal": (exited(128 + 99, signal=99), None, [], None, End.LOST, "killed by signal 99"),
    "done and nothing there": (
        exited(0),
        None,
        ["all done!"],
        None,
        End.LOST,
        "it said it was done but left no result",
    ),
    "bad input": (
        exited(2),
        None,
        ["noise", "models/x: no such folder", "  "],
        None,
        End.FAILED,
        "exit 2: models/x: no such folder",
    ),
    "nothing to start it with": (
        exited(127),
        None,
        ["python: cannot be started: No such file or directory"],
        None,
        End.LOST,
        "exit 127: python: cannot be started: No such file or directory",
    ),
    "disk full": (
        exited(74),
        None,
        ["out/result.json: the result cannot be written: No space left on device"],
        None,
        End.LOST,
        "exit 74: out/result.json: the result cannot be written: No space left on device",
    ),
    "silent failure": (exited(1), None, [], None, End.FAILED, "exit 1: it said nothing"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_end_of_an_attempt(case: str) -> None:
    status, found, log_tail, damage, end, reason = CASES[case]
    assert judge(PLANNED, 2, status, found, log_tail, damage) == Verdict(end=end, reason=reason)


@pytest.mark.parametrize("end", list(End))
def test_only_what_was_not_the_trials_own_doing_is_transient(end: End) -> None:
    assert Verdict(end=end, reason=None).is_transient == (end in (End.LOST, End.PREEMPTED))
