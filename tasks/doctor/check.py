"""Check with its question, function and possible faults, list of one subject, and parallel run with a deadline."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from remote.hosts.base import HostError
from tasks.doctor.context import TIMEOUT_SEC, CheckContext, SharedFact, translate_vm_errors
from tasks.errors import RetryableError, TaskFailed
from tasks.faults import CheckResult, CheckStatus, Fault, Skipped, from_error

CheckFunction = Callable[[CheckContext], CheckResult | Sequence[CheckResult]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question. `run` returns its results, or raises Skipped or a task's error, which becomes a result.

    `faults` are the faults that `run` itself reports, `messages.json` has those of the code that it calls.
    """

    subject: str
    name: str
    question: str
    run: CheckFunction
    faults: tuple[Fault, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.subject} {self.name}"


class Checks(list[Check]):
    """List of the checks of one subject, in the order of their output."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self._subject = subject

    def register(self, name: str, question: str, *faults: Fault) -> Callable[[CheckFunction], CheckFunction]:
        """Return a decorator that registers the function as the `run` of a check."""

        def add(function: CheckFunction) -> CheckFunction:
            self.append(Check(subject=self._subject, name=name, question=question, run=function, faults=faults))
            return function

        return add


def run_checks(
    checks: Sequence[Check], context: CheckContext, timeout_sec: float = TIMEOUT_SEC
) -> Iterator[tuple[Check, list[CheckResult]]]:
    """Run the checks in parallel. Yields each with its results, in the order of `checks`.

    A check that hangs is abandoned: its daemon thread ends with the command.
    """
    deadline = monotonic() + timeout_sec
    facts = [SharedFact(partial(run_check, check, context), check.title) for check in checks]
    for fact in facts:
        fact.start()
    for check, fact in zip(checks, facts, strict=True):
        try:
            yield check, fact.get_or_raise(max(0.0, deadline - monotonic()))
        except TimeoutError:
            yield check, [_timeout_result(timeout_sec)]


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
