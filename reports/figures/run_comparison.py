"""Figure 12, run comparison: the change in speed of each configuration, and whether it exceeds the noise."""

from reports import formatting
from reports.comparison.compare import ELAPSED, RESOLUTION, STEADY, ComparedRow, Comparison
from reports.figures.drawing.layout import Chart, Mark, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import ACCENT_TONE, BASELINE_TONE, OTHER_TONE
from reports.read import measurements
from reports.read.loaded_run import Run
from reports.summary.summary import Summary

_MAX_ROWS = 20
_TONES = {"faster": OTHER_TONE, "slower": ACCENT_TONE}
_ORDER = ("slower", "faster", "differs", "unknown", "same")


def gather(summary: Summary, run: Run, comparison: Comparison | None = None) -> RowFigure | None:  # noqa: ARG001
    rows = [] if comparison is None else [row for row in comparison.rows if row.speed_ratio is not None]
    if comparison is None or not rows:
        return None
    drawn = sorted(
        rows,
        key=lambda row: (_ORDER.index(row.verdict), row.metric not in (ELAPSED, STEADY), row.speed_ratio or 1.0),
    )[:_MAX_ROWS]
    band = max(RESOLUTION, comparison.tolerance)
    n_omitted = len(comparison.rows) - len(drawn)
    group = one_panel(
        f"Speed, x that of {comparison.before[0]} (dashed: no change; band: {100 * band:g} %)",
        ((_name(row), _mark(row)) for row in drawn),
        kind="dots",
        log=True,
        reference=1.0,
        band=(1.0 / (1.0 + band), 1.0 + band),
    )
    return RowFigure(
        header=make_header(
            summary,
            _title(comparison, drawn),
            f"against run {comparison.before[0]}",
            "95 % intervals over processes; verdicts corrected for several comparisons (Holm)",
            f"{n_omitted:,} more quantities: inv compare {comparison.before[0]} {comparison.after[0]}"
            if n_omitted
            else "",
        ),
        groups=(group,),
        caption=(
            f"Right of the dashed line is faster. Same means an interval within {100 * band:g} % of no change; "
            "hollow dots are undecided. What differs between these two runs may be the day's."
            f"{_allowed_text(comparison)}"
        ),
    )


def _allowed_text(comparison: Comparison) -> str:
    allowed = [difference.description for difference in comparison.differences if difference not in comparison.refused]
    return f" The runs differ in {formatting.join_with_and(allowed)}." if allowed else ""


def _name(row: ComparedRow) -> str:
    if row.metric in (ELAPSED, STEADY):
        return f"{row.configuration}{', steady' if row.metric == STEADY else ''}"
    title = measurements.title_unit_scale(row.metric)[0]
    return " ".join([f"{row.configuration}:", title, *map(str, row.context.values())])


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
    counts = {word: sum(row.verdict == word for row in rows) for word in _ORDER}
    verdicts = [f"{amount} of {len(rows)} {word}" for word, amount in counts.items() if amount]
    return f"Run {comparison.after[0]} against {comparison.before[0]}: {', '.join(verdicts)}"


RUN_COMPARISON = Chart(
    name="12_run_comparison",
    title="Comparison with another run",
    needs="another run of the same trials to compare with",
    command="inv report --against=RUN",
    gather=gather,
)
