"""Figure 12, run comparison: the change in speed of each configuration, and whether it exceeds the noise."""

from reports import formatting
from reports.comparison.compare import RESOLUTION, ComparedRow, Comparison
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import ACCENT_TONE, BASELINE_TONE, OTHER_TONE
from reports.read.run import Run
from reports.summary.summary import Summary

_MAX_ROWS = 20
_TONES = {"faster": OTHER_TONE, "slower": ACCENT_TONE}
_ORDER = ("slower", "faster", "unknown", "same")


def gather(summary: Summary, run: Run, comparison: Comparison | None = None) -> RowFigure | None:  # noqa: ARG001
    rows = [] if comparison is None else [row for row in comparison.rows if row.speed_ratio is not None]
    if comparison is None or not rows:
        return None
    # A step's parts follow from the step. Other workloads are drawn only if no step was compared.
    drawn = [row for row in rows if row.metric == "samples_per_sec"] or rows
    drawn = sorted(drawn, key=lambda row: (_ORDER.index(row.verdict), row.speed_ratio or 1.0))[:_MAX_ROWS]
    is_multiple = len(comparison.run_ids) > 2
    band = max(RESOLUTION, comparison.tolerance)
    n_omitted = len(comparison.rows) - len(drawn)
    panel = Panel(
        title=f"Speed, x that of {comparison.run_ids[0]} (dashed: no change; band: {100 * band:g} %)",
        marks=tuple(map(_mark, drawn)),
        kind="dots",
        log=True,
        reference=1.0,
        band=(1.0 / (1.0 + band), 1.0 + band),
    )
    return RowFigure(
        header=make_header(
            summary,
            _title(comparison, drawn),
            f"against run {comparison.run_ids[0]}",
            "95 % intervals over processes; verdicts corrected for several comparisons (Holm)",
            f"{n_omitted:,} more quantities: inv compare {' '.join(comparison.run_ids)}" if n_omitted else "",
        ),
        groups=(MarkGroup(names=tuple(_name(row, several=is_multiple) for row in drawn), panels=(panel,)),),
        caption=(
            f"Right of the dashed line is faster. Same means an interval within {100 * band:g} % of no change; "
            f"hollow dots are undecided.{_allowed_text(comparison)}"
        ),
    )


def _allowed_text(comparison: Comparison) -> str:
    allowed = [difference.description for difference in comparison.differences if difference not in comparison.refused]
    return f" The runs differ in {formatting.join_with_and(allowed)}." if allowed else ""


def _name(row: ComparedRow, *, several: bool) -> str:
    run = f", {row.run_id}" if several else ""
    if row.metric == "samples_per_sec":
        return f"{row.configuration}{run}"
    return f"{row.configuration}: {row.metric.replace('_', ' ')}{f', {row.context}' if row.context else ''}{run}"


def _mark(row: ComparedRow) -> Mark:
    value = row.speed_ratio or 1.0
    places = formatting.ratio_decimals(row.low, row.high, 3)
    spread = formatting.span(row.low, row.high, places)
    return Mark(
        value=value,
        text=f"{formatting.number(value, places)}x {spread} {row.verdict}".replace("  ", " "),
        low=row.low,
        high=row.high,
        tone=_TONES.get(row.verdict, BASELINE_TONE),
        is_hollow=row.verdict == "unknown",
    )


def _title(comparison: Comparison, rows: list[ComparedRow]) -> str:
    before, *after = comparison.run_ids
    counts = {word: sum(row.verdict == word for row in rows) for word in _ORDER}
    verdicts = [f"{amount} of {len(rows)} {word}" for word, amount in counts.items() if amount]
    return f"Run {formatting.join_with_and(list(after))} against {before}: {', '.join(verdicts)}"


RUN_COMPARISON = Chart(
    name="12_run_comparison",
    title="Comparison with another run",
    needs="another run of the same trials to compare with",
    command="inv report --against=RUN",
    gather=gather,
)
