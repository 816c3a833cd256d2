"""06 diagnostic: the way from the baseline to what is recommended, step by step; then what each factor does on its own,
with everything else as in the centre of the suite."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.records.result import TrialStatus
from bench.records.trial import Trial
from reports import formatting
from reports.figures.drawing import glyphs, row_chart
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.glyphs import RowFigure
from reports.figures.drawing.palette import BASELINE_TONE, OTHER_TONE, PUBLISHED
from reports.figures.drawing.panel import Mark, MarkGroup, Panel
from reports.read import reference_results
from reports.read.reference_results import Factor
from reports.read.run import Run
from reports.statistics import per_config
from reports.statistics.types import Ratio
from reports.summary import headline
from reports.summary.summary import ConfigurationRow, Summary

CENTRE = "optimized"
# Field of a row and of a published factor, and its words with the value filled in.
_FACTORS = {
    "max_seq_len": "sequence {0} \N{RIGHTWARDS ARROW} {1}",
    "micro_batch_size": "batch {0} \N{RIGHTWARDS ARROW} {1}",
    "gradient_accumulation_steps": "accumulation {0} \N{RIGHTWARDS ARROW} {1}",
    "layout": "samples {0}ed \N{RIGHTWARDS ARROW} {1}ed",
    "base_precision": "weights {0} \N{RIGHTWARDS ARROW} {1}",
    "lora_rank": "LoRA rank {0} \N{RIGHTWARDS ARROW} {1}",
    "optimizer": "{0} \N{RIGHTWARDS ARROW} {1}",
    "gradient_checkpointing": "checkpointing {0} \N{RIGHTWARDS ARROW} {1}",
    "data_workers": "loader processes {0} \N{RIGHTWARDS ARROW} {1}",
}
_WORDS = {True: "on", False: "off", "paged_adamw_8bit": "paged 8-bit AdamW", "adamw_torch": "AdamW", "pad": "padd"}


def gather(summary: Summary, run: Run) -> RowFigure | None:
    settings = {configuration.label: configuration.planned[0].trial for configuration in run.configurations}
    alone = _alone(summary, run, settings)
    if alone is None or not (way := journey(summary, settings)):
        return alone
    return replace(
        alone,
        groups=(_steps(way, settings), *alone.groups),
        caption=f"First, the way from {way[0].label} to {way[-1].label}, one change after the other. {alone.caption}",
    )


def journey(summary: Summary, settings: Mapping[str, Trial]) -> list[ConfigurationRow]:
    """The shortest way from the baseline to what is recommended over measured configurations of which each differs
    from the one before in one factor; empty where there is none. Of equally short ones the plan's first."""
    rows = {row.label: row for row in summary.measured_rows}
    end = headline.recommended_label(summary)
    ways = [[summary.baseline]] if summary.baseline in rows and end != summary.baseline else []
    seen = {summary.baseline}
    for way in ways:  # grows as it is gone through: the shortest come first
        for label in rows:
            if label not in seen and len(_changed(settings[way[-1]], settings[label])) == 1:
                if label == end:
                    return [rows[one] for one in (*way, label)]
                seen.add(label)
                ways.append([*way, label])
    return []


def _steps(way: Sequence[ConfigurationRow], settings: Mapping[str, Trial]) -> MarkGroup:
    names, useful, minutes = [way[0].label], [], []
    for before, after in itertools.pairwise(way):
        (field,) = _changed(settings[before.label], settings[after.label])
        names.append(f"{_factor(field, settings[before.label], settings[after.label])} = {after.label}")
    for number, row in enumerate(way):
        more = (
            f", {formatting.number(row.useful_rate / way[number - 1].useful_rate, 2)}x the row above" if number else ""
        )
        useful.append(row_chart.estimate_mark(row, "useful_tokens_per_sec", more=more))
        minutes.append(row_chart.minutes_mark(row))
    return MarkGroup(
        names=tuple(names),
        panels=(
            Panel(title="Useful tokens per second, per worker", marks=tuple(useful)),
            Panel(title="Minutes per 1,000 samples, 1 GPU", marks=tuple(minutes)),
        ),
    )


def _changed(before: Trial, after: Trial) -> list[str]:
    return [name for name in _FACTORS if getattr(before, name) != getattr(after, name)]


def _factor(field: str, before: Trial, after: Trial) -> str:
    return _FACTORS[field].format(_word(getattr(before, field)), _word(getattr(after, field)))


