"""Finding: one problem with its subject, reason and remedy; rules for messages of Kubernetes; findings as lines."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

import yaml

from bench.records.status import join_remedy

SHORT_PATIENCE_SEC, DEFAULT_PATIENCE_SEC = 10.0, 120.0
_MAX_NAMES = 8


@dataclass(frozen=True)
class Diagnosis:
    """One problem. `cause` is its machine-readable kind.

    `patience_sec` is how long to wait before it counts as permanent; None: it may pass at any time.
    """

    cause: str
    reason: str
    remedy: str
    patience_sec: float | None = DEFAULT_PATIENCE_SEC
    subject: str = ""

    @property
    def problem(self) -> str:
        return f"{self.subject}: {self.reason}"

    def __str__(self) -> str:
        return join_remedy(self.problem, self.remedy)

    def to_dict(self) -> dict[str, str]:
        """Return the finding for JSON output."""
        return {"cause": self.cause, "subject": self.subject, "reason": self.reason, "remedy": self.remedy}

    def with_subject(self, subject: str) -> Self:
        """Return a copy about `subject`."""
        return replace(self, subject=subject)


class Rule(NamedTuple):
    """A pattern in a message of Kubernetes, and its meaning; the {names} in `remedy` are those of `Provider.texts`."""

    pattern: str
    cause: str
    remedy: str
    problem: str = ""
    patience_sec: float | None = SHORT_PATIENCE_SEC

    def finding(self, reason: str, texts: Mapping[str, str] = MappingProxyType({})) -> Diagnosis:
        """Return the finding with this reason; `texts` are the names in the remedy."""
        return Diagnosis(self.cause, reason, self.remedy.format_map(texts), self.patience_sec)


NO_RULE = Rule("", "", "")


@cache
def _rules() -> dict[str, list[Rule]]:
    document = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
    return {topic: [Rule(**fields) for fields in rules] for topic, rules in document.items()}


def first_match(topic: str, text: str) -> Rule:
    """Return the first rule of a topic of rules.yaml whose pattern occurs in the text, or NO_RULE."""
    return next((rule for rule in _rules()[topic] if re.search(rule.pattern, text)), NO_RULE)


def group(findings: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return one finding per reason and remedy, about every pod, node or claim that it concerns."""
    groups: dict[tuple[str, str], list[Diagnosis]] = {}
    for finding in findings:
        groups.setdefault((finding.reason, finding.remedy), []).append(finding)
    return [same[0].with_subject(_join_subjects([finding.subject for finding in same])) for same in groups.values()]


def grouped_lines(findings: Iterable[Diagnosis]) -> list[str]:
    """Format one line per reason and remedy."""
    return [str(finding) for finding in group(findings)]


def _join_subjects(subjects: list[str]) -> str:
    more = len(subjects) - _MAX_NAMES
    return ", ".join(subjects[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
