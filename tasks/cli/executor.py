"""How Invoke runs a chain of tasks here: settings first, then one task after the other.

Named in invoke.yaml as `tasks.executor_class`. It differs from Invoke's own executor in four ways: a flag with an empty
value and a bad setting are refused before the first task starts, `collect report` still runs after a bench with failed
trials, and Ctrl-C exits with 130.
"""

import os
import signal
import sys
from typing import Any

from invoke.context import Context
from invoke.exceptions import AmbiguousEnvVar, Exit, UncastableEnvVar
from invoke.executor import Executor

from tasks.cli.parser import refuse_empty_values
from tasks.cli.signals import on_ctrl_c
from tasks.errors import DISK, Interrupted, SomeTrialsFailed, UsageError, disk_error
from tasks.settings.load import load


class ChainExecutor(Executor):
    """Runs tasks in order; only SomeTrialsFailed lets the next one start, and the chain then exits with 1."""

    def execute(self, *tasks: Any) -> Any:
        refuse_empty_values(tasks)
        before = signal.getsignal(signal.SIGINT)
        try:
            on_ctrl_c(signal.default_int_handler)
            return self._execute(*tasks)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except OSError as error:
            if error.errno not in DISK:
                raise
            raise disk_error(f"{error.filename}: " if error.filename else "", error) from None
        finally:
            on_ctrl_c(before)

    def _execute(self, *tasks: Any) -> Any:
        self._check_settings()
        calls = self.normalize(tasks)
        if self.config.tasks.dedupe:
            calls = self.dedupe(calls)
        results: dict[Any, Any] = {}
        some_failed = False
        for call in calls:
            try:
                results.update(super().execute((call.called_as or call.task.name, call.kwargs)))
            except SomeTrialsFailed as failure:
                some_failed = True
                print(failure, file=sys.stderr)
        if some_failed:
            raise Exit(code=1)
        return results

    def _check_settings(self) -> None:
        load(Context(self.config))
        try:
            self.config.load_shell_env()
        except (AmbiguousEnvVar, UncastableEnvVar, ValueError, TypeError) as error:
            # Invoke casts to the type of the file's value, so that 60.5 over 60 is an error to it and not to us.
            names = ", ".join(sorted(name for name in os.environ if name.startswith("INVOKE_")))
            raise UsageError(
                f"environment: Invoke cannot use one of {names or 'no variables'}: {error}; set it in a file instead"
            ) from None
