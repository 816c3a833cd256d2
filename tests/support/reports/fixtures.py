"""Fixtures of run folders and reports, and readers of a report's files."""

import csv
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reports.figures.drawing import style
from reports.output import write_report
from reports.output.write_report import Report
from reports.read.loaded_run import Run
from reports.read.run_folder import load
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from tests.support.reports import showcase, synthetic

REAL_PNG = style.to_png
ONE_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


@pytest.fixture(scope="session")
def a10(tmp_path_factory: pytest.TempPathFactory) -> tuple[Summary, Run]:
    """Two A10 nodes with every workload, two configurations out of memory. Read-only."""
    folder = tmp_path_factory.mktemp("a10")
    showcase.write(folder)
    run = load(folder)
    return summarize(run), run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Path for a run, with a space and a quote, which users' paths may contain."""
    return tmp_path / "my 'results'" / "run"


@pytest.fixture(scope="session", autouse=True)
def draw_without_png() -> Iterator[None]:
    """Draw figures without PNGs, a third of the time. tests/integration/reports/figures/test_figures.py covers one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "to_png", lambda _: ONE_PIXEL)
        yield


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Report[Summary]:
    """The report of `synthetic.exact_run`, with its figures. Read-only."""
    folder = tmp_path_factory.mktemp("exact") / "my 'results'" / "run"
    synthetic.exact_run(folder)
    return write_report.build(folder)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build reports without figures, which would take nearly all of the time of a test that reads only text."""
    monkeypatch.setattr(write_report, "CHARTS", ())


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
