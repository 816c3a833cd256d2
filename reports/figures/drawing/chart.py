"""Types of a figure. A chart gathers a little plain data from a run, if any; the data can draw and describe itself.

Gathering and drawing are separate so that another process can draw from the gathered data, and so that tests can check
a figure's numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from matplotlib.figure import Figure

from reports.figures.drawing.layout import Header, Sheet
from reports.read.run import Run
from reports.summary.summary import Summary


class Drawing(Protocol):
    """A figure's data, which can draw and describe itself. `caption` explains how to read it; `alt` is its text
    alternative."""

    @property
    def header(self) -> Header: ...
    @property
    def caption(self) -> str: ...
    @property
    def alt(self) -> str: ...
    def draw(self, sheet: Sheet) -> Figure: ...


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure. `gather` returns its drawing, or None if the run has no data for it.

    `needs` then names the missing data, and `command` the command that measures it, if a single one does. `workload`
    names the only one whose trials it shows. A figure with `is_folded` supports a decision rather than leading to it:
    the page shows its title, and a click opens it.
    """

    name: str
    title: str
    needs: str
    gather: Callable[[Summary, Run], Drawing | None]
    command: str = ""
    workload: str = ""
    is_folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn chart: its files' bytes, inline SVG for wide and for narrow screens, its caption and its alt text.

    `finding` is the figure's result in a sentence.
    """

    name: str
    title: str
    finding: str
    png: bytes
    svg: bytes
    wide_svg: str
    narrow_svg: str
    caption: str
    alt: str
    is_folded: bool = False


def make_header(summary: Summary, title: str, *facts: str) -> Header:
    """Make a header with device, profile and run, then `facts` (n, intervals, prices, published sources)."""
    common = (summary.hosts.device, f"profile {summary.record.profile}", f"run {summary.record.run_id}")
    return Header(title=title, facts=(*common, *filter(None, facts)), note=summary.profile_note)
