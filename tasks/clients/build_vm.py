"""Connection to the build VM of the settings, with its failures translated to exit codes."""

import contextlib
from collections.abc import Iterator

from remote.hosts.host_protocol import (
    Host,
    HostError,
    HostKeyRefused,
    InvalidAddress,
    LoginRefused,
    TooMuchOutput,
    collapse_whitespace,
)
from remote.hosts.local import LocalHost
from remote.hosts.ssh.config import Destination
from remote.hosts.ssh.host import SshHost
from remote.image.context import ContextError
from remote.image.engine import EngineDown, EngineError
from remote.image.plan import ModelDamaged
from remote.image.vm_jobs import JobFailed, WorkdirError, WorkdirUnsafe
from tasks.errors import (
    ConfirmationRequired,
    RetryableError,
    TaskFailed,
    UsageError,
    escape_controls,
    translate_errors,
)
from tasks.settings.layers import Settings

LOCAL_FOLDER = ".buildvm"  # the jobs' folder if this machine is the VM


@contextlib.contextmanager
def build_vm(settings: Settings, retry_command: str, *, here: bool = False) -> Iterator[Host]:
    """Connect to the host of `build.host`, or `here` to this machine. `retry_command` resumes the task.

    Errors of the host inside the block become task errors with exit codes.
    """
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(_host(settings, here=here))
        except HostError as error:
            raise to_task_error(error, retry_command) from error


@contextlib.contextmanager
def _host(settings: Settings, *, here: bool) -> Iterator[Host]:
    section = settings.build
    if section.host is None or here:
        yield LocalHost(name="this machine", workdir=str(settings.folder / LOCAL_FOLDER))
        return
    with translate_errors(UsageError, ValueError, prefix="build.host: "):
        destination = Destination(host=section.host)
    with SshHost(name=section.host, destination=destination) as host:
        yield host


def resolve_tmpdir(settings: Settings, host: Host, flag: str | None) -> str:
    """Return the folder on the VM for large files: `--tmpdir`, else build.tmpdir, else the host's workdir.

    Raises UsageError for a relative path.
    """
    tmp = flag or settings.build.tmpdir or host.workdir
    if not tmp.startswith("/"):
        raise UsageError(f"--tmpdir: expected an absolute path on the VM, found {tmp!r}")
    return tmp.rstrip("/") or "/"


# The error of a task and its remedy, by the kind of a job's failure and by the class of another error.
_JOB_ERRORS: dict[str, tuple[type[TaskFailed], str]] = {
    **dict.fromkeys(("unauthorized", "forbidden", "absent", "usage"), (UsageError, "")),
    "refused": (ConfirmationRequired, ""),
    "full": (RetryableError, "free space there, then `{}` resumes from the cache"),
    "transient": (RetryableError, "retry with `{}`"),
    "changed": (RetryableError, "`{}`"),
    **dict.fromkeys(("stopped", "lost"), (RetryableError, "`{}` restarts it")),
}
_ERRORS: tuple[tuple[tuple[type[HostError], ...], type[TaskFailed], str], ...] = (
    ((HostKeyRefused, WorkdirUnsafe, ModelDamaged), ConfirmationRequired, ""),
    ((EngineDown,), RetryableError, "then `{}`"),
    ((InvalidAddress, LoginRefused, EngineError, ContextError, WorkdirError), UsageError, ""),
    ((TooMuchOutput,), TaskFailed, ""),  # a retry would print the same output
    ((HostError,), RetryableError, "`{}` retries"),
)


def to_task_error(error: HostError, retry_command: str) -> TaskFailed:
    """Translate an error of the VM to a task error, with the retry command if the message has no remedy."""
    if isinstance(error, JobFailed):
        kind, remedy = _JOB_ERRORS.get(error.kind, (TaskFailed, ""))
    else:
        kind, remedy = next((kind, remedy) for classes, kind, remedy in _ERRORS if isinstance(error, classes))
    return kind.from_error(error, remedy=remedy.format(retry_command))


def print_job_line(elapsed_sec: float, stage: str, text: str) -> None:
    """Print a line of a job's log."""
    # Escape line breaks, which could forge a line of this log.
    print(f"{elapsed_sec:8.1f} s {escape_controls(stage):<12.12} {escape_controls(text)}", flush=True)


def print_reconnect(error: HostError) -> None:
    print(f"... {collapse_whitespace(error)}; the job continues, reconnecting", flush=True)
