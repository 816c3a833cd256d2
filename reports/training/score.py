"""The score of a training's answers in words and rows."""

from collections.abc import Sequence

from bench.records.score import ScoredRow, ScoreMeasure, TrainingScore
from bench.records.training import TrainingRecord
from reports import formatting

LABELS = {
    "exact": "exact answers",
    "contains": "answers with the expected text",
    "regex": "answers with the expected match",
    "json": "equal fields",
}  # by method; of a score file its name


def label(score: TrainingScore, measure: ScoreMeasure) -> str:
    """Return the name of a measure; the first one's follows from the method."""
    if measure is not score.measures[0]:
        return measure.name
    return LABELS.get(score.method, f"score by {score.method.rpartition('/')[2]}")


def outcome(record: TrainingRecord) -> str | None:
    """Describe how the score changed, in one sentence; None without a score."""
    score = record.score
    if score is None:
        return None
    if score.failure is not None:
        return f"No answer was scored: {score.failure}"
    if not score.measures:
        return f"None of {formatting.count(len(score.places), 'answer')} has a score: {unscored_reason(score)}"
    measure = score.measures[0]
    change = (
        f"{_percent(measure.before)} to {_percent(measure.after)} ({measure.change * 100:+.0f} points, "
        f"{measure.change_low * 100:+.0f} to {measure.change_high * 100:+.0f})"
    )
    verb = "was not shown to change"
    if measure.change_low > 0:
        verb = "rose"
    elif measure.change_high < 0:
        verb = "fell"
    of_rows = formatting.count(measure.rows, "held-out prompt")
    without = f"; {score.unscored_rows:,} more have no score" if score.unscored_rows else ""
    return f"The score ({label(score, measure)}) {verb}: {change} over {of_rows}{without}"


def unscored_reason(score: TrainingScore) -> str:
    """Name the first row without a score, and why."""
    return next((f"row {row.row} ({row.place}): {fault_text(row)}" for row in score.unscored), "no reason given")


def fault_text(row: ScoredRow) -> str:
    """Describe why a row has no score: reason code, cause, detail."""
    if row.fault is None:
        return ""
    detail = f": {row.detail}" if row.detail else ""
    return f"{row.fault.value}: {row.fault.label}{detail}"


def table(score: TrainingScore) -> list[tuple[str, ...]]:
    """Return a row for each measure: name, before, after, difference, rows."""
    return [
        (
            label(score, measure),
            _interval(measure.before, measure.before_low, measure.before_high),
            _interval(measure.after, measure.after_low, measure.after_high),
            f"{measure.change * 100:+.1f} ({measure.change_low * 100:+.1f} to {measure.change_high * 100:+.1f})",
            f"{measure.rows:,}",
        )
        for measure in score.measures
    ]


def lines(record: TrainingRecord) -> list[tuple[str, str]]:
    """Return titles and texts for the list of all numbers."""
    score = record.score
    if score is None:
        return []
    if not score.measures:
        return [("score", outcome(record) or "")]
    rows = [
        (f"score, {name}", f"{before} before, {after} after; difference {change} points over {count} rows")
        for name, before, after, change, count in table(score)
    ]
    if score.unscored_rows:
        rows.append(("rows without a score", f"{score.unscored_rows:,}; first {unscored_reason(score)}"))
    return rows


def fault(score: TrainingScore) -> str | None:
    """Return why this score is impossible, or None."""
    if not len(score.places) == len(score.before) == len(score.after):
        return "score: places and scores do not match"
    measures = [vars(measure) for measure in score.measures]
    values: Sequence[float | None] = [
        *score.before,
        *score.after,
        *(
            measure[f"{name}{end}"]
            for measure in measures
            for name in ("before", "after")
            for end in ("", "_low", "_high")
        ),
    ]
    if any(value is not None and not 0.0 <= value <= 1.0 for value in values):
        return "score: a value is not from 0 to 1"
    return None


def _interval(mean: float, low: float, high: float) -> str:
    return f"{_percent(mean)} ({low * 100:.0f} to {high * 100:.0f})"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
