"""Jobs on the build VM: run one or follow the running one, save its log locally, cancel it."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.records.scratch_folders import scratch_folder
from remote.hosts.command import Secret
from remote.hosts.host_protocol import CommandTimedOut, Host, HostError, HostUnreachable
from remote.hosts.local import current_user
from remote.image import vm_jobs
from remote.image.vm_jobs import JobFailed, Outcome, VmWork
from remote.jobs import transfer
from remote.jobs.job import LOG_FILE, Agent, HostBusy, Job, JobState
from tasks.cli.terminal import confirm
from tasks.cli.waiting import Wait
from tasks.clients.build_vm import print_job_line, print_reconnect, to_task_error
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, UsageError
from tasks.settings.layers import Settings

CANCELLABLE_VERBS = ("build", "push")


def plan_work(settings: Settings, command: str, verb: str, name: str, request: Mapping[str, Any]) -> VmWork:
    """Plan a job of `command`, with the deadline and the folder for logs of the settings."""
    logs, deadline_sec = settings.results_folder / "jobs", settings.image.deadline_sec
    return VmWork(verb=verb, name=name, request=request, command=command, deadline_sec=deadline_sec, logs=logs)


def run(host: Host, work: VmWork, prepare: Callable[[Agent], Secret | None]) -> Outcome:
    """Follow the running job that does this work, or `prepare` and start one, with the secret that `prepare` returns.

    Raises RetryableError if another one runs, and like `follow`.
    """
    agent = vm_jobs.create_agent(host)
    job = vm_jobs.running_job(agent)
    if job is None:
        secret, job = prepare(agent), work.new_job(agent)
        try:
            work.start(job, secret)
        except HostBusy as busy:  # another command was faster
            job = Job(agent, busy.holder, slot=job.slot)
        else:
            return follow(job, work)
    if not work.is_done_by(job):
        raise busy_error(job, work.command)
    print(f"{host.name}: a {work.verb} is already running ({job.folder}); following it", flush=True)
    return follow(job, work)


def follow(job: Job, work: VmWork) -> Outcome:
    """Follow a job to its end and save its log locally, even if it fails.

    Ctrl-C and a lost connection leave the job running: Interrupted and RetryableError name the command that follows it
    again. Raises JobFailed.
    """
    log = work.log_path(job.folder)
    try:
        with Wait(work.verb) as line:
            outcome = vm_jobs.follow(job, print_job_line, print_reconnect, line.set_text)
    except KeyboardInterrupt as error:
        remedy = ", ".join((f"the job on the VM continues; `{work.command}` resumes", *_stop_hints(job)))
        raise Interrupted("detached", remedy=remedy) from error
    except (HostUnreachable, CommandTimedOut) as error:
        raise to_task_error(error, work.command) from error
    except JobFailed as failure:
        if not save_log(job, log):
            raise
        raise JobFailed(failure.kind, failure.problem, str(log), remedy=failure.own_remedy) from failure
    save_log(job, log)
    return outcome


def save_log(job: Job, path: Path) -> bool:
    """Fetch a job's log to `path`; False if that fails, so that the job's own outcome is reported."""
    with contextlib.suppress(HostError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Use a temporary folder: several commands may follow one job and fetch its log at the same time.
        with scratch_folder(".log-", path.parent) as folder:
            transfer.pull(job.agent, job.folder, folder, only=(LOG_FILE,))
            (folder / LOG_FILE).replace(path)
        return True
    return False


def busy_error(job: Job, retry_command: str) -> RetryableError:
    """Build the error for a VM occupied by another job, with its owner and the command to retry."""
    owner = f" of {user}" if (user := vm_jobs.started_by(job)) else ""
    problem = f"{job.agent.host.name}: busy with {job.folder}{owner}, a different job"
    return RetryableError(problem, remedy=", ".join((f"when that has ended, `{retry_command}`", *_stop_hints(job))))


def _stop_hints(job: Job) -> list[str]:
    verb = vm_jobs.verb_of(job)
    return [f"`inv {verb} --cancel` stops it"] if verb in CANCELLABLE_VERBS else []


def cancel(host: Host, verb: str) -> None:
    """Cancel the running job if it is a `verb`; ask for confirmation if another user started it."""
    job = vm_jobs.running_job(vm_jobs.create_agent(host))
    if job is None:
        print("nothing runs on the VM")
        return
    if vm_jobs.verb_of(job) != verb:
        problem = f"{host.name}: no {verb} is running, but {job.folder} is"
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
