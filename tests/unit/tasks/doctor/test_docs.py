"""docs/troubleshooting.md is that of the checks, each of which has a question and a remedy for each of its faults."""

import os
import string
from collections.abc import Iterable
from itertools import groupby

from remote.providers import GENERIC, PROVIDERS, REMEDIES
from tasks.doctor.doctor import all_checks
from tasks.faults import CheckStatus, Fault
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
HEADER = """\
# Troubleshooting

`inv doctor` runs all checks at once, in at most 20 s, and prints one line for each: the finding, and the command or
setting that fixes it. `inv doctor --only cluster,nodes` runs some of them; `--json` is for programs. The exit code is 0
without problems, 1 with a problem to fix, and 3 if all problems may be transient. This page, made from the checks, has
their own findings; what Kubernetes, the engine, the bench or a file says is printed with its remedy, too.

{statuses}

An invalid settings file is reported before any check, in one line with file and line number (exit code 2).
"""


def test_the_document_is_up_to_date() -> None:
    text = render()
    if os.environ.get("UPDATE_GOLDEN"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert DOCUMENT.read_text(encoding="utf-8") == text


def test_every_check_asks_a_question_and_has_a_title_of_its_own_and_every_fault_a_remedy() -> None:
    checks = all_checks()
    assert [check.title for check in checks if "?" not in check.question] == []
    assert len({check.title for check in checks}) == len(checks)
    assert [fault for check in checks for fault in check.faults if not (fault.message and fault.remedy)] == []


def render() -> str:
    statuses = " · ".join(f"{status.mark} {status.label}" for status in CheckStatus)
    parts = [HEADER.format(statuses=f"{statuses}, with the reason")]
    for subject, group in groupby(all_checks(), key=lambda check: check.subject):
        parts.append(f"## {subject}\n")
        for check in group:
            parts.append(f"**{check.title}**: {check.question}\n")
            if check.faults:
                parts.append(_table("message", "fix", map(document_row, check.faults)))
    for provider in PROVIDERS.values():
        if provider.remedies:
            parts.append(f"## On provider {provider.name}\n")
            rows = [(REMEDIES[key], remedy) for key, remedy in provider.remedies.items()]
            parts.append(_table("fix elsewhere", "fix there", rows))
    return "\n".join(parts)


def _table(first: str, second: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = ("| {} | {} |".format(*(text.replace("|", "\\|") for text in row)) for row in rows)
    return "\n".join((f"| {first} | {second} |", "|---|---|", *lines)) + "\n"


def document_row(fault: Fault) -> tuple[str, str]:
    """Return message and remedy for the document, each {name} as NAME."""
    parse = string.Formatter().parse
    names = {name for text in (fault.message, fault.remedy) for _, name, _, _ in parse(text) if name}
    capitals = {name: GENERIC.texts.get(name, name.upper().replace("_", "-")) for name in names}
    return fault.message.format_map(capitals), fault.remedy.format_map(capitals)
