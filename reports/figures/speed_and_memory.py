"""13 speed and memory: what is fast and fits: useful tokens per second against peak memory, with the GPU's limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from bench.records.result import TrialStatus
from reports import formatting
from reports.figures import memory
from reports.figures.drawing import label_layout, lines, row_chart, text_size
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.layout import MARGIN_IN, Head, Sheet, board
from reports.figures.drawing.palette import ACCENT_TONE, INK, PAPER
from reports.read.run import Run
from reports.statistics.types import Estimate
from reports.summary.summary import ConfigurationRow, Summary

_BODY_IN = 3.6
_LABEL_IN = {1: 1.2, 4: 4.5}  # the widest that the names in a label may be together, by how many it names
_NEAR = 0.03  # of an axis: marks that cover each other


@dataclass(frozen=True, kw_only=True)
class ScatterPoint:
    """One configuration: peak memory in GB, useful tokens per second with interval, and how many trials succeeded.

    Where none did, `rate` is 0 and `memory_gb` what was predicted, else what the GPU has.
    """

    name: str
    memory_gb: float
    rate: float
    low: float | None
    high: float | None
    succeeded: int
    planned: int
    is_reliable: bool
    tone: str

    @property
    def words(self) -> str:
        return (
            self.name if self.succeeded == self.planned else f"{self.name}, {self.succeeded} of {self.planned} trials"
        )


@dataclass(frozen=True, kw_only=True)
class SpeedMemoryData:
    over: Head
    places: tuple[ScatterPoint, ...]
    limit_gb: float | None

    @property
    def caption(self) -> str:
        limit = " The dashed line is what the GPU has." if self.limit_gb is not None else ""
        return (
            "Upper left is best: fast, and far from the limit. A filled mark succeeded in every trial, a hollow one in "
            f"some; a cross at the bottom in none, at its predicted memory or at the limit.{limit}"
        )

    @property
    def alt(self) -> str:
        return "; ".join(
            f"{one.words}: {formatting.number(one.rate)} useful tokens per second, {formatting.number(one.memory_gb)} GB"
            for one in self.places
        )

    def draw(self, sheet: Sheet) -> Figure:
        drawing = board(self.over, sheet, _BODY_IN + 0.2)
        ((left, width),) = drawing.columns(1, left_in=MARGIN_IN + 0.55, gap_in=0.0)
        axes = drawing.panel(left, 0.0, width, _BODY_IN)
        _draw(axes, self, sheet)
        return drawing.figure


def gather(summary: Summary, run: Run) -> SpeedMemoryData | None:
    capacity = memory.capacity_bytes(run)
    drawn = {row.label for row in row_chart.drawn(summary)}
    predicted = memory.predictions(run, summary)
    limit_gb = None if capacity is None else capacity / 1e9
    places = []
    for row in summary.rows:
        if row.label in drawn and row.measured is not None and row.peak_vram_bytes is not None:
            places.append(_place(row, row.peak_vram_bytes / 1e9, row.measured.useful_tokens_per_sec))
        elif row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends and limit_gb is not None:
            at = predicted.get(row.label)
            places.append(_place(row, limit_gb if at is None else at / 1e9, None))
    places = places[: row_chart.MAX_DRAWN + 4]
    if not any(one.rate for one in places):
        return None
    return SpeedMemoryData(
        over=head(summary, _title(places), *row_chart.facts(summary)), places=tuple(places), limit_gb=limit_gb
    )


def _place(row: ConfigurationRow, gb: float, rate: Estimate | None) -> ScatterPoint:
    return ScatterPoint(
        name=row.label,
        memory_gb=gb,
        rate=0.0 if rate is None else rate.value,
        low=None if rate is None else rate.low,
        high=None if rate is None else rate.high,
        succeeded=row.succeeded,
        planned=row.planned,
        is_reliable=row.is_reliable,
        tone=row_chart.tone(row),
    )


def _title(places: list[ScatterPoint]) -> str:
    fastest = max(places, key=lambda one: one.rate)
    safe = max((one for one in places if one.rate and one.is_reliable), key=lambda one: one.rate, default=None)
    risky = f"{fastest.name} is faster, but succeeded only in {fastest.succeeded} of {fastest.planned} trials"
    if safe is None:
        often = f"{fastest.succeeded} of {fastest.planned}"
        return f"No configuration succeeded in every trial; {fastest.name}, the fastest, did in {often}"
    title = f"{safe.name} is the fastest without a failed trial: {formatting.number(safe.rate)} useful tokens per second in "
    title += f"{formatting.number(safe.memory_gb)} GB"
    return title if safe is fastest else f"{title}; {risky}"


def _draw(axes: Any, data: SpeedMemoryData, sheet: Sheet) -> None:
    most = max(one.high or one.rate for one in data.places)
    widest = max([one.memory_gb for one in data.places] + ([] if data.limit_gb is None else [data.limit_gb]))
    axes.set_xlim(0.0, widest * 1.08)
    axes.set_ylim(-0.04 * most, most * 1.1)
    upright = []
    if data.limit_gb is not None:
        axes.axvline(data.limit_gb, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        upright = [[(data.limit_gb, 0.0), (data.limit_gb, most)]]
    for one in data.places:
        if one.low is not None and one.high is not None:
            upright.append([(one.memory_gb, one.low), (one.memory_gb, one.high)])
        lines.upright(axes, one.memory_gb, one.low, one.high)
        if not one.rate:
            axes.plot(one.memory_gb, 0.0, "x", markersize=7, color=ACCENT_TONE, markeredgewidth=2.0, clip_on=False)
            continue
        face = one.tone if one.succeeded == one.planned else PAPER
        axes.plot(one.memory_gb, one.rate, "o", markersize=8, color=face, markeredgecolor=INK, markeredgewidth=0.9)
    axes.set_title(
        "Useful tokens per second and worker, by peak GPU memory in GB" if not sheet.narrow else "Useful tokens/s by GB"
    )
    lines.value_axis(axes)
    lines.height_axis(axes)
    label_layout.label_points(axes, _labels(data.places, widest, most, 1 if sheet.narrow else 4), upright)


def _labels(places: tuple[ScatterPoint, ...], widest: float, most: float, named: int) -> list[tuple[float, float, str]]:
    """x, y and words; marks on nearly one place share a label, which names `named` of them."""
    groups: list[list[ScatterPoint]] = []
    for one in places:
        near = (
            group
            for group in groups
            if abs(group[0].memory_gb - one.memory_gb) < _NEAR * widest
            and abs(group[0].rate - one.rate) < _NEAR * most
            and bool(group[0].rate) == bool(one.rate)
        )
        group = next(near, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    return [
        (
            group[0].memory_gb,
            group[0].rate,
            formatting.first_n(_names(group, _LABEL_IN[named] / min(len(group), named)), named),
        )
        for group in groups
    ]


def _names(group: Sequence[ScatterPoint], limit_in: float) -> list[str]:
    short = [replace(one, name=text_size.shorten(one.name, limit_in, label_layout.SIZE)) for one in group]
    return [one.words if one.rate else one.name for one in short]


SPEED_AND_MEMORY = Chart(
    name="13_speed_and_memory",
    title="Speed and memory",
    needs="a training trial on a GPU: peaks of GPU memory are counted there alone",
    gather=gather,
)
