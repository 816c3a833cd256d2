"""Dates of a run that cannot all be right: results from the future, and clocks that disagree."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

from bench.records.result import TrialResult
from reports import formatting
from reports.read.attempts import Starts

MAX_DIFFERENCE_SEC = 86_400.0  # two clocks of one run; a time zone that was forgotten is less
_YEAR_SEC = 365.25 * 86_400.0


def faults(created_at: str, results: Iterable[TrialResult], starts: Starts, now: float) -> list[str]:
    """Return a sentence for dates in the future, and one for each worker whose clock disagrees with the operator's."""
    dated = [(result, began) for result in results if (began := timestamp(result.started_at)) is not None]
    return [*_from_the_future(dated, now), *_disagreeing(created_at, dated, starts)]


def timestamp(iso: str | None) -> float | None:
    """Convert an ISO 8601 time to seconds since 1970; None if it is invalid."""
    try:
        return None if iso is None else datetime.fromisoformat(iso).timestamp()
    except (ValueError, OverflowError):
        return None


def _from_the_future(dated: Iterable[tuple[TrialResult, float]], now: float) -> Iterator[str]:
    future = sorted(((began, result) for result, began in dated if began > now + MAX_DIFFERENCE_SEC), key=_first)
    if future:
        began, latest = future[-1]
        day = datetime.fromtimestamp(began, timezone.utc).date()
        results = formatting.count(len(future), "result is", "results are")
        yield (
            f"{results} dated in the future, {latest.trial_id} {day}: the clock of {latest.worker or 'its worker'}, or "
            "of this machine, is wrong."
        )


def _first(dated: tuple[float, TrialResult]) -> tuple[float, str]:
    return dated[0], dated[1].trial_id


def _disagreeing(created_at: str, dated: Iterable[tuple[TrialResult, float]], starts: Starts) -> Iterator[str]:
    """Compare with the ledger's start, else with the plan's time: no trial started before its plan."""
    created, worst = timestamp(created_at), dict[str, tuple[float, str]]()
    for result, began in dated:
        expected = starts.get((result.trial_id, result.attempt))
        if expected is None and (created is None or began >= created):
            continue
        difference = began - (created or 0.0 if expected is None else expected)
        worker = result.worker or "an unknown worker"
        if abs(difference) > max(MAX_DIFFERENCE_SEC, abs(worst.get(worker, (0.0, ""))[0])):
            worst[worker] = (difference, result.trial_id)
    yield from _sentences(worst)


def _sentences(worst: Mapping[str, tuple[float, str]]) -> Iterator[str]:
    for worker, (difference, trial_id) in worst.items():
        years, days = abs(difference) / _YEAR_SEC, abs(difference) / 86_400.0
        amount = f"{years:,.1f} years" if years >= 1.0 else f"{days:.0f} days"
        side = "ahead of" if difference > 0 else "behind"
        yield f"The clock of {worker} is {amount} {side} the operator's ({trial_id}); one of the two is wrong."
