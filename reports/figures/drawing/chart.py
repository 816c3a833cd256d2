"""What a chart is: it gathers a little plain data from a run, or finds none; the data is drawn, captioned and told.

Gathering is apart from drawing so that drawing can happen in another process with only that data sent to it, and so
that what a figure shows can be tested as numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from reports.figures.drawing.board import Sheet
from reports.read.run import Run
from reports.summary.summary import Summary


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure. `gather` gives its data, None where the run has none; `needs` then says what would make it appear,
    and `command` what to type for that, where one command does it.

    `caption` is one plain sentence that says what to see; `alt` the same figure for those who cannot see it.
    """

    name: str
    title: str
    needs: str
    gather: Callable[[Summary, Run], Any]
    draw: Callable[[Any, Sheet], Figure]
    caption: Callable[[Any], str]
    alt: Callable[[Any], str]
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn chart: its files' bytes, inline SVG for wide and for narrow screens, its caption and its alt text."""

    name: str
    title: str
    png: bytes
    svg: bytes
    wide_svg: str
    narrow_svg: str
    caption: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A chart that had nothing to show, and what would make it appear."""

    title: str
    needs: str
    command: str = ""
