"""From what a job left behind to the trial's end: a pure function.

An exit code alone proves nothing. What counts is a verified result; without one, how the job ended says whether the
trial failed by itself (it would again) or was cut short from outside (and is tried again).
"""

import signal
from dataclasses import dataclass

from bench.records.paths import EXIT_NOT_WRITTEN
from bench.records.result import TrialResult, TrialStatus
from bench.records.run import PlannedTrial
from bench.records.training import is_at_its_limit
from remote.jobs.job import JobState, JobStatus

_CANNOT_START = 127
_STOPPED = 128 + signal.SIGTERM  # what the bench ends with; with a result, once it has begun
_OUT_OF_MEMORY = "; the kernel does that when the worker's memory is used up"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A trial's end with its reason in one line (None for SUCCEEDED)."""

    end: TrialStatus
    reason: str | None

    @property
    def is_transient(self) -> bool:
        """Whether the same trial may succeed if tried again: what stopped it was not its own doing, nor its limit."""
        return self.end in (TrialStatus.LOST, TrialStatus.PREEMPTED) and not is_at_its_limit(self.reason)


def judge(
    planned: PlannedTrial,
    attempt: int,
    status: JobStatus,
    result: TrialResult | None,
    log_tail: list[str],
    damage: str | None = None,
) -> Verdict:
    """The end of an attempt whose job is over (`status` is ENDED, LOST or ABSENT).

    `damage` is why a result that was found could not be verified; `result` is None then.
    """
    if status.why == "cancelled" and (result is None or result.status.is_resumable):
        return Verdict(end=TrialStatus.CANCELLED, reason="cancelled by the operator")
    if result is not None:
        if not belongs(result, planned, attempt):
            return Verdict(end=TrialStatus.FAILED, reason=f"its result is of another trial ({result.trial_id!r})")
        return Verdict(end=result.status, reason=result.reason)
    if damage is not None:
        return Verdict(end=TrialStatus.LOST, reason=damage)
    if status.state is JobState.LOST:
        why = "its supervisor was killed, or its disk is full"
        return Verdict(end=TrialStatus.LOST, reason=f"ended{_where(status)} without a word: {why}; it left no result")
    if status.state is not JobState.ENDED:
        return Verdict(end=TrialStatus.LOST, reason=f"its job died with its worker{_where(status)}; it left no result")
    if status.why == "deadline":
        return Verdict(end=TrialStatus.TIMED_OUT, reason=f"stopped from outside at its deadline{_where(status)}")
    if status.why == "terminated":
        return Verdict(end=TrialStatus.PREEMPTED, reason=f"its worker was stopped{_where(status)}")
    if status.signal is not None:
        hint = _OUT_OF_MEMORY if status.signal == signal.SIGKILL else ""
        return Verdict(end=TrialStatus.LOST, reason=f"killed by {_signal_name(status.signal)}{_where(status)}{hint}")
    if status.exit_code == 0:
        return Verdict(end=TrialStatus.LOST, reason="exit 0, but it left no result")
    if status.exit_code == _STOPPED:
        return Verdict(end=TrialStatus.PREEMPTED, reason="stopped by SIGTERM before it began")
    last = next((line.strip() for line in reversed(log_tail) if line.strip()), "no output")
    # The worker's doing, not the trial's: nothing to start it with, or no disk space for the result.
    end = TrialStatus.LOST if status.exit_code in (_CANNOT_START, EXIT_NOT_WRITTEN) else TrialStatus.FAILED
    return Verdict(end=end, reason=f"exit {status.exit_code}: {last}")


def belongs(result: TrialResult, planned: PlannedTrial, attempt: int) -> bool:
    """True where the result is of this very attempt at this very trial."""
    return (result.trial_id, result.attempt, result.trial) == (planned.trial_id, attempt, planned.trial)


def _where(status: JobStatus) -> str:
    progress = status.progress or {}
    if "phase" not in progress:
        return ""
    step = f", step {progress['step']} of {progress['steps']}" if progress.get("step") else ""
    return f" in phase {progress['phase']}{step}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
