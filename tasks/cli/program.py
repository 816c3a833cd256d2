"""Program `inv`: Invoke with one-line errors and our exit codes.

Plain Invoke prints a traceback for a settings file that it cannot parse, and exits with 1 for wrong usage and Ctrl-C.
"""

import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from invoke._version import __version__
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.program import Program

from bench.records.version import VERSION
from tasks.cli import log
from tasks.cli.command_result import JSON_FLAG, print_error_object
from tasks.cli.flags import Command
from tasks.cli.help import explain_command, list_commands
from tasks.cli.parser import patch_parser, suggest
from tasks.cli.signals import exit_now, set_ctrl_c_handler
from tasks.cli.streams import guard_standard_streams
from tasks.errors import Interrupted, UsageError
from tasks.settings.sources import ProjectConfig, is_installed

# Invoke's flags for commands that it runs itself. No task here uses it for that: `inv deploy --dry` would deploy.
_HIDDEN_CORE_FLAGS = ("command-timeout", "dry", "echo", "hide", "prompt-for-sudo-password", "pty", "warn-only")
_LIST_FORMATS = ("flat", "nested", "json")
_EXECUTOR = "tasks.cli.executor.ChainExecutor"  # imported by Invoke when a task runs

_logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the command line. Prints an error as one line on standard error; returns the exit code."""
    faulthandler.register(signal.SIGUSR1, file=2)  # `kill -USR1 PID` prints every thread's stack
    set_ctrl_c_handler(exit_now)  # while a task runs, `tasks.cli.executor` sets another handler
    guard_standard_streams()
    log.start_log()
    patch_parser()
    try:
        try:
            _InvProgram().run_argv(argv)
        finally:
            sys.stdout.flush()
        return 0
    except ParseError as error:
        return _print_error(UsageError.from_error(error), argv)
    except Exit as error:
        return _print_error(error, argv)
    except KeyboardInterrupt:
        return _print_error(Interrupted("interrupted"), argv)
    except Exception as error:
        _logger.exception("unexpected error: report it with this log")
        if JSON_FLAG in argv:
            print_error_object(error)
        raise


class _InvProgram(Program):
    """Invoke's program with our reading of settings. It raises its errors, which `main` prints."""

    def __init__(self) -> None:
        super().__init__(name="Invoke", binary="inv[oke]", binary_names=["inv", "invoke"], version=__version__)

    def core_args(self) -> list[Argument]:
        core_args = [core_arg for core_arg in super().core_args() if core_arg.names[0] not in _HIDDEN_CORE_FLAGS]
        return [*core_args, Argument(name="all", kind=bool, default=False, help="With --list: list every task.")]

    def parse_core_args(self) -> None:
        super().parse_core_args()
        self._apply_debug_flag()

    def _apply_debug_flag(self) -> None:
        """Print our log, not Invoke's: that one has the answers of every client library, with the secrets in them."""
        if self.args.debug.value:
            self.args.debug.value = False
            log.print_debug()

    def update_config(self, merge: bool = True) -> None:
        # Like Invoke's method, without the removed flags.
        path: Any = self.args.config.value or os.environ.get("INVOKE_RUNTIME_CONFIG")
        self.config.set_runtime_path(path)
        tasks = {"executor_class": _EXECUTOR, "dedupe": not self.args["no-dedupe"].value}
        self.config.load_overrides({"tasks": tasks}, merge=merge)

    def run_argv(self, argv: Sequence[str]) -> None:
        """Run the steps of `Program.run`. Raises Exit, ParseError, KeyboardInterrupt and the errors of a task."""
        self.config = ProjectConfig()
        self.parse_core([argv[0], "--help", *argv[2:]] if argv[1:2] == ["help"] else list(argv))
        if self.args.help.value is True:  # Invoke would print its options and stop before it loads the tasks
            self.args.help._value = None
            self.core.unparsed.clear()
        try:
            self.parse_collection()
        except (FileNotFoundError, PermissionError) as error:
            problem = f"the current directory cannot be read: {error.strerror}"
            raise UsageError(problem, remedy="`cd` to another one") from error
        self.parse_tasks()
        self.parse_cleanup()
        self.update_config()
        self.execute()

    def load_collection(self) -> None:
        try:
            super().load_collection()
        except UsageError:
            raise
        except Exit as error:
            name, start = self.args.collection.value or "tasks", self.args["search-root"].value or Path.cwd()
            home = Path(__file__).resolve().parents[2]
            if is_installed(home) and name == "tasks" and self.args["search-root"].value is None:
                self.args["search-root"].value = str(home)
                return self.load_collection()
            raise UsageError(
                f"no {name}.py in {start} or above it", remedy=f"`cd {home}`, then rerun the command"
            ) from error

    def list_flat(self) -> None:
        collections = (self.scoped_collection, *self.scoped_collection.collections.values())
        tasks = () if self.list_depth else [task for each in collections for task in each.tasks.values()]
        commands = [task for task in tasks if isinstance(task, Command)]  # other collections have plain tasks
        if not commands:
            super().list_flat()
            return
        daily = [command for command in commands if command.is_daily]
        is_whole = self.args.all.value or self.list_root is not None or not daily
        print(f"{list_commands(commands if is_whole else daily)}\n")
        if not is_whole:
            print(f"{len(commands) - len(daily)} more: `inv --list --all`\n")

    def print_task_help(self, name: str) -> None:
        command = self.collection[name]
        if isinstance(command, Command):
            print(explain_command(command))
        else:
            super().print_task_help(name)

    def print_version(self) -> None:
        print(f"{log.DISTRIBUTION} {VERSION}, Invoke {__version__}, Python {'.'.join(map(str, sys.version_info[:3]))}")

    def no_tasks_given(self) -> None:
        """Print the tasks for a bare `inv` and for `inv --help`."""
        print("Usage: inv [--options] TASK [--flags] [TASK ...]\n")
        self.list_tasks()
        print("`inv help TASK` explains a task. Tasks that show something have --json,")
        print("tasks that change something --dry-run. Before the first task: --config=FILE,")
        print("--debug, --no-dedupe, --version.")
        raise Exit

    def parse_tasks(self) -> None:
        self._refuse_joined_values()
        super().parse_tasks()
        self._apply_debug_flag()  # after a task, as in `inv bench --debug`

    def _refuse_joined_values(self) -> None:
        """Raise UsageError where the parser would take the value of `--quick=yes` or `--resume=collect` for a task."""
        if not any("=" in word for word in self.core.unparsed):
            return
        tasks = {
            name: context for context in self.collection.to_contexts() for name in (context.name, *context.aliases)
        }
        task = None
        for word in self.core.unparsed:
            flag, separator, value = word.partition("=")
            task = tasks.get(word, task)
            if task is None or not separator or (argument := task.flags.get(flag)) is None:
                continue
            if argument.kind is bool or (argument.optional and value in tasks):
                raise UsageError(
                    f"{task.name}: {flag}: expected no value, found {value!r}", remedy=f"type `{flag}`, or omit it"
                )

    def parse_cleanup(self) -> None:
        name = self.args.help.value
        if isinstance(name, str) and name not in self.parser.contexts:
            raise ParseError(f"{name}: no such task{suggest(name, self.parser.contexts)}")
        if (list_format := self.args["list-format"].value) not in _LIST_FORMATS:
            raise ParseError(f"--list-format: expected one of {', '.join(_LIST_FORMATS)}, found {list_format!r}")
        if self.args.all.value and not self.args.list.value:
            raise ParseError("--all: no such flag without --list; type `inv --list --all`")
        try:
            super().parse_cleanup()
        except ValueError:  # a line to complete with an open quote
            if not self.args.complete.value:
                raise
        except Exit as end:
            if end.message:
                raise UsageError(end.message, remedy="`inv --list --all` shows all tasks") from end
            raise
        if self.args.complete.value:
            raise Exit


def _print_error(error: Exit, argv: Sequence[str]) -> int:
    # Wrong usage and a bare `inv --list` are no incidents: they begin no log file.
    is_incident = error.message and error.code and not isinstance(error, UsageError)
    level = logging.ERROR if is_incident else logging.DEBUG
    _logger.log(level, "exit code %s: %s", error.code, error.message or "", exc_info=error if error.message else None)
    if error.message:
        print(error.message, file=sys.stderr)
    if error.code and JSON_FLAG in argv:
        print_error_object(error)
    return int(error.code)
