"""Rows of training configurations in figures: the selection of rows, their tones, facts and marks."""

from collections.abc import Sequence
from typing import Any

from reports import formatting
from reports.figures.drawing.layout import Mark
from reports.figures.drawing.style import BASELINE_TONE, OTHER_TONE
from reports.formatting import HasInterval
from reports.read.queries import MeasuredValue
from reports.summary.cost import SAMPLES, Amount, seconds_for
from reports.summary.summary import ConfigurationRow, Summary

MAX_DRAWN = 14  # configurations in one figure: the full suite with its baseline


def drawn_rows(summary: Summary) -> tuple[ConfigurationRow, ...]:
    """Return the measured configurations to draw, in the plan's order: all, or the baseline and the fastest."""
    measured = summary.measured_rows
    if len(measured) <= MAX_DRAWN:
        return measured
    fastest = sorted(measured, key=lambda row: (not row.is_baseline, -row.useful_rate))[:MAX_DRAWN]
    chosen = {row.label for row in fastest}
    return tuple(row for row in measured if row.label in chosen)


def row_tone(row: ConfigurationRow) -> str:
    return BASELINE_TONE if row.is_baseline else OTHER_TONE


def header_facts(summary: Summary, *, priced: bool = False) -> tuple[str, ...]:
    """List n, the selection of rows, the basis of the intervals and, if `priced`, the price."""
    rows = drawn_rows(summary)
    workers = [row.measured.n_workers for row in rows if row.measured]
    steps = formatting.number_range(row.measured.n_steps for row in rows if row.measured)
    unit = "worker" if max(workers) == 1 else "workers"
    lines = [
        f"n = {formatting.number_range(workers)} {unit}, {steps} steps per configuration",
        describe_intervals(rows),
    ]
    if subset_note := describe_subset(summary):
        lines.insert(1, subset_note)
    if priced and summary.price is not None:
        lines.append(f"{formatting.number(summary.price.usd_per_gpu_hour, 2)} US$ per GPU hour: {summary.price.source}")
    return tuple(lines)


def describe_subset(summary: Summary) -> str:
    """Describe which of the measured configurations are drawn; empty if all are."""
    n_drawn, n_measured = len(drawn_rows(summary)), len(summary.measured_rows)
    return f"{n_drawn} of {n_measured} configurations: the baseline and the fastest" if n_drawn < n_measured else ""


def describe_intervals(rows: Sequence[ConfigurationRow]) -> str:
    """Describe the samples of these rows' 95 % intervals: workers, processes or steps."""
    kinds = {row.measured.samples_per_sec.over for row in rows if row.measured is not None} - {None}
    names = {"workers": "workers", "processes": "processes", "steps": "the steps of one process"}
    units = [names[unit] for unit in ("workers", "processes", "steps") if unit in kinds]
    return f"95 % intervals over {' or '.join(units)}" if units else "one step each: no intervals"


def interval_mark(interval: HasInterval, text: str, **fields: Any) -> Mark:
    """Make a mark of a value with its interval; `fields` are further fields of Mark."""
    return Mark(value=interval.value, text=text, low=interval.low, high=interval.high, **fields)


def percent_mark(interval: HasInterval, suffix: str = "", **fields: Any) -> Mark:
    """Make a mark of a value in percent."""
    return interval_mark(
        interval,
        f"{formatting.number(interval.value, 1)} % {formatting.span(interval.low, interval.high, 1)}".rstrip() + suffix,
        **fields,
    )


def estimate_mark(row: ConfigurationRow, name: str, *, suffix: str = "", published: tuple[float, ...] = ()) -> Mark:
    """Make a bar of the estimate called `name`."""
    if row.measured is None:
        return Mark(value=None, text=formatting.UNKNOWN)
    estimate = getattr(row.measured, name)
    return interval_mark(estimate, f"{formatting.estimate(estimate)}{suffix}", tone=row_tone(row), published=published)


def minutes_mark(row: ConfigurationRow) -> Mark:
    """Make a bar of the minutes that 1,000 samples take on one GPU."""
    if row.measured is None:
        return Mark(value=None, text=formatting.UNKNOWN)
    minutes = seconds_for(SAMPLES, row.measured.elapsed_samples_per_sec).times(1 / 60)
    return interval_mark(minutes, formatting.estimate(minutes), tone=row_tone(row))


def dollars_mark(amount: Amount, *, tone: str, suffix: str = "", published: tuple[float, ...] = ()) -> Mark:
    """Make a bar of an amount in US dollars."""
    return interval_mark(amount, f"{formatting.estimate(amount, prefix='$')}{suffix}", tone=tone, published=published)


def measured_mark(
    measured: MeasuredValue | None,
    unit: str,
    *,
    scale: float = 1.0,
    suffix: str = "",
    tone: str = OTHER_TONE,
    published: float | None = None,
    limit: float | None = None,
) -> Mark:
    """Make a mark of a measurement in `unit`, its value divided by `scale`; `published` is in the same unit."""
    if measured is None or measured.value is None:
        return Mark(value=None, text="not done" if measured is None else f"none: {measured.note or 'not known'}")
    return Mark(
        value=measured.value / scale,
        text=measured.format(unit, scale=scale) + suffix,
        low=None if measured.low is None else measured.low / scale,
        high=None if measured.high is None else measured.high / scale,
        tone=tone,
        published=() if published is None else (published,),
        limit=limit,
    )
