"""A trial's outcome, computed from its job's status and result by a pure function.

An exit code proves nothing; a verified result counts. Without a result, the way the job ended shows whether the trial
itself failed (it would fail again) or was interrupted from outside (it is retried).
"""

import signal

from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import ExitCode, Outcome, ReasonCode
from remote.jobs.job import JobState, JobStatus

_SIGKILL_HINT = "; the kernel does that when the worker's memory is used up"
# Causes of an attempt without a result, by its exit code. Of any other code, the trial itself is the cause.
_CAUSES: dict[int | None, ReasonCode] = {
    **{code.exit_code: code for code in ReasonCode if code.is_rejected},
    ExitCode.CANNOT_START: ReasonCode.CANNOT_START,
    ExitCode.NOT_WRITTEN: ReasonCode.NOT_WRITTEN,
}


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
    of = Outcome.of
    if job_status.why == "cancelled" and (result is None or result.status.is_resumable):
        return of(ReasonCode.CANCELLED, "cancelled by the operator")
    if result is not None:
        if not is_result_of(result, planned, attempt):
            return of(ReasonCode.RESULT_MISMATCH, f"its result is of another trial ({result.trial_id!r})")
        return result.outcome
    if verification_error is not None:
        return of(ReasonCode.RESULT_UNVERIFIED, verification_error)
    phase = _phase_suffix(job_status)
    if job_status.state is JobState.LOST:
        cause = "its supervisor was killed, or its disk is full"
        return of(ReasonCode.SUPERVISOR_LOST, f"ended{phase} without an exit code: {cause}; it left no result")
    if job_status.state is not JobState.ENDED:
        return of(ReasonCode.WORKER_LOST, f"its job died with its worker{phase}; it left no result")
    if job_status.why == "deadline":
        return of(ReasonCode.DEADLINE, f"stopped from outside at its deadline{phase}")
    if job_status.why == "terminated":
        return of(ReasonCode.WORKER_STOPPED, f"its worker was stopped{phase}")
    if job_status.signal is not None:
        hint = _SIGKILL_HINT if job_status.signal == signal.SIGKILL else ""
        return of(ReasonCode.KILLED, f"killed by {_signal_name(job_status.signal)}{phase}{hint}")
    code = job_status.exit_code
    if code == ExitCode.OK:
        return of(ReasonCode.NO_RESULT, "exit 0, but it left no result")
    if code == ExitCode.STOPPED:  # the bench leaves a result once it has begun
        return of(ReasonCode.WORKER_STOPPED, f"stopped by SIGTERM{phase or ' before it began'}")
    last_line = next((line.strip() for line in reversed(log_tail) if line.strip()), "no output")
    cause = _CAUSES.get(code, ReasonCode.PROCESS_FAILED)
    return of(cause, last_line if cause.is_rejected else f"exit {code}: {last_line}")


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
