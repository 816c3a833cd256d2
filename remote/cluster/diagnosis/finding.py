"""A finding: one thing that is wrong, with what, why, and what to do; and several of them as lines of text."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

SOON_SEC, PATIENT_SEC = 10.0, 120.0
_MOST_NAMED = 8


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is wrong: which kind of thing (`cause`, for tests and tables), why, what to do, with what.

    `patience_sec` is how long this may last before there is no point in waiting; None: it may pass at any time.
    """

    cause: str
    reason: str
    remedy: str
    patience_sec: float | None = PATIENT_SEC
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}; {self.remedy}"

    def document(self) -> dict[str, str]:
        """The finding for programs."""
        return {"cause": self.cause, "subject": self.subject, "reason": self.reason, "remedy": self.remedy}

    def of(self, subject: str) -> Self:
        """The same finding about `subject`."""
        return replace(self, subject=subject)


class Rule(NamedTuple):
    """A pattern in Kubernetes' own words, what it is called here, and what to do."""

    pattern: str
    cause: str
    remedy: str


def first(rules: Sequence[Rule], text: str) -> Rule | None:
    """The first rule whose pattern occurs in the text."""
    return next((rule for rule in rules if re.search(rule.pattern, text)), None)


def together(findings: Iterable[Diagnosis]) -> list[str]:
    """One line for each reason and remedy, with every pod or claim that it concerns."""
    subjects: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        subjects.setdefault((finding.reason, finding.remedy), []).append(finding.subject)
    return [f"{_all_of(held)}: {reason}; {remedy}" for (reason, remedy), held in subjects.items()]


def _all_of(subjects: list[str]) -> str:
    """`pod a`; `pods a, b and c`; of many the first few. Subjects of several kinds are listed as they are."""
    kinds = {subject.partition(" ")[0] for subject in subjects}
    if len(subjects) == 1 or len(kinds) > 1:
        return ", ".join(subjects)
    names = [subject.partition(" ")[2] for subject in subjects]
    shown = names if len(names) <= _MOST_NAMED else [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]
    return f"{kinds.pop()}s {', '.join(shown[:-1])} and {shown[-1]}"