def _alone(summary: Summary, run: Run, settings: Mapping[str, Trial]) -> RowFigure | None:
    centre = next((row for row in summary.rows if row.label == CENTRE), None)
    if centre is None or centre.measured is None:
        return None
    found = []
    for row in summary.rows:
        changed = _changed(settings[CENTRE], settings[row.label])
        if row is not centre and len(changed) == 1:
            (field,) = changed
            words = _factor(field, settings[CENTRE], settings[row.label])
            found.append((row, field, getattr(settings[row.label], field), words))
    if not found:
        return None
    beside = reference_results.matching_results(run)
    known = {} if beside is None else {(factor.field, factor.value): factor for factor in beside.factors}
    factors = [known.get((field, after)) for _, field, after, _ in found]
    among = len(found)  # all of their intervals hold at once, as in the page's table
    samples = [
        _effect(row, centre, "samples_per_sec", one, among) for (row, *_), one in zip(found, factors, strict=True)
    ]
    tokens = [_effect(row, centre, "useful_tokens_per_sec", None, among) for row, *_ in found]
    panels = glyphs.shared(
        [
            Panel(title=f"{rate}, x {CENTRE}", marks=tuple(effects), kind="dots", log=True, at=1.0)
            for rate, effects in (("Samples per second", samples), ("Useful tokens per second", tokens))
        ]
    )
    shown = any(factor is not None for factor in factors)
    return RowFigure(
        over=head(
            summary,
            _title(found, panels[1]),
            f"centre: {CENTRE}, n = {centre.measured.n_steps} steps",
            row_chart.interval_words([row for row, *_ in found]),
            f"{PUBLISHED} {beside.source}" if beside is not None and shown else "",
        ),
        groups=(MarkGroup(names=tuple(words for *_, words in found), panels=panels),),
        caption=(
            f"Each row changes one thing about {CENTRE}: right of the dashed line is faster, left is slower, "
            "grey dots are not shown to have an effect."
        ),
    )


def _word(value: object) -> str:
    return str(_WORDS.get(value, value)) if isinstance(value, (bool, str)) else str(value)


def _effect(row: ConfigurationRow, centre: ConfigurationRow, rate: str, factor: Factor | None, among: int) -> Mark:
    more = f"  {PUBLISHED} {factor.words} published" if factor is not None else ""
    reference = (factor.samples_ratio,) if factor is not None and factor.samples_ratio is not None else ()
    if row.measured is None or centre.measured is None:
        ended = "out of memory" if TrialStatus.OUT_OF_MEMORY in row.ends else "no trial succeeded"
        return Mark(value=None, words=f"{ended}{more}", published=reference)
    ratio = per_config.ratio(row.measured, centre.measured, rate, comparisons=among)
    verdict = f" {ratio.verdict}" if ratio.verdict else ", no effect shown" if ratio.low is not None else ""
    tone = OTHER_TONE if ratio.verdict else BASELINE_TONE
    return row_chart.mark_of(ratio, f"{_times(ratio)}{verdict}{more}", tone=tone, published=reference)


def _times(ratio: Ratio) -> str:
    """Three decimals close to 1: `1.00x slower` says nothing."""
    places = formatting.ratio_decimals(ratio.low, ratio.high, 3 if abs(ratio.value - 1.0) < 0.02 else 2)
    return f"{formatting.number(ratio.value, places)}x {formatting.span(ratio.low, ratio.high, places)}".rstrip()


def _title(found: list[tuple[ConfigurationRow, str, object, str]], panel: Panel) -> str:
    effects = [
        (mark.value, words, formatting.ratio_decimals(mark.low, mark.high))
        for mark, (*_, words) in zip(panel.marks, found, strict=True)
        if mark.value is not None and mark.tone == OTHER_TONE
    ]
    if not effects:
        return f"No single factor was shown to change the speed of {CENTRE}"
    value, words, places = max(effects)
    if value <= 1.0:
        return f"No single factor makes {CENTRE} faster in useful tokens"
    return f"What helps {CENTRE} most on its own: {words}, {formatting.number(value, places)}x the useful tokens per second"


DIAGNOSTIC = Chart(
    name="06_diagnostic_analysis",
    title="Diagnostic: one factor at a time",
    needs="the optimized configuration and others that differ from it in one factor",
    command="inv bench --full",
    gather=gather,
)
