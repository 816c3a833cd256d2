"""How a task ends when not all is well: one line on standard error and an exit code a script can act on.

    1 some trials failed, the report still stands · 2 bad configuration or usage · 3 transient, can be resumed
    4 refused for safety · 130 interrupted

Invoke prints an `Exit`'s message and leaves with its code; these classes give the codes their names.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import ClassVar

from invoke.config import Config
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser import parser
from invoke.parser.context import ParserContext


def one_line(text: str) -> str:
    """`text` with line breaks, control characters and lone surrogates written as escapes: safe on any terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


class TaskFailed(Exit):
    """A task could not do its work, for a reason none of the codes below names. Exit code 1; stops a chain of tasks."""

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


class Resumable(TaskFailed):
    """Stopped by something that may pass; the message ends with the command that goes on from here. Exit code 3."""

    exit_code = 3


class Refused(TaskFailed):
    """Not done because it would not be safe: a checksum, a host key, another run's lock. Exit code 4."""

    exit_code = 4


class Interrupted(TaskFailed):
    """Stopped by Ctrl-C. Exit code 130."""

    exit_code = 130


class _WrongUsage(ParseError, Exit):
    """An unknown task or flag, as Invoke's parser words and prints it, with the exit code that wrong usage has here."""

    code = UsageError.exit_code

    def __init__(self, msg: str, context: ParserContext | None = None) -> None:
        Exception.__init__(self, msg)
        self.context, self.message = context, None  # the message of an Exit would be printed once more


def exit_with_2_for_wrong_usage() -> None:
    """From now on an unknown task or flag exits with 2; Invoke alone would exit with 1, as for a failed task.

    The parser raises what its module calls ParseError; this is that name. `inv --help UNKNOWN` is not the parser's.
    """
    parser.ParseError = _WrongUsage  # type: ignore[attr-defined]


def explain_settings_failures() -> None:
    """From now on, say in one line what Invoke itself would show as a traceback while it reads the settings' files.

    Invoke parses invoke.yaml and the -f file before any task of ours runs and lets the parser's exceptions out. Only
    ~/.invoke.yaml and /etc/invoke.yaml are out of reach: they are parsed before this package is imported.
    """
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        config = _config_being_read(trace)
        if config is not None and isinstance(error, Exception):
            from tasks.settings import load as settings

            try:
                settings.load(Context(config))
            except UsageError as problem:
                sys.stderr.write(f"{problem}\n")
                raise SystemExit(problem.code) from None
        before(kind, error, trace)

    sys.excepthook = hook


def _config_being_read(trace: TracebackType | None) -> Config | None:
    while trace is not None:
        holder = trace.tb_frame.f_locals.get("self")
        # By file name, because the parsers below Config raise many classes, and more ValueErrors of their own.
        if isinstance(holder, Config) and trace.tb_frame.f_globals.get("__name__") == "invoke.config":
            return holder
        trace = trace.tb_next
    return None
