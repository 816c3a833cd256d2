"""A job on the build VM as the tasks see it: followed, its log kept here, stopped by whoever started it."""

import contextlib
from pathlib import Path

from remote.hosts.host import HostError
from remote.hosts.local import me
from remote.hosts.tempdirs import scratch_folder
from remote.image import vm_jobs
from remote.image.vm_jobs import JobFailed, Outcome
from remote.jobs import transfer
from remote.jobs.agent import Agent
from remote.jobs.job import LOG_FILE, Job, JobState
from tasks.cli.terminal import asks
from tasks.clients.build_vm import show_cut, show_line
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.settings.load import Settings

STOPPABLE = ("build", "push")  # verbs with a flag --cancel


def follow(settings: Settings, job: Job) -> Outcome:
    """Follow a job to its end, and keep its whole log here, also when it fails. Raises as `vmjob.follow`."""
    try:
        outcome = vm_jobs.follow(job, show_line, show_cut)
    except JobFailed as failure:
        kept = keep_log(settings, job)
        raise failure if kept is None else JobFailed(failure.kind, failure.message, str(kept)) from None
    keep_log(settings, job)
    return outcome


def keep_log(settings: Settings, job: Job) -> Path | None:
    """Fetch a job's log into results/jobs; None where it cannot be had, which hides nothing of how the job ended."""
    kept = log_of(settings, job)
    with contextlib.suppress(HostError, OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Through a temporary folder: several commands may follow one job and fetch its log in the same moment.
        with scratch_folder(".log-", kept.parent) as folder:
            transfer.pull(job.agent, job.folder, folder, only=(LOG_FILE,))
            (folder / LOG_FILE).replace(kept)
        return kept
    return None


def log_of(settings: Settings, job: Job) -> Path:
    return settings.results_folder / "jobs" / f"{job.folder.rpartition('/')[2]}.txt"


def busy(job: Job, again: str) -> RetryableError:
    """Another job has the VM's one slot: whose it is, and what to type."""
    verb = vm_jobs.verb_of(job)
    stop = f", or stop it: `inv {verb} --cancel`" if verb in STOPPABLE else ""
    whose = f" of {who}" if (who := vm_jobs.starter(job)) else ""
    where = f"{job.agent.host.name}: busy with {job.folder}{whose}, which is other work"
    return RetryableError(f"{where}; when that has ended, `{again}`{stop}")


def cancel(agent: Agent, verb: str) -> None:
    """Stop the `verb` that runs on the VM; asks first where somebody else started it."""
    job = vm_jobs.running(agent)
    if job is None:
        print("nothing runs on the VM")
        return
    runs = vm_jobs.verb_of(job)
    if runs != verb:
        stop = f"; `inv {runs} --cancel` stops it" if runs in STOPPABLE else ""
        raise UsageError(f"{agent.host.name}: no {verb} runs there, but {job.folder}{stop}")
    who = vm_jobs.starter(job)
    if who != me() and not asks(f"{job.folder} was started by {who or 'somebody'}. Stop it?"):
        raise ConfirmationRequired(
            f"{job.folder} was started by {who or 'somebody'}, not by {me()}: ask there, or type the same in a "
            "terminal and say yes"
        )
    status = job.cancel()
    if status.state is JobState.RUNNING:
        raise RetryableError(f"{job.folder}: has not ended yet; `inv {verb} --cancel` waits once more")
    stopped = status.state is JobState.ENDED and status.why == "cancelled"
    print(f"{job.folder}: {'stopped' if stopped else 'ended before it could be stopped'}")
