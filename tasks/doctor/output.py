"""The answers as lines for people and as one JSON document for programs."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from tasks.doctor.check import Check
from tasks.doctor.result import WORDS, CheckResult, CheckStatus
from tasks.errors import one_line

_STYLES = {
    CheckStatus.FINE: "green",
    CheckStatus.CAREFUL: "yellow",
    CheckStatus.WRONG: "bold red",
    CheckStatus.UNASKED: "dim",
}
Asked = tuple[Check, Sequence[CheckResult]]


def show(screen: Console, asked: Sequence[Asked], width: int) -> None:
    """A subject's answers, a line each; neighbours that were not asked for one reason share a line."""
    for (mark, words), rows in groupby(_rows(asked), key=lambda row: row[1:]):
        titles, style = [title for title, *_ in rows], _STYLES[mark]
        title = titles[0] if len(titles) == 1 else f"{asked[0][0].subject}, {len(titles)} checks"
        text = (words, style if mark is CheckStatus.UNASKED else "")
        screen.print(Text.assemble((mark.value, style), " ", f"{title:<{width}}", "  ", text))


def _rows(asked: Sequence[Asked]) -> Iterator[tuple[str, CheckStatus, str]]:
    for check, said in asked:
        for answer in said:
            remedy = f"; {answer.remedy}" if answer.remedy else ""
            yield check.title, answer.mark, one_line(f"{answer.found}{remedy}")


def summary(asked: Sequence[Asked], took_sec: float) -> str:
    """How many answers of each kind, and the seconds that it took."""
    count = Counter(answer.mark for _, said in asked for answer in said)
    words = [f"{count[mark]} {WORDS[mark]} {mark.value}" for mark in CheckStatus if count[mark]]
    return f"{', '.join(words)}; {len(asked)} checks in {took_sec:.1f} s"


def document(asked: Sequence[Asked], took_sec: float) -> str:
    rows = [
        {
            "subject": check.subject,
            "check": check.name,
            "asks": check.asks,
            "state": answer.mark.name.lower(),
            "found": answer.found,
            "remedy": answer.remedy or None,
            "may_pass": answer.passes,
        }
        for check, said in asked
        for answer in said
    ]
    return json.dumps(
        {"kind": "doctor", "schema_version": 1, "took_sec": round(took_sec, 2), "answers": rows}, indent=1
    )
