"""Verdicts on a configuration's held-out loss, from the record of its comparison; the test is in `paired_losses`."""

from collections.abc import Sequence
from typing import Literal

from bench.records.quality import LossCheck, LossPair, QualityRecord, loss_fields
from bench.records.trial import Trial
from reports.statistics.paired_losses import LossDifference, paired_difference

Verdict = Literal["reference", "same", "worse", "undecided", "unknown"]
NOT_SHOWN: tuple[Verdict, ...] = ("worse", "undecided")


def difference_of(check: LossCheck) -> LossDifference | None:
    """Return a comparison's difference; None with fewer than two pairs."""
    return _difference(sorted(check.pairs, key=lambda pair: pair.stage))


def first_difference_of(check: LossCheck) -> LossDifference | None:
    """Return the difference over the pairs of stage 1; None with fewer than two."""
    return _difference([pair for pair in check.pairs if pair.stage == 1])


def _difference(pairs: Sequence[LossPair]) -> LossDifference | None:
    first = sum(pair.stage == 1 for pair in pairs)
    return paired_difference([pair.reference for pair in pairs], [pair.loss for pair in pairs], first)


def verdict_of(record: QualityRecord | None, trial: Trial) -> Verdict:
    """Return what is known of a configuration's loss.

    `reference`: it trains as the reference does. `worse`: the increase is shown to be above the margin.
    """
    if record is None:
        return "unknown"
    check = record.find(trial)
    if check is None:
        is_reference = any(loss_fields(each.reference) == loss_fields(trial) for each in record.checks)
        return "reference" if is_reference else "unknown"
    if not check.is_complete:
        return "unknown"
    difference = difference_of(check)
    if difference is not None and difference.high <= record.max_increase_percent:
        return "same"
    return "worse" if difference is not None and difference.low > record.max_increase_percent else "undecided"
