"""What a configuration's GPU used: joules for tokens; kilowatt hours of a fine-tuning, and CO2 by a stated factor.

It is the GPU's own energy over the measured steps, as its sensor says: not the host's, not a data centre's cooling, and
not the time before the first step.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.records.result import TrialResult
from reports import formatting
from reports.statistics import per_config
from reports.statistics.energy import joules_per_1000_useful_tokens
from reports.statistics.per_config import Sample
from reports.statistics.types import Estimate, Process
from reports.summary.cost import FINE_TUNING_SAMPLES, Amount

_JOULES_A_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Carbon:
    """How much CO2 a kilowatt hour stands for, in kilograms, and who says so."""

    kg_per_kwh: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Energy:
    """`joules_per_1000_useful_tokens` with its interval over workers or processes; the kilowatt hours of a fine-tuning
    on FINE_TUNING_SAMPLES samples on one GPU, and its CO2 in kilograms, None without a factor.
    """

    joules_per_1000_useful_tokens: Estimate
    fine_tuning_kwh: Amount
    fine_tuning_co2_kg: Amount | None
    carbon: Carbon | None

    @property
    def words(self) -> str:
        """A sentence about the fine-tuning."""
        kwh = formatting.estimate(self.fine_tuning_kwh, " kWh")
        said = f"The GPU uses {kwh} for {FINE_TUNING_SAMPLES:,} samples"
        if self.carbon is not None and self.fine_tuning_co2_kg is not None:
            co2 = formatting.estimate(self.fine_tuning_co2_kg, " kg")
            said += f", which is {co2} of CO2 at {formatting.number(self.carbon.kg_per_kwh)} kg a kWh ({self.carbon.source})"
        return f"{said}; without the host, and without the time before the first step."


def measured(
    results: Iterable[TrialResult], processes: Mapping[str, Sequence[Process]], factor: Carbon | None
) -> dict[str, Energy]:
    """Configuration to what it used; only those of which a process had its power sampled."""
    by_id = {result.trial_id: result for result in results}
    taken: dict[str, list[Sample]] = {}
    for label, found in processes.items():
        for process in found:
            joules = joules_per_1000_useful_tokens(by_id[process.process], process)
            if joules is not None:
                sample = Sample(worker=process.worker, log=math.log(joules), error=process.elapsed_error)
                taken.setdefault(label, []).append(sample)
    shared = per_config.spreads(taken)
    return {
        label: _energy(
            per_config.estimate(per_config.mean_of_logs(found, shared.get(label)), len(found)),
            processes[label],
            factor,
        )
        for label, found in taken.items()
    }


def _energy(joules: Estimate, processes: Sequence[Process], factor: Carbon | None) -> Energy:
    each = [process.elapsed_useful_tokens_per_sec / process.elapsed_samples_per_sec for process in processes]
    tokens = sum(each) / len(each) * FINE_TUNING_SAMPLES
    per_joule = tokens / 1000.0 / _JOULES_A_KWH
    kwh = Amount(value=joules.value, low=joules.low, high=joules.high).times(per_joule)
    return Energy(
        joules_per_1000_useful_tokens=joules,
        fine_tuning_kwh=kwh,
        fine_tuning_co2_kg=None if factor is None else kwh.times(factor.kg_per_kwh),
        carbon=factor,
    )
