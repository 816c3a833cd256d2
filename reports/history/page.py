"""The page of a history, its figure, and its numbers as CSV."""

import csv
import io
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from bench.records.atomic_files import write_atomic
from reports import formatting
from reports.figures.drawing import style
from reports.figures.drawing.style import ACCENT_TONE, BASELINE_TONE, OTHER_TONE, inline_svg
from reports.history.series import MARKED, History, Point, Series
from reports.read.run import ReportWriteError

FOLDER, INDEX_FILE = "history", "index.html"
SMALL = 20.0  # below it, four decimals: differences of losses are small
MAX_DRAWN = 12  # series in the figure; the page's tables have all
WIDE_IN, NARROW_IN, PANEL_IN = 11.0, 3.8, 2.2
COLUMNS = ("run", "date", "value", "95 %", "step", "changed")
_TEMPLATES = Path(__file__).parents[1] / "output" / "templates"


def write_page(history: History, results_folder: Path) -> Path:
    """Write results/history/ and return its page. Raises ReportWriteError."""
    folder = results_folder / FOLDER
    drawn = [draw(history, narrow=narrow) for narrow in (False, True)]
    contents = {
        "history.png": drawn[0][0],
        "history.svg": drawn[0][1],
        "history.csv": _csv(history),
        INDEX_FILE: _html(history, drawn[0][1], drawn[1][1]),
    }
    try:
        folder.mkdir(exist_ok=True)
        for name, content in contents.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise ReportWriteError(folder, error) from error
    return folder / INDEX_FILE


def draw(history: History, *, narrow: bool = False) -> tuple[bytes, bytes]:
    """Draw the series with most points as PNG and SVG, one panel each; `narrow` is for a phone."""
    shown = history.series[:MAX_DRAWN]
    columns = 1 if narrow or len(shown) < 2 else 2
    rows = max(1, -(-len(shown) // columns))
    with style.figure_style():
        figure = Figure(figsize=(NARROW_IN if narrow else WIDE_IN, PANEL_IN * rows), layout="constrained")
        panels: Any = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel, series in zip(panels, shown, strict=False):
            _panel(panel, series, narrow=narrow)
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        return style.to_png(figure), style.to_svg(figure)


def _panel(panel: Any, series: Series, *, narrow: bool) -> None:
    positions = range(len(series.points))
    values = [point.value for point in series.points]
    below = [0.0 if point.low is None else max(0.0, point.value - point.low) for point in series.points]
    above = [0.0 if point.high is None else max(0.0, point.high - point.value) for point in series.points]
    panel.errorbar(positions, values, yerr=[below, above], color=OTHER_TONE, marker="o", markersize=4, linewidth=1.2)
    for position, point in zip(positions, series.points, strict=True):
        if point.changes:
            panel.axvline(position - 0.5, color=BASELINE_TONE, linestyle="--", linewidth=1.0)
            names = ", ".join(change.partition(":")[0] for change in point.changes)
            panel.annotate(
                names, (position - 0.5, 0.02), xycoords=("data", "axes fraction"), rotation=90, fontsize=7.0, ha="right"
            )
        if point.step_percent is not None:
            panel.plot([position], [point.value], marker="D", markersize=7, color=ACCENT_TONE, linestyle="")
            panel.annotate(
                f"{point.step_percent:+.1f} %", (position, point.value), textcoords="offset points", xytext=(4, 8),
                fontsize=8.0,
            )  # fmt: skip
    limit = 34 if narrow else 60
    panel.set_title(formatting.shorten(f"{series.name} ({series.detail})", limit))
    panel.set_ylabel("nats" if series.kind == "loss" else "useful tokens/s")
    panel.margins(x=0.12, y=0.25)
    labelled = [*positions][:: max(1, -(-len(values) // (3 if narrow else 6)))]
    panel.set_xticks(labelled, [format_date(series.points[position])[5:] for position in labelled])


def format_date(point: Point) -> str:
    """Format when a run was started, to the minute; other text is returned unchanged."""
    try:
        return datetime.fromisoformat(point.created_at).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return point.created_at


def row(point: Point) -> tuple[str, str, str, str, str, str]:
    """Return a point's cells, in the order of COLUMNS."""
    decimals = 4 if point.value < SMALL else formatting.significant_decimals(point.value)
    interval = formatting.span(point.low, point.high, decimals).strip("()")
    step = point.why if point.step_percent is None else f"{point.step_percent:+.2f} %"
    return (
        point.run_id,
        format_date(point),
        formatting.number(point.value, decimals),
        interval or "-",
        step or "-",
        "; ".join(point.changes) or "-",
    )


def headline(history: History) -> str:
    """Return one sentence: the series, the runs, and the steps found."""
    if not history.series:
        return "No run has a measured configuration or a training with a held-out loss."
    steps = [(series, point) for series in history.series for point in series.steps]
    n_single = sum(len(series.points) == 1 for series in history.series)
    runs = len({point.run_id for series in history.series for point in series.points})
    text = f"{formatting.count(runs, 'run')}, {formatting.count(len(history.series), 'series', 'series')}"
    if n_single:
        text += f" ({n_single} of one run only)"
    if not steps:
        return f"No step is shown: {text}."
    named = [f"{series.name} {point.step_percent:+.1f} % in {point.run_id}" for series, point in steps]
    return f"{formatting.count(len(steps), 'step')}: {formatting.first_n(named, 3)}; {text}."


def _csv(history: History) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ("series", "detail", "kind", "run", "created_at", "value", "low", "high", "step_percent", "changes")
    )
    for series in history.series:
        for point in series.points:
            numbers = (point.value, point.low, point.high, point.step_percent)
            cells = ("" if number is None else repr(number) for number in numbers)
            texts = (series.name, series.detail, series.kind, point.run_id, point.created_at)
            writer.writerow(
                (*map(formatting.spreadsheet, texts), *cells, formatting.spreadsheet("; ".join(point.changes)))
            )
    return formatting.escape_text(buffer.getvalue()).encode()


def _html(history: History, wide: bytes, narrow: bytes) -> bytes:
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(_TEMPLATES), trim_blocks=True, lstrip_blocks=True
    )
    svgs = [
        Markup(inline_svg(svg, f"history-{width}").replace("<svg", f'<svg class="{width}"', 1))  # noqa: S704 - escaped
        for svg, width in ((wide, "wide"), (narrow, "narrow"))
    ]
    page = environment.get_template("history.html.j2").render(
        css=Markup((_TEMPLATES / "page.css").read_text(encoding="utf-8")),  # noqa: S704 - our own file
        headline=headline(history),
        svgs=svgs,
        series=history.series,
        columns=COLUMNS,
        row=row,
        marked=formatting.join_with_and(list(MARKED.values())),
        n_drawn=min(MAX_DRAWN, len(history.series)),
        rejected=history.rejected,
        omitted=history.omitted,
    )
    return formatting.escape_text(page).encode()
