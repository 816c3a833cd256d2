"""Statuses of trials, their causes, and exit codes: each is one row with everything that depends on it; failures.

Standard library only, Python 3.9, so that host code can use the values.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any

from bench.records.version import SCHEMA_VERSION

if TYPE_CHECKING:
    from typing import Self


class ExitCode(IntEnum):
    """Exit codes of every program here: the operator's commands, `python -m bench`, and the programs on hosts."""

    OK = 0
    FAILED = 1  # a trial or the task failed; what it wrote is valid
    BAD_INPUT = 2  # an unusable setting, flag or file; nothing was started
    RETRYABLE = 3  # stopped by something that may pass
    REFUSED = 4  # for safety: a checksum, another run's lock, another user's folder
    UNDECIDED = 5  # a comparison that shows neither a difference nor its absence
    NOT_WRITTEN = 74  # the trial ran but its result could not be written (sysexits' EX_IOERR)
    CANNOT_START = 127  # the program does not exist, as in a shell
    INTERRUPTED = 130  # 128 + SIGINT
    BROKEN_PIPE = 141  # 128 + SIGPIPE: `list | head`
    STOPPED = 143  # 128 + SIGTERM


class TrialStatus(str, Enum):
    """Final status of a trial. Every planned trial reaches exactly one.

    `label` and `tone` are for people: words, and the color on a terminal. `exit_code` is that of the trial's process.
    `is_external`: it was stopped or lost before it had a result, which says nothing about its configuration.
    `is_transient`: the same run may retry it.
    """

    _value_: str
    label: str
    tone: str
    exit_code: ExitCode
    is_external: bool
    is_transient: bool

    def __new__(
        cls,
        value: str,
        label: str = "",
        tone: str = "",
        exit_code: ExitCode = ExitCode.FAILED,
        is_external: bool = False,
        is_transient: bool = False,
    ) -> TrialStatus:
        member = str.__new__(cls, value)
        member._value_ = value
        member.label, member.tone, member.exit_code = label, tone, exit_code
        member.is_external, member.is_transient = is_external, is_transient
        return member

    # value, label, tone, exit code, is_external, is_transient
    SUCCEEDED = "SUCCEEDED", "done", "green", ExitCode.OK
    OUT_OF_MEMORY = "OUT_OF_MEMORY", "out of memory", "red"
    FAILED = "FAILED", "failed", "red"
    TIMED_OUT = "TIMED_OUT", "timed out", "red"
    PREEMPTED = "PREEMPTED", "preempted", "red", ExitCode.STOPPED, True, True
    LOST = "LOST", "lost", "red", ExitCode.FAILED, True, True
    CANCELLED = "CANCELLED", "cancelled", "yellow", ExitCode.INTERRUPTED, True

    @property
    def is_failure(self) -> bool:
        """True if the trial itself failed: it neither succeeded nor was stopped from outside."""
        return not self.is_external and self is not TrialStatus.SUCCEEDED

    @property
    def default_cause(self) -> ReasonCode | None:
        """The cause of a record without a known one: the first of this status's causes. None for SUCCEEDED."""
        return _default_causes().get(self)


RESUME_REMEDY = "`{resume}` resumes it from its last checkpoint"
RETRY_REMEDY = "`{resume}` tries it again from its last checkpoint, and `inv collect report` shows the results so far"
# Attributes that differ from those of the status.
_LIMIT = {"is_transient": False, "counts_as_attempt": False, "remedy": "raise that limit, then run `{resume}`"}
_NOT_BEGUN = {"is_rejected": True, "remedy": "{fix}, then run `{resume}`"}
_FROM_OUTSIDE = {"counts_as_attempt": False}


