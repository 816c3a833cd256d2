"""docs/troubleshooting.md, made of the checks: what `inv doctor` says and what the document says is one text."""

from collections.abc import Sequence
from itertools import groupby

from tasks.doctor.check import Check
from tasks.doctor.result import WORDS

DOCUMENT = "docs/troubleshooting.md"
_HEAD = """\
# Troubleshooting

Made by `inv doctor --document` from the checks (`tasks/doctor/checks`): what stands here is what `inv doctor` says.
Type `inv doctor`: it asks all of this at once, in at most 20 s, and says in a line each what it found and the one
command or setting that mends it. `inv doctor --only cluster,nodes` asks a part, `--json` is for programs. The exit code
is 0 where nothing is to mend, 1 where something is, 3 where all that is wrong may pass by itself.

{marks}

A file of settings that cannot be used is said before any check, in one line with file and line number (exit code 2).
"""


def text(checks: Sequence[Check]) -> str:
    marks = " · ".join(f"{mark.value} {word}" for mark, word in WORDS.items())
    parts = [_HEAD.format(marks=f"{marks}, and why")]
    for subject, group in groupby(checks, key=lambda check: check.subject):
        parts.append(f"## {subject}\n")
        for check in group:
            parts.append(f"**{check.title}**: {check.asks}\n")
            if rows := check.rows():
                lines = (f"| {_cell(what)} | {_cell(remedy)} |" for what, remedy in rows)
                parts.append("\n".join(("| what is said | what mends it |", "|---|---|", *lines)) + "\n")
    return "\n".join(parts)


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
