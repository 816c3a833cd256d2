"""Figure 02, training performance: the time of every measured step."""

import pandas as pd

from bench.records.status import TrialStatus
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.read.loaded_run import Run
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary

MAX_OFFSET_PERCENT = 60.0  # an interrupted step would compress all others into one line
_MAX_STEPS = 1_500  # marks in one figure; more would overlap and enlarge the page


def gather(summary: Summary, run: Run) -> RowFigure | None:
    rows = row_chart.drawn_rows(summary)
    if not rows:
        return None
    steps = run.steps
    measured = steps[(steps["status"] == TrialStatus.SUCCEEDED.value) & (steps["phase"] == "measure")]
    times = {str(label): group for label, group in measured.groupby("configuration", observed=True)["step_time_sec"]}
    offsets = {row.label: _offsets_percent(row, times[row.label]) for row in rows}
    drawn = sum(map(len, offsets.values()))
    stride = -(-drawn // _MAX_STEPS)
    clipped = any((each > MAX_OFFSET_PERCENT).any() for each in offsets.values())
    title = f"Steps, % off the step time{f' ({MAX_OFFSET_PERCENT:.0f}: or more)' if clipped else ''}"
    marks = ((row.label, _mark(row, offsets[row.label][::stride])) for row in rows)
    within = float(pd.concat(list(offsets.values())).abs().quantile(0.9))
    return RowFigure(
        header=make_header(
            summary,
            f"9 in 10 steps are within {formatting.number(within, 1)} % of their configuration's step time",
            *row_chart.header_facts(summary),
            f"1 in {stride} of {drawn:,} steps drawn" if stride > 1 else "",
        ),
        groups=(one_panel(title, marks, kind="points"),),
        caption=(
            "Each mark is one step of one worker, the line is the configuration's step time; steps far to the right "
            "were disturbed."
        ),
    )


def _offsets_percent(row: ConfigurationRow, seconds: "pd.Series[float]") -> "pd.Series[float]":
    """Return how far each step is from the configuration's step time."""
    return 100.0 * (seconds / (row.measured.step_time_sec.value if row.measured else 1.0) - 1.0)


def _mark(row: ConfigurationRow, offsets: "pd.Series[float]") -> Mark:
    if row.measured is None:
        return Mark(value=None, text=formatting.UNKNOWN)
    step = row.measured.step_time_sec
    ends = [
        None if end is None else min(100.0 * (end / step.value - 1.0), MAX_OFFSET_PERCENT)
        for end in (step.low, step.high)
    ]
    return Mark(
        value=0.0,
        text=f"{formatting.estimate(step, ' s')}, n = {step.n}",
        low=ends[0],
        high=ends[1],
        tone=row_chart.row_tone(row),
        points=tuple(offsets.clip(upper=MAX_OFFSET_PERCENT)),
    )


STEP_TIMES = Chart(
    name="02_training_performance",
    title="Training performance",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
)