class ReasonCode(str, Enum):
    """Cause of a status. The first cause of each status is its default.

    `label` is for people. `is_transient`: the same run may retry the trial. `counts_as_attempt`: a training's attempt
    that ended so uses up one of its restarts. `is_rejected`: the trial did not begin, and may restart once its input is
    fixed. `may_still_run`: its end is not confirmed. `is_worker_faulty`: the worker gets no more trials of the run, and
    a training keeps no step after it. `exit_code` is that of the operator's command, and `remedy` what it prints, for a
    training that ended so; `{resume}` is the command that resumes it, `{fix}` the remedy of the failure.
    """

    _value_: str
    status: TrialStatus
    label: str
    is_transient: bool
    counts_as_attempt: bool
    is_rejected: bool
    may_still_run: bool
    is_worker_faulty: bool
    exit_code: ExitCode
    remedy: str

    def __new__(
        cls,
        value: str,
        status: TrialStatus = TrialStatus.FAILED,
        label: str = "",
        attributes: dict[str, Any] | None = None,
    ) -> ReasonCode:
        member = str.__new__(cls, value)
        member._value_ = value
        member.status, member.label, member.is_transient = status, label, status.is_transient
        member.counts_as_attempt, member.is_rejected, member.may_still_run = True, False, False
        member.is_worker_faulty = False
        member.exit_code = ExitCode.RETRYABLE if status.is_external else ExitCode.FAILED
        member.remedy = RESUME_REMEDY if status.is_external else RETRY_REMEDY
        for name, item in (attributes or {}).items():
            setattr(member, name, item)
        return member

    OUT_OF_MEMORY = "out_of_memory", TrialStatus.OUT_OF_MEMORY, "the memory was used up"
    ERROR = "error", TrialStatus.FAILED, "the trial reported an error"
    NON_FINITE_LOSS = "non_finite_loss", TrialStatus.FAILED, "the loss was not finite"
    BAD_INPUT = "bad_input", TrialStatus.FAILED, "unusable input", {**_NOT_BEGUN, "exit_code": ExitCode.BAD_INPUT}
    INPUT_REJECTED = (
        *("input_rejected", TrialStatus.FAILED, "damaged or unexpected input"),
        {**_NOT_BEGUN, "exit_code": ExitCode.REFUSED},
    )
    PROCESS_FAILED = "process_failed", TrialStatus.FAILED, "its process failed without a result"
    RESULT_MISMATCH = "result_mismatch", TrialStatus.FAILED, "its result is of another trial"
    DEADLINE = "deadline", TrialStatus.TIMED_OUT, "the deadline passed"
    WORKER_STOPPED = "worker_stopped", TrialStatus.PREEMPTED, "its worker was told to stop", _FROM_OUTSIDE
    MAX_HOURS = "max_hours", TrialStatus.PREEMPTED, "train.max_hours was reached", _LIMIT
    WORKER_LOST = "worker_lost", TrialStatus.LOST, "its worker was lost"
    SUPERVISOR_LOST = "supervisor_lost", TrialStatus.LOST, "its job left no exit code"
    KILLED = "killed", TrialStatus.LOST, "its process was killed"
    RANK_LOST = "rank_lost", TrialStatus.LOST, "a rank was lost"
    START_TIMED_OUT = "start_timed_out", TrialStatus.LOST, "a rank's machine did not join in time", _FROM_OUTSIDE
    FOLDER_IN_USE = (
        *("folder_in_use", TrialStatus.LOST, "an attempt on another machine uses its checkpoint folder"),
        _FROM_OUTSIDE,
    )
    CONNECTION_LOST = "connection_lost", TrialStatus.LOST, "the connection between ranks broke"
    GPU_FAULT = (
        *("gpu_fault", TrialStatus.LOST, "its GPU has a fault"),
        {"is_worker_faulty": True, "remedy": "cordon its node, then run `{resume}`"},
    )
    NO_RESULT = "no_result", TrialStatus.LOST, "it left no result"
    RESULT_UNVERIFIED = "result_unverified", TrialStatus.LOST, "its result is damaged"
    CANNOT_START = "cannot_start", TrialStatus.LOST, "its program cannot be started"
    NOT_WRITTEN = "not_written", TrialStatus.LOST, "its result could not be written"
    NO_WORKER = "no_worker", TrialStatus.LOST, "no worker may run it"
    RESTARTS_USED_UP = "restarts_used_up", TrialStatus.LOST, "all restarts are used up", {"is_transient": False}
    CANCELLED = "cancelled", TrialStatus.CANCELLED, "cancelled by the operator"
    CANCEL_UNCONFIRMED = (
        "cancel_unconfirmed",
        TrialStatus.CANCELLED,
        "its end is not confirmed",
        {"may_still_run": True},
    )
    UNKNOWN = "unknown", TrialStatus.FAILED, "unknown cause"

    @classmethod
    def _missing_(cls, value: object) -> ReasonCode | None:
        return cls.UNKNOWN if isinstance(value, str) else None  # written by a newer version


