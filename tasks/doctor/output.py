"""Results of the checks as lines and as one JSON document."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from tasks.doctor.check import Check
from tasks.errors import escape_controls
from tasks.faults import STATUS_LABELS, CheckResult, CheckStatus

_STYLES = {
    CheckStatus.OK: "green",
    CheckStatus.WARN: "yellow",
    CheckStatus.FAIL: "bold red",
    CheckStatus.SKIP: "dim",
}
# The states of the JSON document, which are part of its format.
_JSON_STATES = {
    CheckStatus.OK: "fine",
    CheckStatus.WARN: "careful",
    CheckStatus.FAIL: "wrong",
    CheckStatus.SKIP: "unasked",
}
CheckOutcome = tuple[Check, Sequence[CheckResult]]


def print_subject(screen: Console, outcomes: Sequence[CheckOutcome], width: int) -> None:
    """Print the results of a subject, one line each; consecutive equal results share a line."""
    for (status, text), rows in groupby(_rows(outcomes), key=lambda row: row[1:]):
        titles, style = [title for title, *_ in rows], _STYLES[status]
        title = titles[0] if len(titles) == 1 else f"{outcomes[0][0].subject}, {len(titles)} checks"
        styled_text = (text, style if status is CheckStatus.SKIP else "")
        screen.print(Text.assemble((status.value, style), " ", f"{title:<{width}}", "  ", styled_text))


def _rows(outcomes: Sequence[CheckOutcome]) -> Iterator[tuple[str, CheckStatus, str]]:
    for check, results in outcomes:
        for result in results:
            remedy = f"; {result.remedy}" if result.remedy else ""
            yield check.title, result.status, escape_controls(f"{result.message}{remedy}")


def summary(outcomes: Sequence[CheckOutcome], elapsed_sec: float) -> str:
    """Return the number of results with each status, and the elapsed seconds."""
    counter = Counter(result.status for _, results in outcomes for result in results)
    counts = [f"{counter[status]} {STATUS_LABELS[status]} {status.value}" for status in CheckStatus if counter[status]]
    return f"{', '.join(counts)}; {len(outcomes)} checks in {elapsed_sec:.1f} s"


def to_json(outcomes: Sequence[CheckOutcome], elapsed_sec: float) -> str:
    rows = [
        {
            "subject": check.subject,
            "check": check.name,
            "asks": check.question,
            "state": _JSON_STATES[result.status],
            "found": result.message,
            "remedy": result.remedy or None,
            "may_pass": result.is_transient,
        }
        for check, results in outcomes
        for result in results
    ]
    return json.dumps(
        {"kind": "doctor", "schema_version": 1, "took_sec": round(elapsed_sec, 2), "answers": rows}, indent=1
    )
