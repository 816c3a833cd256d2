"""GPU energy of a configuration: joules per token, kilowatt hours of a fine-tuning, and CO2 by a stated factor.

It is the GPU's energy over the measured steps, from its sensor. The host, the data centre's cooling and the time before
the first step are not included.
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

_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Carbon:
    """A CO2 factor: kilograms per kilowatt hour, and its source."""

    kg_per_kwh: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Energy:
    """The GPU energy of one configuration.

    `joules_per_1000_useful_tokens` has its interval over workers or processes. The other amounts are for a fine-tuning
    on FINE_TUNING_SAMPLES samples on one GPU; CO2 is in kilograms, None without a factor.
    """

    joules_per_1000_useful_tokens: Estimate
    fine_tuning_kwh: Amount
    fine_tuning_co2_kg: Amount | None
    carbon: Carbon | None

    @property
    def sentence(self) -> str:
        """A sentence about the energy of the fine-tuning."""
        kwh = formatting.estimate(self.fine_tuning_kwh, " kWh")
        sentence = f"The GPU uses {kwh} for {FINE_TUNING_SAMPLES:,} samples"
        if self.carbon is not None and self.fine_tuning_co2_kg is not None:
            co2 = formatting.estimate(self.fine_tuning_co2_kg, " kg")
            factor = f"{formatting.number(self.carbon.kg_per_kwh)} kg per kWh ({self.carbon.source})"
            sentence += f", which is {co2} of CO2 at {factor}"
        return f"{sentence}; the host and the time before the first step are not included."


def measure_energy(
    results: Iterable[TrialResult], processes: Mapping[str, Sequence[Process]], factor: Carbon | None
) -> dict[str, Energy]:
    """Compute the energy of each configuration of which at least one process had its power sampled."""
    by_id = {result.trial_id: result for result in results}
    samples_by_label: dict[str, list[Sample]] = {}
    for label, described in processes.items():
        for process in described:
            joules = joules_per_1000_useful_tokens(by_id[process.process], process)
            if joules is not None:
                sample = Sample(worker=process.worker, log=math.log(joules), error=process.elapsed_error)
                samples_by_label.setdefault(label, []).append(sample)
    spreads = per_config.spreads(samples_by_label)
    return {
        label: _energy(
            per_config.estimate(per_config.mean_of_logs(samples, spreads.get(label)), len(samples)),
            processes[label],
            factor,
        )
        for label, samples in samples_by_label.items()
    }


def _energy(joules: Estimate, processes: Sequence[Process], factor: Carbon | None) -> Energy:
    tokens_per_sample = [
        process.elapsed_useful_tokens_per_sec / process.elapsed_samples_per_sec for process in processes
    ]
    tokens = sum(tokens_per_sample) / len(tokens_per_sample) * FINE_TUNING_SAMPLES
    kwh_per_joule = tokens / 1000.0 / _JOULES_PER_KWH
    kwh = Amount(value=joules.value, low=joules.low, high=joules.high).times(kwh_per_joule)
    return Energy(
        joules_per_1000_useful_tokens=joules,
        fine_tuning_kwh=kwh,
        fine_tuning_co2_kg=None if factor is None else kwh.times(factor.kg_per_kwh),
        carbon=factor,
    )
