"""A trial's outcome, computed from its job's status and result by a pure function.

An exit code proves nothing; a verified result counts. Without a result, the way the job ended shows whether the trial
itself failed (it would fail again) or was interrupted from outside (it is retried).
"""

import signal
from dataclasses import dataclass

from bench.records.paths import EXIT_NOT_WRITTEN
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from bench.records.training import is_limit_reached
from remote.jobs.job import JobState, JobStatus

_EXIT_CANNOT_START = 127
_EXIT_SIGTERM = 128 + signal.SIGTERM  # the bench's exit code after SIGTERM; it leaves a result once it has begun
_SIGKILL_HINT = "; the kernel does that when the worker's memory is used up"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A trial's status with its reason in one line (None for SUCCEEDED)."""

    status: TrialStatus
    reason: str | None

    @property
    def is_transient(self) -> bool:
        """True if a retry may succeed: neither the trial itself nor its limit ended it."""
        return self.status in (TrialStatus.LOST, TrialStatus.PREEMPTED) and not is_limit_reached(self.reason)


def judge(
    planned: PlannedTrial,
    attempt: int,
    job_status: JobStatus,
    result: TrialResult | None,
    log_tail: list[str],
    verification_error: str | None = None,
) -> Outcome:
    """Judge an attempt whose job is over (its state is ENDED, LOST or ABSENT).

    `verification_error` says why an existing result could not be verified; `result` is None then.
    """
    if job_status.why == "cancelled" and (result is None or result.status.is_resumable):
        return Outcome(status=TrialStatus.CANCELLED, reason="cancelled by the operator")
    if result is not None:
        if not is_result_of(result, planned, attempt):
            return Outcome(status=TrialStatus.FAILED, reason=f"its result is of another trial ({result.trial_id!r})")
        return Outcome(status=result.status, reason=result.reason)
    if verification_error is not None:
        return Outcome(status=TrialStatus.LOST, reason=verification_error)
    phase = _phase_suffix(job_status)
    if job_status.state is JobState.LOST:
        cause = "its supervisor was killed, or its disk is full"
        return Outcome(status=TrialStatus.LOST, reason=f"ended{phase} without an exit code: {cause}; it left no result")
    if job_status.state is not JobState.ENDED:
        return Outcome(status=TrialStatus.LOST, reason=f"its job died with its worker{phase}; it left no result")
    if job_status.why == "deadline":
        return Outcome(status=TrialStatus.TIMED_OUT, reason=f"stopped from outside at its deadline{phase}")
    if job_status.why == "terminated":
        return Outcome(status=TrialStatus.PREEMPTED, reason=f"its worker was stopped{phase}")
    if job_status.signal is not None:
        hint = _SIGKILL_HINT if job_status.signal == signal.SIGKILL else ""
        return Outcome(status=TrialStatus.LOST, reason=f"killed by {_signal_name(job_status.signal)}{phase}{hint}")
    if job_status.exit_code == 0:
        return Outcome(status=TrialStatus.LOST, reason="exit 0, but it left no result")
    if job_status.exit_code == _EXIT_SIGTERM:
        return Outcome(status=TrialStatus.PREEMPTED, reason="stopped by SIGTERM before it began")
    last_line = next((line.strip() for line in reversed(log_tail) if line.strip()), "no output")
    # The worker is at fault, not the trial: the program cannot be started, or there is no space for the result.
    is_worker_fault = job_status.exit_code in (_EXIT_CANNOT_START, EXIT_NOT_WRITTEN)
    status = TrialStatus.LOST if is_worker_fault else TrialStatus.FAILED
    return Outcome(status=status, reason=f"exit {job_status.exit_code}: {last_line}")


def is_result_of(result: TrialResult, planned: PlannedTrial, attempt: int) -> bool:
    """Check that the result belongs to this attempt at this trial."""
    return (result.trial_id, result.attempt, result.trial) == (planned.trial_id, attempt, planned.trial)


def _phase_suffix(status: JobStatus) -> str:
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
