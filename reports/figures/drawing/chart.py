"""A chart gathers a little plain data from a run, or finds none; the data knows how it is drawn and described.

Gathering is apart from drawing so that drawing can happen in another process with only that data sent to it, and so
that what a figure shows can be tested as numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from matplotlib.figure import Figure

from reports.figures.drawing.layout import Header, Sheet
from reports.read.run import Run
from reports.summary.summary import Summary


class Drawing(Protocol):
    """What a figure gathered, and how it is drawn and described. `caption` is one plain sentence that says what to see;
    `alt` the same figure for those who cannot see it."""

    @property
    def header(self) -> Header: ...
    @property
    def caption(self) -> str: ...
    @property
    def alt(self) -> str: ...
    def draw(self, sheet: Sheet) -> Figure: ...


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure. `gather` gives its drawing, None where the run has no data for it; `needs` then says what would make
    it appear, and `command` what to type for that, where one command does it. `folded` on the page are those that
    support a decision rather than lead to it: there its title stands, and a click opens it."""

    name: str
    title: str
    needs: str
    gather: Callable[[Summary, Run], Drawing | None]
    command: str = ""
    is_folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn chart: its files' bytes, inline SVG for wide and for narrow screens, its caption and its alt text.

    `finding` is what the figure says, in a sentence."""

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
    """A head that says on what device and in which run, then `facts` (n, intervals, prices, published sources)."""
    common = (summary.hosts.device, f"profile {summary.record.profile}", f"run {summary.record.run_id}")
    return Header(title=title, facts=(*common, *filter(None, facts)), note=summary.profile_note)
