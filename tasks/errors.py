"""How a task ends when something failed: one line on standard error, and an exit code for scripts.

    1 some trials failed, the report still stands · 2 bad configuration or usage · 3 transient, can be resumed
    4 refused for safety · 130 interrupted

Invoke prints an `Exit`'s message and exits with its code; these classes name the codes.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from invoke.exceptions import Exit

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # what may befall any file that a task writes, and pass


def one_line(text: str) -> str:
    """`text` with line breaks, control characters and lone surrogates as escapes: safe on any terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


class TaskFailed(Exit):
    """A task failed, for a reason that none of the codes below names. Exit code 1; stops a chain of tasks."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message), self.exit_code)

    def __str__(self) -> str:
        return self.message or ""


class SomeTrialsFailed(TaskFailed):
    """The task finished, but not every trial succeeded. A chain goes on, and ends with exit code 1."""


class UsageError(TaskFailed):
    """A setting, flag or input that cannot be used: says what, where, and what to type next. Exit code 2."""

    exit_code = 2


@contextlib.contextmanager
def file_errors(what: object, remedy: str = "") -> Iterator[None]:
    """Within, a file is read or written. Raises UsageError where that fails: `what` failed, why, and the remedy; on a
    full disk Resumable.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK:
            raise disk_error(f"{what}: ", error) from None
        raise UsageError(f"{what}: {error.strerror or error}{remedy}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what}: not UTF-8 text{remedy}") from None


@contextlib.contextmanager
def translate_errors(
    end: type[TaskFailed], *errors: type[Exception], before: str = "", after: str = ""
) -> Iterator[None]:
    """Within, each of these errors ends the task as `end`, in its own words between those before and after it."""
    try:
        yield
    except errors as error:
        raise end(f"{before}{error}{after}") from None


def writing(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Within, the results folder or something in it is written. Raises UsageError where that fails."""
    remedy = "; check owner, permissions and free space, or set results.folder to another folder"
    return file_errors(f"results.folder: {folder}: cannot be written", remedy)


class RetryableError(TaskFailed):
    """Stopped by something that may pass; the message ends with the command that resumes. Exit code 3."""

    exit_code = 3


def disk_error(before: str, error: OSError) -> RetryableError:
    """What is said of an error of DISK, with what mends it."""
    remedy = "make the disk writable" if error.errno == errno.EROFS else "free space there"
    return RetryableError(f"{before}{error.strerror}; {remedy}, then type the same again")


class ConfirmationRequired(TaskFailed):
    """Refused because it would not be safe: a checksum, a host key, another run's lock. Exit code 4."""

    exit_code = 4


class Interrupted(TaskFailed):
    """Stopped by Ctrl-C. Exit code 130."""

    exit_code = 130
