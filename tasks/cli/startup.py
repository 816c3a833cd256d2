"""Repairs of Invoke at start-up: its exit code for wrong usage, and its tracebacks over settings files."""

import sys
from types import TracebackType

from invoke.config import Config
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser import parser
from invoke.parser.context import ParserContext

from tasks.errors import UsageError


class _WrongUsage(ParseError, Exit):
    """An unknown task or flag, in the words of Invoke's parser, with the exit code for wrong usage."""

    code = UsageError.exit_code

    def __init__(self, msg: str, context: ParserContext | None = None) -> None:
        Exception.__init__(self, msg)
        self.context, self.message = context, None  # Invoke would print the message of an Exit a second time


def exit_with_2_for_wrong_usage() -> None:
    """Make an unknown task or flag exit with 2; Invoke alone exits with 1, as for a failed task.

    The parser raises the ParseError of its module, which is replaced here. Not covered: `inv --help UNKNOWN`.
    """
    parser.ParseError = _WrongUsage  # type: ignore[attr-defined]


def explain_settings_failures() -> None:
    """Make a settings file that Invoke cannot parse one line on standard error, instead of a traceback.

    Invoke parses invoke.yaml and the -f file before any task runs, and lets the parser's exceptions out. Not covered:
    ~/.invoke.yaml and /etc/invoke.yaml, which are parsed before this package is imported.
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
        # By module and not by class: the parsers below Config raise many classes.
        if isinstance(holder, Config) and trace.tb_frame.f_globals.get("__name__") == "invoke.config":
            return holder
        trace = trace.tb_next
    return None
