"""A trial's outcome: fetched from its host, and judged from its job's status and result.

An exit code proves nothing; a verified result counts. Without a result, the way the job ended shows whether the trial
itself failed (it would fail again) or was interrupted from outside (it is retried).

If all workers of a fleet share a volume, attempts write there, so that results outlive their worker: a trial that was
done when its worker died is not run again, and `inv collect` reads its files through another worker. The job's folder
stays on the worker's own disk, because locks and heartbeats on a network file system can outlive their owner; its
output folder is a link to the shared volume. Not covered: the job's log, whose last lines are in the result.
"""

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import NODE_RANK, PROGRESS_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import EXIT_CAUSES, ExitCode, Outcome, ReasonCode
from remote.fleet.ledger import Attempt
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host
from remote.jobs.job import Job, JobState, JobStatus
from remote.jobs.transfer import ChecksumMismatch, pull

_SIGKILL_HINT = "; the kernel does that when the worker's memory is used up"


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
    if job_status.why == "cancelled" and (result is None or result.status.is_external):
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
    cause = EXIT_CAUSES.get(code, ReasonCode.PROCESS_FAILED)  # else the trial itself is the cause
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


OUT_FOLDER = "out"
TRIAL_FILE = "trial.json"
PROGRESS_PATH = f"{OUT_FOLDER}/{PROGRESS_FILE}"


def fetch_result(
    job: Job,
    planned: PlannedTrial,
    attempt: Attempt,
    status: JobStatus,
    *,
    remote_folders: Sequence[str],
    download_folder: Path,
) -> tuple[Outcome, Path | None]:
    """Return the verdict on an attempt whose job is over, and the local path of its verified result, or None.

    The result is in the first of the host's `remote_folders` that has one. It is downloaded below `download_folder`,
    whose parent must exist, so that a deleted run folder is not created again. Raises HostError.
    """
    local_folder = download_folder / f"{planned.trial_id}.{attempt.number}"
    for folder in (download_folder, local_folder):
        folder.mkdir(exist_ok=True)
    path, result, verification_error = local_folder / RESULT_FILE, None, None
    for remote_folder in remote_folders:
        try:
            pull(job.agent, remote_folder, local_folder, only=(RESULT_FILE,))
            result = TrialResult.read(path) if path.exists() else None
        except (ResultError, ChecksumMismatch) as error:
            verification_error = str(error)
        if result is not None:
            break
    # The verdict on a job that did not end on its own does not depend on its output.
    log_tail = job.log_tail() if result is None and status.state is JobState.ENDED else []
    verdict = judge(planned, attempt.number, status, result, log_tail, verification_error)
    is_its_own = result is not None and is_result_of(result, planned, attempt.number)
    return verdict, path if is_its_own else None


def shared_output_folder(shared_folder: str, run_id: str, trial_id: str, attempt: int) -> str:
    """Return the folder of one attempt's output on the shared volume; each attempt has its own."""
    return f"{shared_folder}/{run_id}/{trial_id}.{attempt}"


def with_shared_output(command: Command, host: Host, output_folder: str, job_folder: str) -> Command:
    """Return `command` with the output folder of its job linked to `output_folder`, which it must create itself.

    A pod can die, and its replacement may start the same attempt again. If `output_folder` then has a result, nothing
    is left to do. If not, the first copy may still be running, and the attempt ends with 127, as it does without the
    volume: the worker's fault, not the trial's.
    """
    arguments = (output_folder, f"{job_folder}/{OUT_FOLDER}", RESULT_FILE, NODE_RANK, *command.argv)
    return replace(command, argv=inline_command(host, "remote.agent.pods.link_output", *arguments).argv)
