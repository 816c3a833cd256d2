"""Verdicts on a configuration's held-out loss, from the record of its comparison; the test is in `paired_losses`."""

from typing import Literal

from bench.records.quality import LossCheck, QualityRecord, loss_fields
from bench.records.trial import Trial
from reports.statistics.paired_losses import LossDifference, paired_difference

Verdict = Literal["reference", "same", "worse", "undecided", "unknown"]
NOT_SHOWN: tuple[Verdict, ...] = ("worse", "undecided")


def difference_of(check: LossCheck) -> LossDifference | None:
    """Return a comparison's difference; None with fewer than two pairs."""
    return paired_difference([pair.reference for pair in check.pairs], [pair.loss for pair in check.pairs])


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
