"""What a report has written, as its readers see it."""

import csv
import html
import io
import re

from reports.output.build import ReportSummary

HOSTILE = "=cmd|' /C calc'!A0 <script>alert(\"x\")</script> [a](b) $y$ `c` *d* & 漢字"


def read(made: ReportSummary, name: str) -> str:
    return (made.index.parent / name).read_text(encoding="utf-8")


def page_text(made: ReportSummary) -> str:
    """What a reader sees: the page without its tags, styles and drawings."""
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", "", read(made, "index.html"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def check_hostile(made: ReportSummary, sheet: str) -> list[str]:
    """HOSTILE is text on the page, in the Markdown and in the CSV file `sheet`, whose cells are returned."""
    markdown = read(made, "report.md")
    assert HOSTILE in page_text(made)
    assert "<script" not in markdown
    assert "<img" not in markdown
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    cells = [cell for row in csv.reader(io.StringIO(read(made, sheet))) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t"))]
    return cells
