"""Program `inv`: Invoke with one-line errors and our exit codes.

Plain Invoke prints a traceback for a settings file that it cannot parse, exits with 1 for wrong usage and for Ctrl-C,
and does not handle a closed terminal. `python -m invoke` still works, without these improvements.
"""

import contextlib
import faulthandler
import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from invoke._version import __version__
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.program import Program

from bench.records.version import VERSION
from tasks.cli import log
from tasks.cli.command_result import JSON_FLAG, print_error_object
from tasks.cli.flags import Command, Section, load_target
from tasks.cli.help import explain_command, list_commands, section_of
from tasks.cli.parser import patch_parser, refuse_empty_values, suggest
from tasks.cli.signals import exit_now, set_ctrl_c_handler, set_hangup_handler
from tasks.cli.streams import guard_standard_streams
from tasks.errors import Interrupted, UsageError
from tasks.settings.sources import ProjectConfig, env_name, is_installed

# Invoke's flags for commands that it runs itself. No task here uses it for that: `inv deploy --dry` would deploy.
_HIDDEN_CORE_FLAGS = ("command-timeout", "dry", "echo", "hide", "prompt-for-sudo-password", "pty", "warn-only")
_LIST_FORMATS = ("flat", "nested", "json")
_EXECUTOR = "tasks.cli.executor.ChainExecutor"  # imported by Invoke when a task runs

_logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the command line. Prints an error as one line on standard error; returns the exit code."""
    faulthandler.register(signal.SIGUSR1, file=2)  # `kill -USR1 PID` prints every thread's stack
    set_hangup_handler()
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
        self._has_options = False  # for `inv --help`

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
        self.parse_core(list(argv))
        refuse_empty_values(self.core)
        if self.args.help.value is True:  # Invoke would print its options and stop before it loads the tasks
            self._has_options, self.args.help._value = True, None
        with _working_directory():
            self.parse_collection()
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

    @property
    def _commands(self) -> list[Command]:
        """Our commands of the listed group, or all; a plain task of another collection is not one."""
        collections = (self.scoped_collection, *self.scoped_collection.collections.values())
        tasks = [task for collection in collections for task in collection.tasks.values()]
        return [task for task in tasks if isinstance(task, Command)]

    def list_flat(self) -> None:
        commands = [] if self.list_depth else self._commands
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
            print(explain_command(command, self.parser.contexts[name]))
            if name in self.collection.collections:  # a group, whose default task has its name
                others = [task for task in self.collection.collections[name].tasks.values() if task is not command]
                print(f"{list_commands(others)}\n")
        else:
            super().print_task_help(name)

    def print_version(self) -> None:
        print(f"{log.DISTRIBUTION} {VERSION}, Invoke {__version__}, Python {'.'.join(map(str, sys.version_info[:3]))}")

    def no_tasks_given(self) -> None:
        """Print the tasks for a bare `inv`, and for `inv --help` also Invoke's options, which it prints otherwise."""
        print("Usage: inv TASK [--flags] [TASK ...]\n")
        self.list_tasks()
        print("`inv help TASK` explains a task, `inv help NAME` lists one group (image) or one")
        print(f"section ({', '.join(section.topic for section in Section)}).")
        print("Tasks that show something have --json, tasks that change something --dry-run.")
        if self._has_options:
            print("\nOptions before the first task:")
            self.print_columns(self.initial_context.help_tuples())
        raise Exit

    def parse_tasks(self) -> None:
        self._parse_help_request()
        self._refuse_values_of_switches()
        try:
            super().parse_tasks()
        except ParseError:
            self._refuse_settings()
            raise
        self._apply_debug_flag()  # after a task, as in `inv bench --debug`
        tasks = self.parser.contexts
        for word in self.core.unparsed:  # to the parser, `--resume=collect` is the same as `--resume collect`
            flag, _, value = word.partition("=")
            if value in tasks and any(flag in task.flags and task.flags[flag].optional for task in tasks.values()):
                raise UsageError(
                    f"{word}: {value} is a task", remedy=f"type `{flag} {value}` to run one after the other"
                )

    def _parse_help_request(self) -> None:
        """Turn `inv help X` and `inv GROUP` into `--help X` and `--list GROUP`."""
        groups, names = self.collection.collections, self.collection.task_names
        tasks = {name for primary, aliases in names.items() for name in (primary, *aliases)}
        typed = self.core.unparsed
        is_help = typed[:1] == ["help"] and "help" not in tasks
        topics = typed[1:] if is_help else typed
        if is_help and not topics:
            self.no_tasks_given()
        if is_help and topics[0] not in (*groups, *tasks) and (section := section_of(topics[0])) is not None:
            print(f"{list_commands(command for command in self._commands if command.section is section)}\n")
            raise Exit
        if not is_help and not (len(topics) == 1 and topics[0] in groups and topics[0] not in tasks):
            return
        argument = self.args.list if topics[0] in groups and topics[0] not in tasks else self.args.help
        argument.value = topics[0]
        typed.clear()

    def _refuse_values_of_switches(self) -> None:
        """Raise UsageError for `--quick=yes`: the parser would take the value for a task's name."""
        if not any("=" in word for word in self.core.unparsed):
            return
        contexts = self.collection.to_contexts()
        tasks = {name: context for context in contexts for name in (context.name, *context.aliases)}
        task = None
        for word in self.core.unparsed:
            flag, separator, value = word.partition("=")
            task = tasks.get(word, task)
            if separator and task is not None and flag in task.flags and task.flags[flag].kind is bool:
                raise UsageError(
                    f"{task.name}: {flag}: expected no value, found {value!r}", remedy=f"type `{flag}`, or omit it"
                )

    def _refuse_settings(self) -> None:
        """Raise UsageError for a setting typed as a flag that its task lacks, with how to give it."""
        tasks, name, argv = self.parser.contexts, "", self.core.unparsed
        for word, following in zip(argv, [*argv[1:], "-"], strict=True):
            flag, _, value = word.partition("=")
            name = word if word in tasks else name
            if not name or not flag.startswith("--") or flag in tasks[name].flags or flag in self.initial_context.flags:
                continue
            command = self.collection[name]
            section = "train" if name == "data.check" else name
            keys = load_target("tasks.settings.layers:setting_of")(flag, section)
            if keys is None or not isinstance(command, Command):
                continue
            value = value or (following if following[:1] != "-" and following not in tasks else "VALUE")
            setting, variable = ".".join(keys), f"{env_name(keys)}={shlex.quote(value)}"
            flags = [flag for flag, declared in command.flags.items() if declared.setting == setting]
            line = ": { ".join(keys) + f": {value}" + " }" * (len(keys) - 1)
            remedy = f"once: `{variable} inv {name}`; always, in ~/.invoke.yaml: `{line}`"
            if flags:
                remedy = f"did you mean --{flags[0].replace('_', '-')}?"
            raise UsageError(f"{name}: {flag}: no such flag, but {setting} is a setting", remedy=remedy)

    def parse_cleanup(self) -> None:
        name = self.args.help.value
        if isinstance(name, str) and name not in self.parser.contexts:
            raise ParseError(f"{name}: no such task{suggest(name, self.parser.contexts)}")
        if (list_format := self.args["list-format"].value) not in _LIST_FORMATS:
            raise ParseError(f"--list-format: expected one of {', '.join(_LIST_FORMATS)}, found {list_format!r}")
        if self.args.all.value and not self.args.list.value:
            raise ParseError("--all: no such flag without --list; type `inv --list --all`")
        group, groups = self.args.list.value, self.collection.collections
        if isinstance(group, str) and group not in groups:
            raise ParseError(f"--list {group}: no such group of tasks{suggest(group, groups)}")
        with contextlib.suppress(*[ValueError] * self.args.complete.value):  # a line to complete with an open quote
            super().parse_cleanup()
        if self.args.complete.value:
            raise Exit


@contextlib.contextmanager
def _working_directory() -> Iterator[None]:
    """Turn the errors of a search that begins in an unusable working directory into UsageError."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError("the current directory was deleted", remedy="`cd` to an existing one") from error
    except PermissionError as error:
        remedy = "`cd` to another one"
        raise UsageError("the current directory cannot be read: Permission denied", remedy=remedy) from error


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
