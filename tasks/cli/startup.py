"""Repairs of Invoke at start-up: its exit code for wrong usage, and its tracebacks over settings files."""

from __future__ import annotations

import sys
from types import TracebackType

from invoke.config import Config
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser import parser
from invoke.parser.context import ParserContext

from tasks.errors import UsageError


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
            from tasks.settings.load import load  # pydantic, which `inv --list` does without

            try:
                load(Context(config))
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
