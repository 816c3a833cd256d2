"""Figure 14, worker map: each worker's deviation in each configuration; a slow worker is an orange column."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import MAX_NAME_IN, Chart, Header, Sheet, create_layout, make_header, names_width_in
from reports.figures.drawing.style import ACCENT_TONE, INK, NAME_SIZE, OTHER_TONE, PAPER, shorten_text
from reports.read.run import Run
from reports.summary.summary import ConfigurationRow, Summary

NOTABLE_PERCENT = 3.0  # healthy nodes of the same type differ less
_MAX_WORKERS = 16
_DARKEST_PERCENT = 15.0
_ROW_HEIGHT_IN = 0.3


@dataclass(frozen=True, kw_only=True)
class WorkerMapData:
    """Percent by which a worker's step took longer than the median worker's, by configuration and worker.

    None if a worker did not measure a configuration.
    """

    header: Header
    names: tuple[str, ...]
    workers: tuple[str, ...]
    percent: tuple[tuple[float | None, ...], ...]

    @property
    def caption(self) -> str:
        return (
            "Percent by which a worker's step took longer (orange) or shorter (blue) than the median worker's, "
            "by configuration. A systematically slow worker is an orange column."
        )

    @property
    def alt(self) -> str:
        return "; ".join(
            f"{name}: "
            + ", ".join(
                f"{worker} {_format_percent(percent)} %" for worker, percent in zip(self.workers, cells, strict=True)
            )
            for name, cells in zip(self.names, self.percent, strict=True)
        )

    def draw(self, sheet: Sheet) -> Figure:
        row_in = _ROW_HEIGHT_IN + (0.2 if sheet.is_narrow else 0.0)
        layout = create_layout(self.header, sheet, row_in * len(self.names) + 0.75)
        left_in = names_width_in(self.names, sheet)
        ((left, width),) = layout.columns(1, left_in=left_in, gap_in=0.0)
        axes = layout.panel(left, 0.0, width, row_in * len(self.names) + 0.75)
        _draw(axes, self, sheet, width)
        return layout.figure


def gather(summary: Summary, _run: Run) -> WorkerMapData | None:
    rows = [
        row
        for row in row_chart.drawn_rows(summary)
        if row.measured is not None and len(row.measured.worker_medians) > 1
    ]
    if not rows:
        return None
    deviations_of_rows = [deviations(row) for row in rows]
    medians = _median_deviations(deviations_of_rows)
    all_workers = list(medians)
    shown_workers = sorted(all_workers, key=lambda worker: -abs(medians[worker]))[:_MAX_WORKERS]
    workers = tuple(worker for worker in all_workers if worker in shown_workers)
    omitted_note = (
        f"{len(workers)} of {len(all_workers)} workers: those furthest from the median"
        if len(all_workers) > len(shown_workers)
        else ""
    )
    return WorkerMapData(
        header=make_header(
            summary,
            _title(deviations_of_rows, medians),
            "medians of each worker's measured steps",
            row_chart.describe_subset(summary),
            omitted_note,
        ),
        names=tuple(row.label for row in rows),
        workers=workers,
        percent=tuple(tuple(deviation.get(worker) for worker in workers) for deviation in deviations_of_rows),
    )


def deviations(row: ConfigurationRow) -> dict[str, float]:
    """Map each worker to the percent by which its step took longer than the median one; empty without two workers."""
    medians = {} if row.measured is None else row.measured.worker_medians
    if len(medians) < 2:
        return {}
    median = statistics.median(medians.values())
    return {worker: 100.0 * (time / median - 1.0) for worker, time in medians.items()}


def _median_deviations(deviations_of_rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each worker's median deviation, in the order of their names."""
    workers = sorted(
        {worker for row_deviations in deviations_of_rows for worker in row_deviations}, key=formatting.natural_key
    )
    return {
        worker: statistics.median(
            [row_deviations[worker] for row_deviations in deviations_of_rows if worker in row_deviations]
        )
        for worker in workers
    }


