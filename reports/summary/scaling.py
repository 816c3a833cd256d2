"""How many times one GPU's speed several reach together: from a run's distributed trials, or assumed and said so.

A speed-up is the global samples per second of a distributed configuration over one worker's of the same configuration:
a distributed trial of one rank where the run has one, else the training trial. What no trial measured is carried over:
first from another configuration's distributed trials, else from fewer GPUs, else n GPUs are assumed to be n times one.
More than n times one is measured where the one was slow; it is said, and priced as n.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bench.records.result import TrialResult, TrialStatus
from bench.records.run import PlannedTrial
from reports import formatting
from reports.summary.cost import FINE_TUNING_GPUS, ScalingCost, assumed

GLOBAL_RATE = "global_samples_per_sec"
# What must be equal for a distributed trial to be another one's configuration on more GPUs.
_SAME = (
    *("profile", "model", "max_seq_len", "micro_batch_size", "gradient_accumulation_steps", "layout"),
    *("base_precision", "lora_rank", "optimizer", "gradient_checkpointing"),
)


@dataclass(frozen=True, kw_only=True)
class Speedup:
    """One measured speed-up, and the configuration that reached it."""

    gpus: int
    speedup: float
    label: str


def measured(
    results: Iterable[TrialResult], label_of: Mapping[str, str], alone: Mapping[tuple[object, ...], float]
) -> dict[tuple[object, ...], list[Speedup]]:
    """Configuration (`key`) to its measured speed-ups. `alone` maps it to one worker's samples per second."""
    rates: dict[tuple[tuple[object, ...], int, str], list[float]] = {}
    for result in results:
        if result.status is not TrialStatus.SUCCEEDED or result.trial.kind != "distributed":
            continue
        found = [each.value for each in result.measurements if each.name == GLOBAL_RATE and each.value]
        at = (key(result), result.trial.world_size, label_of[result.trial_id])
        rates.setdefault(at, []).extend(found)
    middle = {at: statistics.median(found) for at, found in rates.items() if found}
    singles = dict(alone) | {like: rate for (like, gpus, _), rate in middle.items() if gpus == 1}
    speedups: dict[tuple[object, ...], list[Speedup]] = {}
    for (like, gpus, label), rate in middle.items():
        if gpus > 1 and like in singles:
            speedups.setdefault(like, []).append(Speedup(gpus=gpus, speedup=rate / singles[like], label=label))
    return speedups


def scalings(like: tuple[object, ...], speedups: Mapping[tuple[object, ...], list[Speedup]]) -> tuple[ScalingCost, ...]:
    """The speed-ups to price a configuration by on FINE_TUNING_GPUS, each saying whether it was measured."""
    own = {one.gpus: one for one in speedups.get(like, [])}
    others = {one.gpus: one for found in speedups.values() for one in found}
    return tuple(_scaling(gpus, own, others) for gpus in FINE_TUNING_GPUS)


def key(of: PlannedTrial | TrialResult) -> tuple[object, ...]:
    """What makes two trials the same configuration, on however many GPUs."""
    return tuple(getattr(of.trial, name) for name in _SAME)


def _scaling(gpus: int, own: Mapping[int, Speedup], others: Mapping[int, Speedup]) -> ScalingCost:
    if gpus == 1:
        return assumed(1)
    if (here := own.get(gpus)) is not None:
        return ScalingCost(
            gpus=gpus, speedup=_linear(here), is_measured=True, source=f"measured: {here.label}{_above_linear(here)}"
        )
    if (there := others.get(gpus)) is not None:
        source = f"assumed: the scaling measured with {there.label}, another configuration{_above_linear(there)}"
        return ScalingCost(gpus=gpus, speedup=_linear(there), is_measured=False, source=source)
    known = own or others
    below = max((count for count in known if count < gpus), default=None)
    if below is None:
        return assumed(gpus)
    found = known[below]
    share = _linear(found) / found.gpus
    source = f"assumed: the {formatting.number(100 * share, 1)} % efficiency of {found.label} holds on {gpus} GPUs"
    return ScalingCost(gpus=gpus, speedup=share * gpus, is_measured=False, source=source)


def _linear(found: Speedup) -> float:
    """What may be priced: n GPUs are never more than n times one."""
    return min(found.speedup, float(found.gpus))


def _above_linear(found: Speedup) -> str:
    if found.speedup <= found.gpus:
        return ""
    return f"; {formatting.number(found.speedup, 2)} times one GPU is above linear, so it is priced as {found.gpus}"
