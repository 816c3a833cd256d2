"""Check with its question, function and possible faults, and the list of checks of one subject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Fault

CheckFunction = Callable[[CheckContext], CheckResult | Sequence[CheckResult]]
TableRows = Callable[[], Sequence[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question. `run` returns its results, or raises Skipped or a task's error, which becomes a result.

    `faults` are the faults that `run` itself reports. `other_rows` returns messages of the code that it calls, as
    (message, remedy), for the document.
    """

    subject: str
    name: str
    question: str
    run: CheckFunction
    faults: tuple[Fault, ...] = ()
    other_rows: TableRows | None = None

    @property
    def title(self) -> str:
        return f"{self.subject} {self.name}"

    def document_rows(self) -> list[tuple[str, str]]:
        """Return the possible (message, remedy) pairs without duplicates, for the document."""
        own = (fault.document_row() for fault in self.faults)
        return list(dict.fromkeys((*own, *(self.other_rows() if self.other_rows else ()))))


class Checks(list[Check]):
    """List of the checks of one subject, in the order of their output."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self._subject = subject

    def register(
        self, name: str, question: str, *faults: Fault, other_rows: TableRows | None = None
    ) -> Callable[[CheckFunction], CheckFunction]:
        """Return a decorator that registers the function as the `run` of a check."""

        def add(function: CheckFunction) -> CheckFunction:
            check = Check(
                subject=self._subject, name=name, question=question, run=function, faults=faults, other_rows=other_rows
            )
            self.append(check)
            return function

        return add
