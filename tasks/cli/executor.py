"""Executor of a chain of tasks: validates the settings, then runs one task after the other.

It differs from Invoke's executor in these ways: a bad setting is rejected before the first task starts, a run named
for one task is that of the next ones, `collect report` still runs after a bench with failed trials, and Ctrl-C exits
with 130.
"""

import errno
import logging
import signal
import sys
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.executor import Executor

from bench.records.atomic_files import DISK_ERRNOS
from tasks.cli.log import log_command
from tasks.cli.signals import set_ctrl_c_handler
from tasks.errors import Interrupted, SomeTrialsFailed, UsageError, disk_error
from tasks.settings.layers import load

_logger = logging.getLogger(__name__)
_OWNER = "check its owner and mode"
_PATH_REMEDIES = {errno.EACCES: _OWNER, errno.EPERM: _OWNER, errno.ENAMETOOLONG: "name another one"}


class ChainExecutor(Executor):
    """Executor that stops at the first error. Only after SomeTrialsFailed it continues, and then exits with 1."""

    def execute(self, *tasks: Any) -> Any:
        old_handler = signal.getsignal(signal.SIGINT)
        try:
            set_ctrl_c_handler(signal.default_int_handler)
            return self._execute(*tasks)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error
        except OSError as error:
            if error.filename and error.errno in _PATH_REMEDIES:
                remedy = _PATH_REMEDIES[error.errno]
                raise UsageError(f"{error.filename}: {error.strerror}", remedy=remedy) from error
            if error.errno not in DISK_ERRNOS:
                raise
            raise disk_error(f"{error.filename}: " if error.filename else "", error) from error
        finally:
            set_ctrl_c_handler(old_handler)

    def _execute(self, *tasks: Any) -> Any:
        results_folder = load(Context(self.config)).results_folder
        calls = self.normalize(tasks)
        if self.config.tasks.dedupe:
            calls = self.dedupe(calls)
        results: dict[Any, Any] = {}
        last_failure: SomeTrialsFailed | None = None
        run: str | None = None
        for call in calls:
            typed, flags = call.kwargs, getattr(call.task, "flags", {})  # a plain task has none
            takes_newest = any((flag.name or name) == "run" and flag.unset for name, flag in flags.items())
            named = [typed[flag] for flag in ("run", "resume") if isinstance(typed.get(flag), str)]
            if takes_newest and not named:
                typed["run"] = run
            run = next(iter(named), run)
            log_command(call.task.name, results_folder)
            try:
                results.update(super().execute((call.called_as or call.task.name, typed)))
            except SomeTrialsFailed as failure:
                last_failure = failure
                _logger.error("%s", failure)
                print(failure, file=sys.stderr)
        if last_failure is not None:
            raise Exit(code=last_failure.code) from last_failure
        return results
