"""Statuses of trials and exit codes. Standard library only, Python 3.9, so that host code can use the values.

Each member is one row with everything that depends on it.
"""

from enum import Enum, IntEnum


class ExitCode(IntEnum):
    """Exit codes of every program here: the operator's commands, `python -m bench`, and the programs on hosts."""

    OK = 0
    FAILED = 1  # a trial or the task failed; what it wrote is valid
    BAD_INPUT = 2  # an unusable setting, flag or file; nothing was started
    RETRYABLE = 3  # stopped by something that may pass
    REFUSED = 4  # for safety: a checksum, another run's lock, another user's folder
    UNDECIDED = 5  # a comparison that shows neither a difference nor that there is none
    NOT_WRITTEN = 74  # the trial ran but its result could not be written (sysexits' EX_IOERR)
    CANNOT_START = 127  # the program does not exist (as in a shell)
    INTERRUPTED = 130  # 128 + SIGINT
    BROKEN_PIPE = 141  # 128 + SIGPIPE: `list | head`
    STOPPED = 143  # 128 + SIGTERM


class TrialStatus(str, Enum):
    """Final status of a trial. Every planned trial reaches exactly one.

    `label` and `tone` are for people: words, and the color of a terminal. `exit_code` is that of the trial's process.
    `is_resumable`: a resumed run retries the trial, because it was stopped or lost before it had a result.
    `is_transient`: the same run may retry it.
    """

    label: str
    tone: str
    exit_code: ExitCode
    is_resumable: bool
    is_transient: bool

    def __new__(
        cls, value: str, label: str, tone: str, exit_code: ExitCode, is_resumable: bool, is_transient: bool
    ) -> "TrialStatus":
        member = str.__new__(cls, value)
        member._value_ = value
        member.label, member.tone, member.exit_code = label, tone, exit_code
        member.is_resumable, member.is_transient = is_resumable, is_transient
        return member

    # value, label, tone, exit code, is_resumable, is_transient
    SUCCEEDED = "SUCCEEDED", "done", "green", ExitCode.OK, False, False
    OUT_OF_MEMORY = "OUT_OF_MEMORY", "out of memory", "red", ExitCode.FAILED, False, False
    FAILED = "FAILED", "failed", "red", ExitCode.FAILED, False, False
    TIMED_OUT = "TIMED_OUT", "timed out", "red", ExitCode.FAILED, False, False
    PREEMPTED = "PREEMPTED", "preempted", "red", ExitCode.STOPPED, True, True
    LOST = "LOST", "lost", "red", ExitCode.FAILED, True, True
    CANCELLED = "CANCELLED", "cancelled", "yellow", ExitCode.INTERRUPTED, True, False

    @property
    def is_failure(self) -> bool:
        """True if the trial itself failed: it neither succeeded nor was stopped from outside."""
        return not self.is_resumable and self is not TrialStatus.SUCCEEDED
