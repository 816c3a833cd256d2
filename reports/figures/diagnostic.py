"""Figure 06, diagnostic: the effect of each single factor, with all others as in the suite's centre."""

from typing import Any

from bench.records.status import TrialStatus
from bench.records.trial import Trial
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import BASELINE_TONE, OTHER_TONE, PUBLISHED
from reports.read import reference_results
from reports.read.loaded_run import Run
from reports.statistics import per_config
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary

CENTRE = "optimized"
# Field of a trial and of a published factor -> its name before the values.
_FACTORS = {
    "recipe": "recipe ",
    "max_seq_len": "sequence ",
    "micro_batch_size": "batch ",
    "gradient_accumulation_steps": "accumulation ",
    "layout": "samples ",
    "base_precision": "weights ",
    "lora_rank": "LoRA rank ",
    "optimizer": "",
    "gradient_checkpointing": "checkpointing ",
    "data_workers": "loader processes ",
}
_VALUES = {
    "True": "on",
    "False": "off",
    "paged_adamw_8bit": "paged 8-bit AdamW",
    "adamw_torch": "AdamW",
    "pad": "padded",
    "varlen": "packed",
}


def _describe_change(field: str, *trials: Trial) -> str:
    values = [str(getattr(trial, field)) for trial in trials]
    return _FACTORS[field] + " \N{RIGHTWARDS ARROW} ".join(_VALUES.get(value, value) for value in values)


def gather(summary: Summary, run: Run) -> RowFigure | None:
    settings = {configuration.label: configuration.planned[0].trial for configuration in run.configurations}
    centre = next((row for row in summary.rows if row.label == CENTRE), None)
    if centre is None or centre.measured is None:
        return None
    changes = []
    for row in summary.rows:
        both = (settings[CENTRE], settings[row.label])
        changed = [field for field in _FACTORS if getattr(both[0], field) != getattr(both[1], field)]
        if len(changed) == 1:
            changes.append((row, changed[0], getattr(both[1], changed[0]), _describe_change(changed[0], *both)))
    if not changes:
        return None
    published = reference_results.matching_results(run)
    published_factors = (
        {} if published is None else {(factor["field"], factor["value"]): factor for factor in published.factors}
    )
    factors = [published_factors.get((field, after)) for _, field, after, _ in changes]
    panels = tuple(
        Panel(
            title=f"{title} per second, x {CENTRE}",
            marks=tuple(
                # The intervals hold jointly, as in the page's table.
                _effect_mark(row, centre, amount, factor, len(changes))
                for (row, *_), factor in zip(changes, known, strict=True)
            ),
            kind="dots",
            log=True,
            reference=1.0,
        )
        for title, amount, known in (
            ("Samples", "samples", factors),
            ("Useful tokens", "useful_tokens", [None] * len(changes)),
        )
    )
    return RowFigure(
        header=make_header(
            summary,
            _title(changes, panels[1]),
            f"centre: {CENTRE}, n = {centre.measured.n_steps} steps",
            row_chart.describe_intervals([row for row, *_ in changes]),
            published=published if any(factors) else None,
        ),
        groups=(MarkGroup(names=tuple(description for *_, description in changes), panels=panels, has_one_axis=True),),
        caption=(
            f"Each row changes one factor of {CENTRE}: right of the dashed line is faster, left is slower; "
            "grey dots have no proven effect."
        ),
    )


def _effect_mark(
    row: ConfigurationRow, centre: ConfigurationRow, amount: str, factor: dict[str, Any] | None, comparisons: int
) -> Mark:
    suffix = "" if factor is None else f"  {PUBLISHED} {factor['words']} published"
    references = () if factor is None or factor["samples_ratio"] is None else (factor["samples_ratio"],)
    if row.measured is None or centre.measured is None:
        status = TrialStatus.OUT_OF_MEMORY.label if TrialStatus.OUT_OF_MEMORY in row.ends else "no trial succeeded"
        return Mark(value=None, text=f"{status}{suffix}", published=references)
    ratio = per_config.ratio(row.measured, centre.measured, amount, comparisons=comparisons)
    verdict = f" {ratio.verdict}" if ratio.verdict else ", no effect shown" if ratio.low is not None else ""
    tone = OTHER_TONE if ratio.verdict else BASELINE_TONE
    # With three decimals close to 1, to avoid `1.00x slower`.
    text = formatting.ratio(ratio, 3 if abs(ratio.value - 1.0) < 0.02 else 2)
    return row_chart.interval_mark(ratio, f"{text}{verdict}{suffix}", tone=tone, published=references)


def _title(changes: list[tuple[ConfigurationRow, str, object, str]], panel: Panel) -> str:
    effects = [
        (mark.value, description, formatting.ratio_parts(mark)[0])
        for mark, (*_, description) in zip(panel.marks, changes, strict=True)
        if mark.value is not None and mark.tone == OTHER_TONE
    ]
    if not effects:
        return f"No single factor was shown to change the speed of {CENTRE}"
    value, description, times = max(effects)
    if value <= 1.0:
        return f"No single factor makes {CENTRE} faster in useful tokens"
    return f"The best single change to {CENTRE}: {description}, {times} the useful tokens per second"


DIAGNOSTIC = Chart(
    name="06_diagnostic_analysis",
    title="Diagnostic: one factor at a time",
    needs="the optimized configuration and others that differ from it in one factor",
    command="inv bench --full",
    gather=gather,
)
