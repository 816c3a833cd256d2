"""Computation of a summary from a loaded run and prices. Pure: all of the report's numbers are computed here."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from reports import formatting
from reports.read import worker_fingerprints
from reports.read.loaded_run import Configuration, Run
from reports.statistics import per_config
from reports.statistics.per_process import ProcessSteps, describe
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary import cost, tables, warnings
from reports.summary.cost import FINE_TUNING_GPUS, ScalingCost, assumed_scaling
from reports.summary.prices import Pricing, select_prices
from reports.summary.rows import ConfigurationRow, Failure, OtherConfiguration
from reports.summary.summary import PROFILE_NOTES, Summary

GLOBAL_RATE = "global_samples_per_sec"
# A distributed trial and a training are the same configuration if these fields are equal.
_SAME_FIELDS = (
    *("profile", "model", "max_seq_len", "micro_batch_size", "gradient_accumulation_steps", "layout"),
    *("base_precision", "lora_rank", "optimizer", "gradient_checkpointing"),
)


def measure_speedups(
    results: Iterable[TrialResult], label_of: Mapping[str, str], single_worker_rates: Mapping[tuple[object, ...], float]
) -> dict[tuple[object, ...], dict[int, ScalingCost]]:
    """Map each configuration key to its speed-ups, at most linear; `single_worker_rates` has samples per second."""
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
    speedups: dict[tuple[object, ...], dict[int, ScalingCost]] = {}
    for (key, gpus, label), rate in medians.items():
        if gpus > 1 and key in singles:
            speedup, source = rate / singles[key], f"measured: {label}"
            if speedup > gpus:
                source += f"; {formatting.number(speedup, 2)} times one GPU is above linear, so it is priced as {gpus}"
            speedups.setdefault(key, {})[gpus] = ScalingCost(
                gpus=gpus, speedup=min(speedup, float(gpus)), is_measured=True, source=source, label=label
            )
    return speedups


def scalings(
    key: tuple[object, ...], speedups: Mapping[tuple[object, ...], Mapping[int, ScalingCost]]
) -> tuple[ScalingCost, ...]:
    """Return a configuration's speed-ups on FINE_TUNING_GPUS for pricing, each marked as measured or assumed."""
    own = speedups.get(key, {})
    others = {gpus: scaling for measured in speedups.values() for gpus, scaling in measured.items()}
    return tuple(own.get(gpus) or _assume_scaling(gpus, own, others) for gpus in FINE_TUNING_GPUS)


def configuration_key(planned_or_result: PlannedTrial | TrialResult) -> tuple[object, ...]:
    """Return the key that is equal for trials of one configuration on any number of GPUs."""
    return tuple(getattr(planned_or_result.trial, name) for name in _SAME_FIELDS)


def _assume_scaling(gpus: int, own: Mapping[int, ScalingCost], others: Mapping[int, ScalingCost]) -> ScalingCost:
    if (other := others.get(gpus)) is not None:
        source = f"assumed: the speed-up of another configuration; {other.source}"
        return replace(other, is_measured=False, source=source)
    known = own or others
    below = max((count for count in known if count < gpus), default=None)
    if below is None:
        return assumed_scaling(gpus)
    share, label = known[below].speedup / below, known[below].label
    source = f"assumed: the {formatting.number(100 * share, 1)} % efficiency of {label} also holds on {gpus} GPUs"
    return ScalingCost(gpus=gpus, speedup=share * gpus, is_measured=False, source=source)


BASELINE = "baseline"
_MEDIANS = ("first_loss", "last_loss", "load_time_sec")
_LARGEST = ("peak_vram_bytes", "peak_rss_bytes")


