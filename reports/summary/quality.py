"""Sentences about held-out losses: of the recommended configuration, of those withheld, and of the method."""

from collections.abc import Iterator, Sequence

from bench.records.quality import LossCheck, QualityRecord
from bench.records.trial import Trial
from reports import formatting
from reports.summary.loss_verdicts import NOT_SHOWN, difference_of, verdict_of
from reports.summary.summary import ConfigurationRow

_METHOD = (
    "A configuration is at the same loss if its held-out loss is shown to be at most {margin} % above that of the "
    "reference. The trainings of a pair ({steps} steps each) have the same first adapters, rows and held-out examples; "
    "the bound is Student's t, one-sided 95 %, over pairs of different seeds. The deviation between the pairs of stage "
    "1 decides how many pairs stage 2 has (Stein's method)."
)
_MAX_PAIRS_SHOWN = 12


def claim(record: QualityRecord | None, trial: Trial) -> str:
    """Return `at the same loss (difference +0.02 %, at most +0.06 %)`; empty if it was not shown."""
    check = None if record is None else record.find(trial)
    if check is None or verdict_of(record, trial) != "same":
        return ""
    difference = difference_of(check)
    is_lower = difference is not None and difference.high < 0.0
    return f"at {'a lower' if is_lower else 'the same'} loss ({difference_text(check)})"


def difference_text(check: LossCheck) -> str:
    """Return `difference +0.02 %, at most +0.06 %`, or the reason for its absence."""
    difference = difference_of(check)
    if difference is None:
        return check.reason or "one pair only"
    half = difference.high - difference.percent
    decimals = next((places for places in (2, 3) if round(half, places) > 0), 4)
    return f"difference {difference.percent:+.{decimals}f} %, at most {difference.high:+.{decimals}f} %"


def not_shown_texts(record: QualityRecord | None) -> list[str]:
    """Name every compared configuration that was not shown to be at the same loss, with its difference."""
    checks = () if record is None else record.checks
    return [
        f"{check.label} ({difference_text(check)})" for check in checks if verdict_of(record, check.trial) in NOT_SHOWN
    ]


def withheld_text(record: QualityRecord | None, rows: Sequence[ConfigurationRow]) -> str:
    """Name faster configurations that were not shown to be at the same loss; empty without any."""
    checks = [(row.label, None if record is None else record.find(row.trial)) for row in rows]
    texts = [f"{label} ({difference_text(check)})" for label, check in checks if check is not None]
    return f"; faster, but not shown to be at the same loss: {formatting.first_n(texts, 2)}" if texts else ""


def cautions(record: QualityRecord | None, row: ConfigurationRow | None, run_id: str) -> Iterator[str]:
    """Yield a warning if the loss of the recommended configuration should have been compared and was not."""
    if row is None or row.is_baseline or verdict_of(record, row.trial) != "unknown":
        return
    if record is not None:
        yield f"The held-out loss of {row.label} was not compared: `inv bench --resume={run_id}` continues."
    elif row.trial.matmul != "bf16":
        yield (
            f"{row.label} computes products in 8 bits, and its held-out loss was not compared with the reference: "
            "`inv bench --quality` compares it."
        )


def paragraphs(record: QualityRecord | None) -> Iterator[str]:
    """Yield the method, and each comparison."""
    if record is None or not record.checks:
        return
    yield _METHOD.format(margin=f"{record.max_increase_percent:g}", steps=record.steps)
    for check in record.checks:
        pairs = ", ".join(f"{pair.loss:.4f} against {pair.reference:.4f}" for pair in check.pairs[:_MAX_PAIRS_SHOWN])
        losses = f"; {pairs} nats per target token" if pairs else ""
        count = formatting.count(len(check.pairs), "pair")
        if more := sum(pair.stage == 2 for pair in check.pairs):
            count += f", {more} of them in stage 2"
        yield f"Held-out loss of {check.label}, {count}: {difference_text(check)}{losses}."
