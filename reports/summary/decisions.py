"""The decision of a benchmark as values: the configuration to train with. `sentences` has the text.

What `inv train` would do is recommended, or the baseline where that was not measured, unless another configuration was
shown to be faster, and, if losses were compared, at the same loss. The published loop is not recommended on a GPU where
what `inv train` would do was not planned: no GPU is known on which that was slower (docs/performance.md).
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.records.quality import QualityRecord
from bench.records.status import TrialStatus
from reports.statistics import per_config
from reports.statistics.types import Ratio
from reports.summary.loss_verdicts import NOT_SHOWN, verdict_of
from reports.summary.rows import ConfigurationRow, PlannedRow


class Advice(enum.StrEnum):
    """The kinds of advice of a choice."""

    TRAIN = "train"  # with the fastest, shown to be faster than the reference
    STAY = "stay"  # the baseline is the fastest
    NOT_SHOWN = "not_shown"  # another is faster, but was not shown to be
    UNDECIDED = "undecided"  # one process of each: nothing can be shown
    FASTEST = "fastest"  # there is no baseline to compare with
    ONLY = "only"  # a single configuration was measured
    UNMEASURED = "unmeasured"  # plain `inv train`, which was not planned; of the others a published one is the fastest


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The configuration to train with: `row`.

    A standard is what `inv train` would do, or the baseline where that was not measured. `fastest` is the reliable
    configuration with the highest steady rate of those that were shown to be faster than the standard, else the one
    with the most useful tokens per second. `row` is `fastest` in the first case, else the standard. `ratio` is that of
    `fastest` in useful tokens to `reference`: the standard, or the baseline if the standard is the fastest. `tied` were
    not shown to differ from `fastest` (fastest first, including the baseline). `passed_over` were faster, but are not
    reliable; `withheld` were faster, but not shown to be at the same loss.
    """

    advice: Advice
    row: ConfigurationRow
    fastest: ConfigurationRow
    reference: ConfigurationRow | None
    ratio: Ratio | None
    tied: tuple[ConfigurationRow, ...]
    passed_over: tuple[ConfigurationRow, ...]
    withheld: tuple[ConfigurationRow, ...] = ()


def choose(rows: Sequence[ConfigurationRow], losses: QualityRecord | None = None) -> Choice | None:
    """Choose a configuration; None if nothing was measured, or nothing at the same loss.

    If none is reliable, all measured ones are considered.
    """
    measured = sorted((row for row in rows if row.measured is not None), key=lambda row: -row.useful_rate)
    verdicts = {row.label: verdict_of(losses, row.trial) for row in measured}
    eligible = [row for row in measured if verdicts[row.label] not in NOT_SHOWN]
    if not eligible:
        return None
    reliable = [row for row in eligible if row.is_reliable] or eligible
    baseline = next((row for row in reliable if row.is_baseline), None)
    standard = next((row for row in reliable if row.trial.is_usual), baseline)
    ratios = {row.label: _ratio(row, standard, comparisons=len(measured) - 1) for row in reliable}
    shown = [row for row in reliable if _is_shown_faster(ratios[row.label])]
    fastest = max(shown, key=lambda row: row.steady_rate) if shown else reliable[0]
    is_standard = fastest == standard
    ratio = fastest.useful_tokens_ratio if is_standard else ratios[fastest.label]
    comparable = [
        row
        for row in reliable
        if row != fastest and (losses is None or row.is_baseline or verdicts[row.label] != "unknown")
    ]
    choice = Choice(
        advice=Advice.TRAIN,
        row=fastest if shown or standard is None or ratio is None else standard,
        fastest=fastest,
        reference=baseline if is_standard else standard,
        ratio=ratio,
        tied=tuple(row for row in comparable if not _differ(row, fastest, comparisons=len(measured) - 1)),
        passed_over=tuple(row for row in eligible if not row.is_reliable and row.useful_rate > fastest.useful_rate),
        withheld=tuple(
            row for row in measured if verdicts[row.label] in NOT_SHOWN and row.useful_rate > fastest.useful_rate
        ),
    )
    is_published = choice.row.trial.recipe == "reference" and choice.row.trial.profile == "gpu"
    if is_published and len(measured) > 1 and not any(row.trial.is_usual for row in rows):
        return replace(choice, advice=Advice.UNMEASURED)
    return replace(choice, advice=_advice(choice, len(measured)))


def _advice(choice: Choice, n_measured: int) -> Advice:
    ratio = choice.ratio
    if ratio is None and choice.fastest.is_baseline and n_measured > 1:
        return Advice.STAY
    if ratio is None:
        return Advice.ONLY if n_measured == 1 else Advice.FASTEST
    if _is_shown_faster(ratio):
        return Advice.TRAIN
    both = (choice.fastest.measured, None if choice.reference is None else choice.reference.measured)
    is_single = all(each is not None and each.n_processes == 1 for each in both)
    return Advice.UNDECIDED if is_single and ratio.low is None else Advice.NOT_SHOWN


def _ratio(row: ConfigurationRow, standard: ConfigurationRow | None, *, comparisons: int) -> Ratio | None:
    """Return the ratio of a configuration to the standard; None for the standard itself."""
    if standard is None or standard.is_baseline or row.measured is None or standard.measured is None:
        return row.useful_tokens_ratio
    if row == standard:
        return None
    return per_config.ratio(row.measured, standard.measured, "useful_tokens", comparisons=comparisons)


def _is_shown_faster(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.verdict == "faster"


def _differ(first: ConfigurationRow, second: ConfigurationRow, *, comparisons: int) -> bool:
    if first.measured is None or second.measured is None:
        return True
    return (
        per_config.ratio(first.measured, second.measured, "useful_tokens", comparisons=comparisons).verdict is not None
    )


def is_unfit(row: PlannedRow, baseline: str) -> bool:
    """Return True if every planned trial ran out of memory. Never for the baseline, which the others need."""
    return row.label != baseline and 0 < row.planned == row.ends.get(TrialStatus.OUT_OF_MEMORY, 0)
