"""Check with its question, function and possible faults, and the list of checks of one subject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.doctor.context import CheckContext
from tasks.faults import CheckResult, Fault

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
