"""Result of a command: data, which one place prints as text, or with --json as one JSON object."""

import enum
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from invoke.exceptions import Exit

from bench.records.status import ExitCode
from bench.records.version import SCHEMA_VERSION
from tasks.errors import TaskFailed, escape_controls

JSON_FLAG = "--json"
_CODE_NAMES = {code.value: code.name.lower() for code in ExitCode}


class Effect(enum.Enum):
    """Effect of a command. Its flags follow: --json for what it shows or plans, --dry-run for what it changes."""

    SHOWS = "shows"
    CHANGES = "changes"
    BOTH = "shows, or changes"
    SESSION = "opens a session"

    @property
    def shows(self) -> bool:
        """True if --json is accepted without --dry-run."""
        return self in (Effect.SHOWS, Effect.BOTH)

    @property
    def changes(self) -> bool:
        """True if the command has --dry-run."""
        return self in (Effect.CHANGES, Effect.BOTH)


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Data that a command shows or plans.

    `show` prints `data` as text. `kind` is that of the JSON object (default: the command's name, with ".plan" for a
    dry run). `failure` ends the command after its data, as of `inv nodes` with too few nodes.
    """

    data: Mapping[str, Any]
    show: Callable[[], None] | None = None
    kind: str = ""
    failure: TaskFailed | None = None


def plan_result(lines: Sequence[str], **data: Any) -> CommandResult:
    """Return the answer of a dry run: `lines` as text, `data` as JSON."""

    def show() -> None:
        for line in (*lines, "dry run: nothing was changed"):
            print(escape_controls(line))

    return CommandResult(data=data, show=show)


def deliver(answer: CommandResult | None, kind: str, out: TextIO, *, as_json: bool) -> None:
    """Print the answer on `out`, as one JSON object or as text. Raises its failure, marked as already printed."""
    if answer is None:
        return
    if as_json:
        error = {} if answer.failure is None else {"error": describe_error(answer.failure)}
        print_object(answer.kind or kind, {**answer.data, **error}, out)
    elif answer.show is not None:
        answer.show()
    if answer.failure is not None:
        answer.failure.is_in_answer = as_json
        raise answer.failure


def print_object(kind: str, fields: Mapping[str, Any], out: TextIO) -> None:
    """Print one JSON object: the kind, SCHEMA_VERSION, then the fields."""
    document = {"kind": kind, "schema_version": SCHEMA_VERSION, **fields}
    is_unicode = (out.encoding or "").lower().startswith("utf")
    print(json.dumps(document, indent=1, ensure_ascii=not is_unicode), file=out, flush=True)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the fields of an error object. `reason_code` is the cause's, otherwise the name of the exit code."""
    exit_code, cause = int(error.code) if isinstance(error, Exit) else int(ExitCode.FAILED), error
    reason_code = getattr(error, "reason_code", None)
    while reason_code is None and cause.__cause__ is not None:
        cause = cause.__cause__
        reason_code = getattr(cause, "reason_code", None)
    message = getattr(error, "problem", None) or str(getattr(error, "message", None) or error) or str(cause)
    return {
        "exit_code": exit_code,
        "reason_code": getattr(reason_code, "value", reason_code) or _CODE_NAMES.get(exit_code, "failed"),
        "message": escape_controls(message),
        "remedy": getattr(error, "remedy", "") or None,
    }


def print_error_object(error: BaseException) -> None:
    """Print an object of kind "error" on standard output, unless the error is part of a printed answer.

    A chain of tasks ends with an Exit whose cause is the failure of one of them.
    """
    if not any(getattr(each, "is_in_answer", False) for each in (error, error.__cause__)):
        print_object("error", describe_error(error), sys.stdout)
