"""01 executive summary: how fast each configuration is, in samples and in useful tokens, and what it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from reports import text
from reports.figures import style
from reports.figures.style import Chart, Sheet
from reports.load import Run
from reports.summary import Row, Summary

_ROW_IN = 0.56


@dataclass(frozen=True, kw_only=True)
class _Panel:
    """One quantity as bars: its title with unit, and per row the value, its interval and its words."""

    title: str
    bar: Callable[[Row], tuple[float | None, float | None, float | None, str]]


def draw(summary: Summary, run: Run, sheet: Sheet) -> Figure:  # noqa: ARG001 - every chart takes the run too
    rows = style.drawn_rows(summary)
    panels = _panels(summary)
    panel_in = style.rows_height_in(len(rows), _ROW_IN, sheet)
    board = style.board(summary, sheet, summary.finding, panel_in * (len(panels) if sheet.narrow else 1))
    left_in = style.names_width_in(rows, sheet)
    places = [(left, 0.0, width) for left, width in board.columns(len(panels), left_in=left_in, gap_in=0.3)]
    if sheet.narrow:
        ((left, width),) = board.columns(1, left_in=left_in, gap_in=0.0)
        places = [(left, number * panel_in, width) for number in range(len(panels))]
    for number, (panel, (left, top, width)) in enumerate(zip(panels, places, strict=True)):
        axes = board.panel(left, top, width, panel_in)
        style.label_rows(axes, rows, sheet, names=number == 0)
        _bars(axes, rows, panel, sheet)
    return board.figure


def caption(summary: Summary) -> str:
    base = f"; grey is {summary.baseline}" if any(row.is_baseline for row in summary.measured_rows) else ""
    return f"Longer bars in the first two panels are better; black lines are 95 % intervals{base}."


def alt(summary: Summary) -> str:
    told = [
        f"{row.label}: {text.estimate(row.measured.samples_per_sec)} samples per second, "
        f"{text.estimate(row.measured.useful_tokens_per_sec)} useful tokens per second per worker"
        for row in style.drawn_rows(summary)
        if row.measured is not None
    ]
    return "Bars per configuration. " + "; ".join(told) + "."


EXECUTIVE_SUMMARY = Chart(name="01_executive_summary", title="Executive summary", draw=draw, caption=caption, alt=alt)


def _panels(summary: Summary) -> list[_Panel]:
    panels = [
        _Panel(title="Samples per second, per worker", bar=_samples),
        _Panel(title="Useful tokens per second, per worker", bar=_useful_tokens),
    ]
    if summary.price is not None:
        panels.append(_Panel(title="US$ per 1,000 samples", bar=_cost))
    else:
        vram = any(row.peak_vram_bytes is not None for row in summary.measured_rows)
        panels.append(_Panel(title=f"Peak {'GPU' if vram else 'process'} memory, GB", bar=_memory))
    return panels


def _bars(axes: Any, rows: tuple[Row, ...], panel: _Panel, sheet: Sheet) -> None:
    longest = 0.0
    for y, row in enumerate(rows):
        value, low, high, words = panel.bar(row)
        middle = style.label_bar(axes, y, words, row, sheet)
        if value is None:
            continue
        axes.barh(middle, value, height=0.36, color=style.tone(row), linewidth=0)
        style.whisker(axes, middle, low, high)
        longest = max(longest, value, high or 0.0)
    axes.set_xlim(0.0, longest * 1.06 or 1.0)
    axes.set_title(panel.title)
    style.value_axis(axes)


def _samples(row: Row) -> tuple[float | None, float | None, float | None, str]:
    if row.measured is None:
        return None, None, None, text.UNKNOWN
    rate = row.measured.samples_per_sec
    return rate.value, rate.low, rate.high, text.estimate(rate)


def _useful_tokens(row: Row) -> tuple[float | None, float | None, float | None, str]:
    if row.measured is None:
        return None, None, None, text.UNKNOWN
    rate = row.measured.useful_tokens_per_sec
    return rate.value, rate.low, rate.high, text.estimate(rate)


def _cost(row: Row) -> tuple[float | None, float | None, float | None, str]:
    if row.cost is None:
        return None, None, None, text.UNKNOWN
    value, low, high = row.cost.usd_per_1000_samples, row.cost.low, row.cost.high
    places = text.decimals(value)
    return value, low, high, f"${text.number(value, places)} {text.span(low, high, places)}".rstrip()


def _memory(row: Row) -> tuple[float | None, float | None, float | None, str]:
    used = row.peak_vram_bytes if row.peak_vram_bytes is not None else row.peak_rss_bytes
    return None if used is None else used / 1e9, None, None, text.gigabytes(used)