# Causes of attempts without a result, by the exit code of their process. Most did not begin, because of their input.
EXIT_CAUSES: dict[int | None, ReasonCode] = {
    **{code.exit_code: code for code in ReasonCode if code.is_rejected},
    ExitCode.CANNOT_START: ReasonCode.CANNOT_START,
    ExitCode.NOT_WRITTEN: ReasonCode.NOT_WRITTEN,
}


@dataclass(frozen=True)
class Outcome:
    """A trial's status with its cause, `reason` and `remedy` as one line each; only the status for SUCCEEDED."""

    status: TrialStatus
    reason_code: ReasonCode | None = None
    reason: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, code: ReasonCode, reason: str, remedy: str | None = None) -> Outcome:
        """Return the outcome of a cause, with the cause's status."""
        return cls(code.status, code, reason, remedy)

    @property
    def cause(self) -> ReasonCode | None:
        """The cause whose attributes hold: the default of the status if the code is missing or unknown."""
        return self.status.default_cause if self.reason_code in (None, ReasonCode.UNKNOWN) else self.reason_code

    @property
    def is_transient(self) -> bool:
        """True if the same run may retry the trial: neither the trial itself nor its limit ended it."""
        return self.cause is not None and self.cause.is_transient

    @property
    def is_final(self) -> bool:
        """True if the attempt's own verified end is behind it: a reopened trial needs another attempt."""
        return self.status.is_failure or (self.cause is not None and self.cause.is_worker_faulty)

    @property
    def text(self) -> str | None:
        """Reason and remedy in one line, for people; the cause's label without a reason."""
        if self.reason_code is None:
            return self.reason
        is_unknown = self.reason_code is ReasonCode.UNKNOWN
        reason = f"{self.reason_code.label}: {self.reason}" if is_unknown and self.reason else self.reason
        return join_remedy(reason or self.reason_code.label, self.remedy)

    def problem_and_remedy(self, resume: str) -> tuple[str | None, str]:
        """Return what ended a training and what to type next; `resume` is the command that resumes it.

        The remedy of a rejected input is its own, with that command.
        """
        if self.cause is None:
            return self.text, ""
        problem = dataclasses.replace(self, remedy=None) if self.cause.is_rejected else self
        return problem.text, self.cause.remedy.format(resume=resume, fix=self.remedy or "fix that")


class Failure(Exception):
    """Error that says what failed as `problem`, and as `remedy` what to type next.

    Its text is one printable line, which joins them by "; ".
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem, self.remedy = escape_controls(problem), escape_controls(remedy)
        super().__init__(join_remedy(self.problem, self.remedy))

    @classmethod
    def from_error(cls, error: BaseException, *, prefix: str = "", remedy: str = "") -> Self:
        """Return this failure for another error, with the error's own remedy before `remedy`."""
        own = getattr(error, "remedy", "")
        return cls(f"{prefix}{getattr(error, 'problem', error)}", remedy=join_remedy(own, remedy))


def failure_to_json(failure: Failure, code: ReasonCode) -> dict[str, Any]:
    """Return the failure as the JSON that a program prints for the program that started it."""
    cause = {"reason_code": code.value, "reason": failure.problem, "remedy": failure.remedy}
    return {"kind": "error", "schema_version": SCHEMA_VERSION, **cause}


def read_failure(output: bytes) -> tuple[ReasonCode, Failure] | None:
    """Read the failure in the last line of a program's output; None without one."""
    lines = output.strip().splitlines()
    try:
        document = json.loads(lines[-1]) if lines and lines[-1].startswith(b"{") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("kind") != "error":
        return None
    code, reason, remedy = (document.get(name) for name in ("reason_code", "reason", "remedy"))
    if not isinstance(code, str) or not isinstance(reason, str) or not isinstance(remedy, str):
        return None
    return ReasonCode(code), Failure(reason, remedy=remedy)


def escape_controls(text: str) -> str:
    """Escape line breaks, control characters and lone surrogates: the result is one line, safe on any terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def join_remedy(problem: str | None, remedy: str | None) -> str:
    """Join what failed and what to type next to one line for people."""
    return "; ".join(filter(None, (problem, remedy)))


@functools.cache
def _default_causes() -> dict[TrialStatus, ReasonCode]:
    return {code.status: code for code in reversed(ReasonCode)}
