"""Readers of the files of a report."""

import csv
import html
import io
import re
from typing import Any

from reports.output.write_report import Report

HOSTILE = "=cmd|' /C calc'!A0 <script>alert(\"x\")</script> [a](b) $y$ `c` *d* & 漢字"


def read_report_file(report: Report[Any], name: str) -> str:
    return (report.index.parent / name).read_text(encoding="utf-8")


def page_text(report: Report[Any]) -> str:
    """Return the page's text, without tags, styles and drawings."""
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", "", read_report_file(report, "index.html"), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def check_hostile_is_text(report: Report[Any], csv_name: str) -> list[str]:
    """Assert that HOSTILE is plain text on the page, in the Markdown and in a CSV file; return that file's cells."""
    markdown = read_report_file(report, "report.md")
    assert HOSTILE in page_text(report)
    assert "<script" not in markdown
    assert "<img" not in markdown
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    cells = [cell for row in csv.reader(io.StringIO(read_report_file(report, csv_name))) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "\t"))]
    return cells
