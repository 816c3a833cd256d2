"""Recommendation of a configuration to train with: the fastest reliable one, and those not shown to differ from it.

The criterion is useful tokens per second: samples per second would favour truncated samples, and padding is wasted
work. A configuration of which any trial ran out of memory, failed or timed out is passed over, however fast its other
trials were. A difference counts if its interval excludes 1. The intervals of a run are widened for their number, so
that one of several equal configurations is called faster in at most 5 % of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.statistics import per_config
from reports.summary.summary import ConfigurationRow, Summary


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The configuration to train with: `row`.

    `fastest` is the reliable configuration with the most useful tokens per second. `row` is `fastest` if that was shown
    to be faster than the baseline, else the baseline. `tied` were not shown to differ from `fastest` (fastest first,
    including the baseline). `passed_over` were faster, but are not reliable.
    """

    row: ConfigurationRow
    fastest: ConfigurationRow
    tied: tuple[ConfigurationRow, ...]
    passed_over: tuple[ConfigurationRow, ...]

    @property
    def is_shown_faster(self) -> bool:
        """True if `fastest` was shown to be faster than the baseline."""
        return self.fastest.useful_tokens_ratio is not None and self.fastest.useful_tokens_ratio.verdict == "faster"


def recommended_choice(summary: Summary) -> Choice | None:
    """Return `choose` of a summary's rows, computed once per summary."""
    cache = vars(summary)  # like functools.cached_property, which would need a circular import here
    if "choice" not in cache:
        cache["choice"] = choose(summary.rows)
    choice: Choice | None = cache["choice"]
    return choice


def choose(rows: Sequence[ConfigurationRow]) -> Choice | None:
    """Choose a configuration; None if nothing was measured. If none is reliable, all measured ones are considered."""
    measured = sorted((row for row in rows if row.measured is not None), key=lambda row: -row.useful_rate)
    if not measured:
        return None
    reliable = [row for row in measured if row.is_reliable] or measured
    fastest = reliable[0]
    passed_over = tuple(row for row in measured if not row.is_reliable and row.useful_rate > fastest.useful_rate)
    tied = tuple(row for row in reliable[1:] if not _differ(row, fastest, comparisons=len(measured) - 1))
    baseline = next((row for row in reliable if row.is_baseline), None)
    choice = Choice(row=fastest, fastest=fastest, tied=tied, passed_over=passed_over)
    if choice.is_shown_faster or baseline is None or fastest.useful_tokens_ratio is None:
        return choice
    return Choice(row=baseline, fastest=fastest, tied=tied, passed_over=passed_over)


def _differ(first: ConfigurationRow, second: ConfigurationRow, *, comparisons: int) -> bool:
    if first.measured is None or second.measured is None:
        return True
    return (
        per_config.ratio(first.measured, second.measured, "useful_tokens_per_sec", comparisons=comparisons).verdict
        is not None
    )