def find_slow_worker(summary: Summary) -> tuple[str, float] | None:
    """Return the systematically slow worker, if any, and the percent that its steps take longer (median)."""
    medians = _median_deviations(
        [row_deviations for row in row_chart.drawn_rows(summary) if (row_deviations := deviations(row))]
    )
    slowest = max(medians, key=lambda worker: medians[worker], default=None)
    return None if slowest is None or medians[slowest] < NOTABLE_PERCENT else (slowest, medians[slowest])


def _title(deviations_of_rows: Sequence[Mapping[str, float]], medians: Mapping[str, float]) -> str:
    furthest = max(medians, key=lambda worker: abs(medians[worker]))
    if abs(medians[furthest]) < NOTABLE_PERCENT:
        within = f"within {math.ceil(10.0 * abs(medians[furthest])) / 10.0:.1f} % of the median worker"
        over = f", as median over {len(deviations_of_rows)} configurations" if len(deviations_of_rows) > 1 else ""
        return f"No worker is systematically slow: each is {within}{over}"
    direction = "slower" if medians[furthest] > 0 else "faster"
    agreeing = [
        row_deviations[furthest]
        for row_deviations in deviations_of_rows
        if furthest in row_deviations and (row_deviations[furthest] > 0) == (medians[furthest] > 0)
    ]
    return (
        f"{furthest} is {formatting.number(abs(medians[furthest]), 0)} % {direction} than the median worker, "
        f"in {len(agreeing)} of {formatting.count(len(deviations_of_rows), 'configuration')}"
    )


def _format_percent(percent: float | None) -> str:
    if percent is None:
        return "\N{EN DASH}"
    return "0" if abs(percent) < 0.05 else f"{percent:+.1f}" if abs(percent) < 10 else f"{percent:+.0f}"


def _draw(axes: Any, data: WorkerMapData, sheet: Sheet, width_in: float) -> None:
    cell_in = width_in / len(data.workers)
    top = 0.42 if sheet.is_narrow else 0.06  # part of a row above its cells: the name
    patches, tones = [], []
    for y, (name, cells) in enumerate(zip(data.names, data.percent, strict=True)):
        if sheet.is_narrow:
            shown_name = shorten_text(name, sheet.text_width_in, NAME_SIZE, bold=True)
            axes.text(0.0, y + 0.2, shown_name, fontsize=NAME_SIZE, fontweight="bold", va="center")
        for x, percent in enumerate(cells):
            opacity = 0.0 if percent is None else min(1.0, abs(percent) / _DARKEST_PERCENT)
            tone = ACCENT_TONE if (percent or 0.0) > 0 else OTHER_TONE
            patches.append(Rectangle((x + 0.02, y + top), 0.96, 0.94 - top))
            tones.append(to_rgba(tone, 0.7 * opacity))
            if cell_in > 0.36:
                axes.text(
                    x + 0.5,
                    y + (top + 1.0) / 2,
                    _format_percent(percent),
                    fontsize=7.5,
                    ha="center",
                    va="center",
                    color=INK,
                )
    axes.add_collection(PatchCollection(patches, facecolors=tones, linewidths=0))
    axes.set_xlim(0.0, len(data.workers))
    axes.set_ylim(len(data.names), 0.0)
    names = ["" if sheet.is_narrow else shorten_text(name, MAX_NAME_IN, NAME_SIZE) for name in data.names]
    axes.set_yticks([y + 0.5 for y in range(len(names))], names)
    worker_labels = [shorten_text(worker, max(0.95 * cell_in - 0.05, 0.3), 7.5) for worker in data.workers]
    axes.set_xticks([x + 0.5 for x in range(len(worker_labels))], worker_labels, fontsize=7.5)
    axes.tick_params(axis="both", length=0)
    axes.grid(visible=False)
    axes.set_facecolor(PAPER)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title("Step time, % off the median worker's")


WORKER_MAP = Chart(
    name="14_worker_map",
    title="Comparison of workers",
    needs="training trials on at least two workers",
    gather=gather,
    is_folded=True,
)
