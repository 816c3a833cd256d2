"""Faults, each with one message and remedy, which a check of `inv doctor` reports."""

import enum
from dataclasses import KW_ONLY, dataclass

from remote.providers import GENERIC, Provider


class CheckStatus(enum.Enum):
    """Outcome of a check: the printed character, label and style, and the state in JSON, part of its format."""

    OK = "✓", "ok", "green", "fine"
    WARN = "!", "to note", "yellow", "careful"
    FAIL = "✗", "to fix", "bold red", "wrong"
    SKIP = "–", "skipped", "dim", "unasked"  # noqa: RUF001 - the dash of a table's empty cell

    def __init__(self, mark: str, label: str, style: str, json_state: str) -> None:
        self.mark, self.label, self.style, self.json_state = mark, label, style, json_state


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of a check: the finding, and the command or setting that fixes it."""

    status: CheckStatus
    message: str
    remedy: str = ""
    is_transient: bool = False


def passed(message: str) -> CheckResult:
    return CheckResult(status=CheckStatus.OK, message=message)


@dataclass(frozen=True)
class Fault:
    """A possible problem. `message` and `remedy` have {names}, which `result` fills in.

    Names of `Provider.texts` are filled in from the provider.
    """

    message: str
    remedy: str
    _: KW_ONLY
    status: CheckStatus = CheckStatus.FAIL
    is_transient: bool = False

    def result(self, provider: Provider = GENERIC, /, **values: object) -> CheckResult:
        """Return a result for this fault. Raises KeyError for a missing value."""
        values = {**provider.texts, **values}
        message, remedy = self.message.format_map(values), self.remedy.format_map(values)
        return CheckResult(status=self.status, message=message, remedy=remedy, is_transient=self.is_transient)


class Skipped(Exception):
    """A check that does not apply; the message gives the reason."""


def from_error(error: object, *, is_transient: bool = False) -> CheckResult:
    """Return a failed result for an error or a finding, with its remedy if it has one."""
    message, remedy = getattr(error, "problem", str(error)), getattr(error, "remedy", "")
    return CheckResult(status=CheckStatus.FAIL, message=message, remedy=remedy, is_transient=is_transient)
