"""Exceptions that end a task with one line on standard error and an exit code for scripts.

Invoke prints the message of an `Exit` and exits with its code; these classes name the codes of
`bench.records.status.ExitCode`.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from invoke.exceptions import Exit

from bench.records.atomic_files import DISK_ERRNOS
from bench.records.status import ExitCode, Failure
from bench.records.status import escape_controls as escape_controls


class TaskFailed(Failure, Exit):
    """A failure for which no class below fits. Exit code 1; stops a chain of tasks.

    `problem` says what failed, where and why; `remedy` what to type next. The printed message joins them by "; ".
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    is_in_answer = False  # a JSON object on standard output already reports it

    @property
    def code(self) -> ExitCode:
        return self.exit_code

    def __str__(self) -> str:
        return self.message or ""


class SomeTrialsFailed(TaskFailed):
    """A finished task with failed trials. A chain continues, and ends with exit code 1."""


class UsageError(TaskFailed):
    """An unusable setting, flag or input. The message names it and what to type next. Exit code 2."""

    exit_code = ExitCode.BAD_INPUT


@contextlib.contextmanager
def file_errors(label: object, remedy: str = "") -> Iterator[None]:
    """Turn errors of reading or writing a file into UsageError: `label`, the reason, `remedy`.

    An error in DISK_ERRNOS becomes RetryableError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise disk_error(f"{label}: ", error) from error
        raise UsageError(f"{label}: {error.strerror or error}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{label}: not UTF-8 text", remedy=remedy) from error


@contextlib.contextmanager
def translate_errors(
    task_error: type[TaskFailed], *error_types: type[Exception], prefix: str = "", remedy: str = ""
) -> Iterator[None]:
    """Turn each of these errors into `task_error`, with `prefix` before its message and `remedy` after its own."""
    try:
        yield
    except error_types as error:
        raise task_error.from_error(error, prefix=prefix, remedy=remedy) from error


def results_write_errors(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn errors of writing below the results folder into UsageError."""
    remedy = "check owner, permissions and free space, or set results.folder to another folder"
    return file_errors(f"results.folder: {folder}: cannot be written", remedy)


class RetryableError(TaskFailed):
    """A transient failure; the message ends with the command that resumes. Exit code 3."""

    exit_code = ExitCode.RETRYABLE


def disk_error(prefix: str, error: OSError) -> RetryableError:
    """Return the task error for an error in DISK_ERRNOS, with its remedy."""
    remedies = {
        errno.EROFS: "make the disk writable",
        errno.EIO: "check the disk (`dmesg`)",
        errno.ESTALE: "check the network file system's server",
    }
    remedy = remedies.get(error.errno or 0, "free space there")
    return RetryableError(f"{prefix}{error.strerror}", remedy=f"{remedy}, then rerun the command")


class ConfirmationRequired(TaskFailed):
    """A refusal for safety: a checksum, a host key, another run's lock. Exit code 4."""

    exit_code = ExitCode.REFUSED


class Undecided(TaskFailed):
    """A comparison that shows neither a difference nor its absence. Exit code 5."""

    exit_code = ExitCode.UNDECIDED


class Interrupted(TaskFailed):
    """An interruption by Ctrl-C. Exit code 130."""

    exit_code = ExitCode.INTERRUPTED


def error_class(code: ExitCode) -> type[TaskFailed]:
    """Return the class of failures with this exit code."""
    classes = (UsageError, RetryableError, ConfirmationRequired, Undecided, Interrupted)
    return next((cls for cls in classes if cls.exit_code == code), SomeTrialsFailed)
