"""Parallel run of the checks: each in its own thread, all with one deadline.

A check that hangs is abandoned: its daemon thread ends with the command.
"""

import threading
from collections.abc import Iterator, Sequence
from time import monotonic

from remote.hosts.base import HostError
from tasks.doctor.check import Check
from tasks.doctor.context import TIMEOUT_SEC, CheckContext, translate_vm_errors
from tasks.errors import RetryableError, TaskFailed
from tasks.faults import CheckResult, CheckStatus, Skipped, from_error


def run_checks(
    checks: Sequence[Check], context: CheckContext, timeout_sec: float = TIMEOUT_SEC
) -> Iterator[tuple[Check, list[CheckResult]]]:
    """Run the checks in parallel. Yields each with its results, in the order of `checks`."""
    deadline = monotonic() + timeout_sec
    threads = [_CheckThread(check, context) for check in checks]
    for thread in threads:
        thread.done.wait(max(0.0, deadline - monotonic()))
        yield thread.check, thread.results or [_timeout_result(timeout_sec)]


class _CheckThread:
    """Check in its own thread. `results` is empty until it has ended."""

    def __init__(self, check: Check, context: CheckContext) -> None:
        self.check, self.done = check, threading.Event()
        self.results: list[CheckResult] = []
        threading.Thread(target=self._run, args=(context,), name=check.title, daemon=True).start()

    def _run(self, context: CheckContext) -> None:
        self.results = run_check(self.check, context)
        self.done.set()


def run_check(check: Check, context: CheckContext) -> list[CheckResult]:
    """Run a check and return its results; every error becomes a result."""
    try:
        with translate_vm_errors():
            results = check.run(context)
    except Skipped as reason:
        return [CheckResult(status=CheckStatus.SKIP, message=str(reason))]
    except TaskFailed as error:
        return [from_error(error, is_transient=isinstance(error, RetryableError))]
    except TimeoutError:
        return [_timeout_result(TIMEOUT_SEC)]
    except (OSError, HostError) as error:
        return [from_error(error)]
    except Exception as error:  # noqa: BLE001 - a bug in one check must not hide the results of the others
        message = f"the check itself failed: {type(error).__name__}: {error}"
        remedy = "report it, with the output of `inv doctor --json`"
        return [CheckResult(status=CheckStatus.FAIL, message=message, remedy=remedy)]
    return [results] if isinstance(results, CheckResult) else list(results)


def _timeout_result(timeout_sec: float) -> CheckResult:
    message = f"no answer within {timeout_sec:g} s"
    remedy = "check the network, the VPN or the bastion, then rerun `inv doctor`"
    return CheckResult(status=CheckStatus.FAIL, message=message, remedy=remedy, is_transient=True)
