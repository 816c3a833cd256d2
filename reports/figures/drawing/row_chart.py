"""What figures of training configurations share: which rows are drawn, their tones, facts and words."""

from collections.abc import Sequence
from typing import Any

from reports import formatting
from reports.figures.drawing.palette import BASELINE_TONE, OTHER_TONE
from reports.figures.drawing.panel import Mark
from reports.formatting import HasInterval
from reports.read.queries import MeasuredValue
from reports.summary.cost import SAMPLES, Amount, seconds_for
from reports.summary.summary import ConfigurationRow, Summary

MAX_DRAWN = 14  # configurations in one figure: the full suite and its baseline; more rows than that are a table's work


def drawn(summary: Summary) -> tuple[ConfigurationRow, ...]:
    """The measured configurations a figure shows, in the plan's order: all, or the baseline and the fastest."""
    measured = summary.measured_rows
    if len(measured) <= MAX_DRAWN:
        return measured
    fastest = sorted(measured, key=lambda row: (not row.is_baseline, -row.useful_rate))[:MAX_DRAWN]
    chosen = {row.label for row in fastest}
    return tuple(row for row in measured if row.label in chosen)


def tone(row: ConfigurationRow) -> str:
    return BASELINE_TONE if row.is_baseline else OTHER_TONE


def facts(summary: Summary, *, priced: bool = False) -> tuple[str, ...]:
    """n, which rows, how intervals were made, and the price where the figure shows dollars."""
    shown = drawn(summary)
    workers = [row.measured.n_workers for row in shown if row.measured]
    steps = formatting.number_range(row.measured.n_steps for row in shown if row.measured)
    lines = [
        f"n = {formatting.number_range(workers)} {'worker' if max(workers) == 1 else 'workers'}, {steps} steps per configuration",
        interval_words(shown),
    ]
    if which := subset(summary):
        lines.insert(1, which)
    if priced and summary.price is not None:
        lines.append(f"{formatting.number(summary.price.usd_per_gpu_hour, 2)} US$ per GPU hour: {summary.price.source}")
    return tuple(lines)


def subset(summary: Summary) -> str:
    """Which of the measured configurations are drawn; empty where all are."""
    shown, measured = len(drawn(summary)), len(summary.measured_rows)
    return f"{shown} of {measured} configurations: the baseline and the fastest" if shown < measured else ""


def interval_words(shown: Sequence[ConfigurationRow]) -> str:
    """What the 95 % intervals of these rows are over."""
    over = {row.measured.samples_per_sec.over for row in shown if row.measured is not None} - {None}
    words = {"workers": "workers", "processes": "processes", "steps": "the steps of one process"}
    units = [words[one] for one in ("workers", "processes", "steps") if one in over]
    return f"95 % intervals over {' or '.join(units)}" if units else "one step each: no intervals"


def mark_of(of: HasInterval, words: str, **look: Any) -> Mark:
    """A mark of a value with its interval; `look` are further fields of Mark."""
    return Mark(value=of.value, words=words, low=of.low, high=of.high, **look)


def percent_mark(of: HasInterval, more: str = "", **look: Any) -> Mark:
    """A mark of a value in percent."""
    return mark_of(
        of, f"{formatting.number(of.value, 1)} % {formatting.span(of.low, of.high, 1)}".rstrip() + more, **look
    )


def estimate_mark(row: ConfigurationRow, name: str, *, more: str = "", published: tuple[float, ...] = ()) -> Mark:
    """A bar of one of `Measured`'s estimates."""
    if row.measured is None:
        return Mark(value=None, words=formatting.UNKNOWN)
    found = getattr(row.measured, name)
    return mark_of(found, f"{formatting.estimate(found)}{more}", tone=tone(row), published=published)


def minutes_mark(row: ConfigurationRow) -> Mark:
    """How long 1,000 samples take on one GPU."""
    if row.measured is None:
        return Mark(value=None, words=formatting.UNKNOWN)
    took = seconds_for(SAMPLES, row.measured.elapsed_samples_per_sec).times(1 / 60)
    return mark_of(took, formatting.estimate(took), tone=tone(row))


def dollars_mark(of: Amount, *, tone: str, more: str = "", published: tuple[float, ...] = ()) -> Mark:
    """A bar of an amount in US dollars."""
    return mark_of(of, f"{formatting.estimate(of, prefix='$')}{more}", tone=tone, published=published)


def reading_mark(
    one: MeasuredValue | None,
    unit: str,
    *,
    scale: float = 1.0,
    more: str = "",
    tone: str = OTHER_TONE,
    published: float | None = None,
    limit: float | None = None,
) -> Mark:
    """A row of a measurement in `unit`, its value divided by `scale`; `published` is in the same unit."""
    if one is None or one.value is None:
        return Mark(value=None, words="not done" if one is None else f"none: {one.note or 'not known'}")
    return Mark(
        value=one.value / scale,
        words=one.format(unit, scale=scale) + more,
        low=None if one.low is None else one.low / scale,
        high=None if one.high is None else one.high / scale,
        tone=tone,
        published=() if published is None else (published,),
        limit=limit,
    )
