"""A check as a value, and the checks of one subject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Fault

CheckFunction = Callable[[CheckContext], CheckResult | Sequence[CheckResult]]
Others = Callable[[], Sequence[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question. `look` asks it: its answers, or it raises NotAsked or a task's error, which is an answer too.

    `faults` are those that `look` says in words of its own. `others` come from what it calls, as (what, remedy).
    """

    subject: str
    name: str
    asks: str
    look: CheckFunction
    faults: tuple[Fault, ...] = ()
    others: Others | None = None

    @property
    def title(self) -> str:
        return f"{self.subject} {self.name}"

    def rows(self) -> list[tuple[str, str]]:
        """What it may say, and what mends it, each once: for the document."""
        own = (fault.shown() for fault in self.faults)
        return list(dict.fromkeys((*own, *(self.others() if self.others else ()))))


class Checks(list[Check]):
    """The checks of one subject, in the order in which they are printed."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self._subject = subject

    def asks(
        self, name: str, question: str, *faults: Fault, others: Others | None = None
    ) -> Callable[[CheckFunction], CheckFunction]:
        """Makes the function below it the `look` of a check."""

        def add(look: CheckFunction) -> CheckFunction:
            self.append(Check(subject=self._subject, name=name, asks=question, look=look, faults=faults, others=others))
            return look

        return add
