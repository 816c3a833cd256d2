"""Speed-up of several GPUs over one: measured by a run's distributed trials, or assumed and marked as such.

A speed-up is the global samples per second of a distributed configuration over one worker's of the same configuration:
from a distributed trial of one rank if the run has one, else from the training trial. A speed-up that was not measured
is taken from another configuration's distributed trials, else from fewer GPUs, else n GPUs are assumed to be n times
one. A measured speed-up above n (the single GPU was slow) is stated, but priced as n.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from reports import formatting
from reports.summary.cost import FINE_TUNING_GPUS, ScalingCost, assumed_scaling

GLOBAL_RATE = "global_samples_per_sec"
# A distributed trial and a training are the same configuration if these fields are equal.
_SAME_FIELDS = (
    *("profile", "model", "max_seq_len", "micro_batch_size", "gradient_accumulation_steps", "layout"),
    *("base_precision", "lora_rank", "optimizer", "gradient_checkpointing"),
)


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """A measured speed-up and its configuration."""

    gpus: int
    speedup: float
    label: str


def measure_speedups(
    results: Iterable[TrialResult], label_of: Mapping[str, str], single_worker_rates: Mapping[tuple[object, ...], float]
) -> dict[tuple[object, ...], list[Speedup]]:
    """Map each configuration key to its speed-ups; `single_worker_rates` has one worker's samples per second."""
    rates: dict[tuple[tuple[object, ...], int, str], list[float]] = {}
    for result in results:
        if result.status is not TrialStatus.SUCCEEDED or not result.trial.workload.measures_scaling:
            continue
        values = [
            measurement.value
            for measurement in result.measurements
            if measurement.name == GLOBAL_RATE and measurement.value
        ]
        group = (configuration_key(result), result.trial.world_size, label_of[result.trial_id])
        rates.setdefault(group, []).extend(values)
    medians = {group: statistics.median(values) for group, values in rates.items() if values}
    singles = dict(single_worker_rates) | {key: rate for (key, gpus, _), rate in medians.items() if gpus == 1}
    speedups: dict[tuple[object, ...], list[Speedup]] = {}
    for (key, gpus, label), rate in medians.items():
        if gpus > 1 and key in singles:
            speedups.setdefault(key, []).append(Speedup(gpus=gpus, speedup=rate / singles[key], label=label))
    return speedups


def scalings(key: tuple[object, ...], speedups: Mapping[tuple[object, ...], list[Speedup]]) -> tuple[ScalingCost, ...]:
    """Return a configuration's speed-ups on FINE_TUNING_GPUS for pricing, each marked as measured or assumed."""
    own = {speedup.gpus: speedup for speedup in speedups.get(key, [])}
    others = {speedup.gpus: speedup for measured_speedups in speedups.values() for speedup in measured_speedups}
    return tuple(_scaling(gpus, own, others) for gpus in FINE_TUNING_GPUS)


def configuration_key(planned_or_result: PlannedTrial | TrialResult) -> tuple[object, ...]:
    """Return the key that is equal for trials of one configuration on any number of GPUs."""
    return tuple(getattr(planned_or_result.trial, name) for name in _SAME_FIELDS)


def _scaling(gpus: int, own: Mapping[int, Speedup], others: Mapping[int, Speedup]) -> ScalingCost:
    if gpus == 1:
        return assumed_scaling(1)
    if (own_speedup := own.get(gpus)) is not None:
        return ScalingCost(
            gpus=gpus,
            speedup=_priced_speedup(own_speedup),
            is_measured=True,
            source=f"measured: {own_speedup.label}{_above_linear_note(own_speedup)}",
        )
    if (other_speedup := others.get(gpus)) is not None:
        note = _above_linear_note(other_speedup)
        source = f"assumed: the speed-up of {other_speedup.label}, another configuration{note}"
        return ScalingCost(gpus=gpus, speedup=_priced_speedup(other_speedup), is_measured=False, source=source)
    known = own or others
    below = max((count for count in known if count < gpus), default=None)
    if below is None:
        return assumed_scaling(gpus)
    largest = known[below]
    share = _priced_speedup(largest) / largest.gpus
    source = (
        f"assumed: the {formatting.number(100 * share, 1)} % efficiency of {largest.label} also holds on {gpus} GPUs"
    )
    return ScalingCost(gpus=gpus, speedup=share * gpus, is_measured=False, source=source)


def _priced_speedup(measured_speedup: Speedup) -> float:
    """Return the speed-up used for prices: n GPUs count as at most n times one."""
    return min(measured_speedup.speedup, float(measured_speedup.gpus))


def _above_linear_note(measured_speedup: Speedup) -> str:
    if measured_speedup.speedup <= measured_speedup.gpus:
        return ""
    times = f"{formatting.number(measured_speedup.speedup, 2)} times one GPU"
    return f"; {times} is above linear, so it is priced as {measured_speedup.gpus}"