def summarize(run: Run, pricing: Pricing | None = None) -> Summary:
    """Summarize a loaded run, priced by the settings. Raises prices.PriceError for an invalid price."""
    hosts = worker_fingerprints.describe_hosts(run.record, run.results)
    pricing = pricing or Pricing()
    priced = select_prices(pricing, hosts.devices)
    results: dict[str, list[TrialResult]] = {configuration.label: [] for configuration in run.configurations}
    for result in run.results:
        results[run.label_of[result.trial_id]].append(result)
    succeeded = {
        label: [result for result in own if result.status is TrialStatus.SUCCEEDED] for label, own in results.items()
    }
    missing = Counter(trial.configuration for trial in run.missing)
    trained = [configuration for configuration in run.configurations if configuration.workload.is_compared]
    labels = [configuration.label for configuration in trained]
    measured = per_config.combine_all(
        {label: describe(map(ProcessSteps.from_result, succeeded[label])) for label in labels if succeeded[label]}
    )
    singles = {
        configuration_key(configuration.planned[0]): measured[configuration.label].steady_samples_per_sec.value
        for configuration in trained
        if configuration.label in measured
    }
    speedups = measure_speedups(run.results, run.label_of, singles)
    baseline = BASELINE if BASELINE in labels else next(iter(labels), "")

    def against_baseline(label: str, amount: str) -> Ratio | None:
        row, base = measured.get(label), None if label == baseline else measured.get(baseline)
        if row is None or base is None:
            return None
        return per_config.ratio(row, base, amount, comparisons=len(measured) - 1)

    rows = tuple(
        ConfigurationRow(
            **_common(configuration, results[configuration.label], missing),
            **_over_workers(succeeded[configuration.label]),
            trial=configuration.planned[0].trial,
            is_baseline=configuration.label == baseline,
            measured=measured.get(configuration.label),
            samples_ratio=against_baseline(configuration.label, "samples"),
            useful_tokens_ratio=against_baseline(configuration.label, "useful_tokens"),
            costs=_costs(
                measured.get(configuration.label),
                priced,
                scalings(configuration_key(configuration.planned[0]), speedups),
                cost.startup_sec(succeeded[configuration.label]),
            ),
        )
        for configuration in trained
    )
    others = tuple(
        OtherConfiguration(
            **_common(configuration, results[configuration.label], missing),
            kind=configuration.workload.name,
            reason=configuration.planned[0].trial.reason,
            n_measurements=sum(len(result.measurements) for result in results[configuration.label]),
        )
        for configuration in run.configurations
        if not configuration.workload.is_compared
    )
    return Summary(
        record=run.record,
        rows=rows,
        others=others,
        measurements=tables.build_tables(run.results, run.label_of),
        baseline=baseline,
        profile_note=PROFILE_NOTES.get(run.record.profile),
        warnings=warnings.find(run, rows, others, baseline, hosts, priced),
        hosts=hosts,
        prices=priced,
        hosted=pricing.hosted(),
        counts=dict(Counter(result.status for result in run.results)),
        failures=tuple(
            Failure(configuration=run.label_of[result.trial_id], result=result)
            for result in run.results
            if result.status is not TrialStatus.SUCCEEDED
        ),
        missing=run.missing,
        rejected=run.rejected,
        quality=run.quality,
    )


def _common(configuration: Configuration, results: Iterable[TrialResult], missing: Counter[str]) -> dict[str, Any]:
    """Return what rows of all workloads have."""
    ends = Counter(result.status for result in results)
    return {
        "label": configuration.label,
        "planned": len(configuration.planned),
        "ends": {end: ends[end] for end in TrialStatus if ends[end]},
        "missing": missing[configuration.label],
    }


def _costs(
    rate: MeasuredRate | None, prices: Sequence[cost.Price], plans: Sequence[ScalingCost], startup: float | None
) -> tuple[cost.Cost, ...]:
    if rate is None:
        return ()
    rates = (rate.elapsed_samples_per_sec, rate.elapsed_useful_tokens_per_sec)
    return tuple(cost.cost(*rates, price, scalings=plans, startup_sec=startup) for price in prices)


def _over_workers(succeeded: Iterable[TrialResult]) -> dict[str, Any]:
    """Return medians (losses, load time) and maxima (memory) of successful trials; None where nothing is known."""
    metrics = [result.metrics for result in succeeded if result.metrics is not None]
    known = {
        name: [value for each in metrics if (value := getattr(each, name)) is not None]
        for name in (*_MEDIANS, *_LARGEST)
    }
    medians = {name: statistics.median(known[name]) if known[name] else None for name in _MEDIANS}
    return medians | {name: max(known[name], default=None) for name in _LARGEST}
