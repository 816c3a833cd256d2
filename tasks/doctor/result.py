"""What a check says, and a fault that can be said: its words and its remedy are in one place."""

import enum
import string
from dataclasses import dataclass


class CheckStatus(enum.Enum):
    """How a check ended."""

    FINE = "✓"
    CAREFUL = "!"
    WRONG = "✗"
    UNASKED = "–"  # noqa: RUF001 - the dash of a table's empty cell


WORDS = {
    CheckStatus.FINE: "fine",
    CheckStatus.CAREFUL: "to know",
    CheckStatus.WRONG: "to mend",
    CheckStatus.UNASKED: "not asked",
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What was found, and the one command or setting that mends it. `passes`: it may pass by itself."""

    mark: CheckStatus
    found: str
    remedy: str = ""
    passes: bool = False


def fine(found: str) -> CheckResult:
    return CheckResult(mark=CheckStatus.FINE, found=found)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What can be wrong. `what` and `remedy` hold {names}, which `seen` fills in and the document shows in capitals."""

    what: str
    remedy: str
    mark: CheckStatus = CheckStatus.WRONG
    passes: bool = False

    def seen(self, **values: object) -> CheckResult:
        """This fault as an answer. Raises KeyError where a value is missing."""
        found, remedy = self.what.format_map(values), self.remedy.format_map(values)
        return CheckResult(mark=self.mark, found=found, remedy=remedy, passes=self.passes)

    def shown(self) -> tuple[str, str]:
        """What and remedy for the document, each {name} as NAME."""
        names = {name for text in (self.what, self.remedy) for _, name, _, _ in string.Formatter().parse(text) if name}
        capitals = {name: name.upper().replace("_", "-") for name in names}
        return self.what.format_map(capitals), self.remedy.format_map(capitals)


class Skipped(Exception):
    """The check asked nothing; the message says why."""


def from_error(message: str, *, passes: bool = False) -> CheckResult:
    """An error of a task as an answer: by the house's rule its remedy follows its first semicolon."""
    found, _, remedy = message.partition("; ")
    return CheckResult(mark=CheckStatus.WRONG, found=found, remedy=remedy, passes=passes)
