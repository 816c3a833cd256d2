"""The build VM: a connected host from the settings, and its failures as exit codes."""

import contextlib
from collections.abc import Iterator

from remote.hosts.host import Host, HostError, HostKeyRefused, InvalidAddress, LoginRefused, TooMuchOutput, one_line
from remote.hosts.local import LocalHost
from remote.image.engine import EngineError
from remote.image.model_fetch import FetchError, FetchRefused
from remote.image.plan import ModelDamaged
from remote.image.vm_jobs import JobFailed, JobLine
from remote.image.workdir import WorkdirError, WorkdirUnsafe
from remote.ssh.config import Destination
from remote.ssh.host import SshHost
from tasks.errors import ConfirmationRequired, Interrupted, RetryableError, TaskFailed, UsageError, translate_errors
from tasks.errors import one_line as one_printable
from tasks.settings.load import Settings

LOCAL_FOLDER = ".buildvm"  # the jobs' folder where this machine is the VM


@contextlib.contextmanager
def build_vm(settings: Settings, again: str) -> Iterator[Host]:
    """The host that `build.host` names, over one connection. `again` is the command that resumes the task.

    Its errors inside the block become the task's, with their exit codes.
    """
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(_host(settings))
        except HostError as error:
            raise to_task_error(error, again) from None


@contextlib.contextmanager
def build_vm_job(settings: Settings, again: str, stop: str = "") -> Iterator[Host]:
    """`build_vm` for a task that follows a job there: Ctrl-C leaves the job running. `stop` is how to stop it."""
    try:
        with build_vm(settings, again) as host:
            yield host
    except KeyboardInterrupt:
        raise Interrupted(f"left; what runs on the VM goes on: `{again}` goes back to it{stop}") from None


@contextlib.contextmanager
def _host(settings: Settings) -> Iterator[Host]:
    section = settings.build
    if section.host is None:
        yield LocalHost(name="this machine", workdir=str(settings.root / LOCAL_FOLDER))
        return
    with translate_errors(UsageError, ValueError, before="build.host: "):
        destination = Destination(host=section.host, user=section.user, port=section.port, identity=section.identity)
    with SshHost(name=section.host, destination=destination) as host:
        yield host


def tmpdir_on(settings: Settings, host: Host, given: str | None) -> str:
    """The folder on the VM for large files: `--tmpdir`, else build.tmpdir, else the host's own. Raises UsageError."""
    tmp = given or settings.build.tmpdir or host.workdir
    if not tmp.startswith("/"):
        raise UsageError(f"--tmpdir: expected an absolute path on the VM, found {tmp!r}")
    return tmp.rstrip("/") or "/"


def to_task_error(error: HostError, again: str) -> TaskFailed:
    """An error of the VM as the task's, with the command to type next where the message has none."""
    if isinstance(error, (HostKeyRefused, WorkdirUnsafe, ModelDamaged, FetchRefused)):
        return ConfirmationRequired(str(error))
    if isinstance(error, (InvalidAddress, LoginRefused, EngineError, FetchError, WorkdirError)):
        return UsageError(str(error))
    if isinstance(error, TooMuchOutput):  # it would print the same the next time
        return TaskFailed(str(error))
    if isinstance(error, JobFailed):
        return _job_failed(error, again)
    return RetryableError(f"{error}; `{again}` tries again")


def _job_failed(error: JobFailed, again: str) -> TaskFailed:
    advice = {
        "full": f"; free some space there, then `{again}` goes on from what is cached",
        "transient": f"; that tends to pass: `{again}`",
        "changed": f"; `{again}`",
        "stopped": f"; `{again}` starts it anew",
        "lost": f"; `{again}` starts it anew",
    }
    if error.kind in ("unauthorized", "forbidden", "absent", "usage"):
        return UsageError(str(error))
    if error.kind == "refused":
        return ConfirmationRequired(str(error))
    return RetryableError(f"{error}{advice[error.kind]}") if error.kind in advice else TaskFailed(str(error))


def show_line(line: JobLine) -> None:
    """Print a line of a job's log: seconds since the job began, the stage, the text."""
    # As one line each, whatever they hold: a line break could begin one that looks like ours.
    print(f"[{line.elapsed_sec:7.1f}s] {one_printable(line.stage):<20.20} {one_printable(line.text)}", flush=True)


def show_cut(error: HostError) -> None:
    print(f"... {one_line(error)}; the job goes on, connecting again", flush=True)
