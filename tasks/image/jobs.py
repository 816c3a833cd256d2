"""Jobs on the build VM: follow one, save its log locally, cancel it."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.records.scratch_folders import scratch_folder
from remote.hosts.base import CommandTimedOut, HostError, HostUnreachable
from remote.hosts.local import current_user
from remote.image import vm_jobs
from remote.image.vm_jobs import JobFailed, Outcome
from remote.jobs import transfer
from remote.jobs.job import LOG_FILE, Agent, Job, JobState
from tasks.cli.terminal import confirm
from tasks.clients.build_vm import print_job_line, print_reconnect, to_task_error
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, UsageError
from tasks.settings.load import Settings

CANCELLABLE_VERBS = ("build", "push")


def follow(settings: Settings, job: Job, resume_command: str) -> Outcome:
    """Follow a job to its end and save its log locally, even if it fails.

    Ctrl-C and a lost connection leave the job running: Interrupted and RetryableError name `resume_command`, which
    follows it again. Raises JobFailed.
    """
    try:
        outcome = vm_jobs.follow(job, print_job_line, print_reconnect)
    except KeyboardInterrupt as error:
        remedy = ", ".join((f"the job on the VM continues; `{resume_command}` resumes", *_stop_hints(job)))
        raise Interrupted("detached", remedy=remedy) from error
    except (HostUnreachable, CommandTimedOut) as error:
        raise to_task_error(error, resume_command) from error
    except JobFailed as failure:
        log = save_log(settings, job)
        if log is None:
            raise
        raise JobFailed(failure.kind, failure.problem, str(log), remedy=failure.own_remedy) from failure
    save_log(settings, job)
    return outcome


def save_log(settings: Settings, job: Job) -> Path | None:
    """Fetch a job's log into results/jobs; None if that fails, so that the job's own outcome is reported."""
    path = log_path(settings, job)
    with contextlib.suppress(HostError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Use a temporary folder: several commands may follow one job and fetch its log at the same time.
        with scratch_folder(".log-", path.parent) as folder:
            transfer.pull(job.agent, job.folder, folder, only=(LOG_FILE,))
            (folder / LOG_FILE).replace(path)
        return path
    return None


def log_path(settings: Settings, job: Job) -> Path:
    return settings.results_folder / "jobs" / f"{job.folder.rpartition('/')[2]}.txt"


def busy_error(job: Job, retry_command: str) -> RetryableError:
    """Build the error for a VM occupied by another job, with its owner and the command to retry."""
    owner = f" of {user}" if (user := vm_jobs.started_by(job)) else ""
    problem = f"{job.agent.host.name}: busy with {job.folder}{owner}, a different job"
    return RetryableError(problem, remedy=", ".join((f"when that has ended, `{retry_command}`", *_stop_hints(job))))


def _stop_hints(job: Job) -> list[str]:
    verb = vm_jobs.verb_of(job)
    return [f"`inv {verb} --cancel` stops it"] if verb in CANCELLABLE_VERBS else []


def matching_job(agent: Agent, verb: str, request: Mapping[str, Any], retry_command: str) -> Job | None:
    """Return the running job for `request`, or None if none runs. Raises RetryableError if another one runs."""
    job = vm_jobs.running_job(agent)
    if job is not None and not vm_jobs.matches_request(job, verb, request):
        raise busy_error(job, retry_command)
    return job


def cancel(agent: Agent, verb: str) -> None:
    """Cancel the running job if it is a `verb`; ask for confirmation if another user started it."""
    job = vm_jobs.running_job(agent)
    if job is None:
        print("nothing runs on the VM")
        return
    if vm_jobs.verb_of(job) != verb:
        problem = f"{agent.host.name}: no {verb} is running, but {job.folder} is"
        raise UsageError(problem, remedy="".join(_stop_hints(job)))
    starter = vm_jobs.started_by(job)
    if starter != current_user() and not confirm(
        f"{job.folder} was started by {starter or 'an unknown user'}. Stop it?"
    ):
        raise ConfirmationRequired(
            f"{job.folder} was started by {starter or 'an unknown user'}, not by {current_user()}",
            remedy=f"ask them, or rerun `inv {verb} --cancel` in a terminal and confirm",
        )
    status = job.cancel()
    if status.state is JobState.RUNNING:
        raise RetryableError(f"{job.folder}: has not ended yet", remedy=f"`inv {verb} --cancel` waits again")
    stopped = status.state is JobState.ENDED and status.why == "cancelled"
    print(f"{job.folder}: {'stopped' if stopped else 'ended before it could be stopped'}")
