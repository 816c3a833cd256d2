"""Which configuration to train with: the fastest of those that can be relied on, and what cannot be told from it.

Fastest is by useful tokens per second; samples per second would favour whatever cuts samples short, and padding is work
for nothing. A configuration that ran out of memory, failed or timed out in any trial is passed over, however fast its
other trials were. Differences count where the interval excludes 1; all intervals of a run are widened together for how
many there are, so that of equal configurations one is called faster in at most 5 % of runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports.statistics import per_config
from reports.summary.summary import ConfigurationRow, Summary


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The configuration to train with. `fastest` is the one with the most useful tokens per second of those that may be
    recommended, `row` that one where it was shown to be faster than the baseline, else the baseline.

    `tied` were not shown to differ from `fastest`, the fastest first, baseline included. `passed_over` were faster but
    did not succeed in every trial.
    """

    row: ConfigurationRow
    fastest: ConfigurationRow
    tied: tuple[ConfigurationRow, ...]
    passed_over: tuple[ConfigurationRow, ...]

    @property
    def is_shown(self) -> bool:
        """True where the fastest was shown to be faster than the baseline."""
        return self.fastest.useful_tokens_ratio is not None and self.fastest.useful_tokens_ratio.verdict == "faster"


def recommended_choice(summary: Summary) -> Choice | None:
    """`choose` of a summary's rows, made once: sentences, tiles and figures all ask."""
    kept = vars(summary)  # as functools.cached_property does; there it would close a circle of imports
    if "choice" not in kept:
        kept["choice"] = choose(summary.rows)
    found: Choice | None = kept["choice"]
    return found


def choose(rows: Sequence[ConfigurationRow]) -> Choice | None:
    """None where nothing was measured. Where no configuration succeeded throughout, all that were measured count."""
    measured = sorted((row for row in rows if row.measured is not None), key=lambda row: -row.useful_rate)
    if not measured:
        return None
    reliable = [row for row in measured if row.is_reliable] or measured
    fastest = reliable[0]
    passed_over = tuple(row for row in measured if not row.is_reliable and row.useful_rate > fastest.useful_rate)
    tied = tuple(row for row in reliable[1:] if not _differ(row, fastest, among=len(measured) - 1))
    baseline = next((row for row in reliable if row.is_baseline), None)
    choice = Choice(row=fastest, fastest=fastest, tied=tied, passed_over=passed_over)
    if choice.is_shown or baseline is None or fastest.useful_tokens_ratio is None:
        return choice
    return Choice(row=baseline, fastest=fastest, tied=tied, passed_over=passed_over)


def _differ(one: ConfigurationRow, other: ConfigurationRow, *, among: int) -> bool:
    if one.measured is None or other.measured is None:
        return True
    return per_config.ratio(one.measured, other.measured, "useful_tokens_per_sec", among=among).verdict is not None
