"""Computation of a summary from a loaded run and prices. Pure: all of the report's numbers are computed here."""

import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd

from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from reports.read import clocks, fingerprint
from reports.read.run import Configuration, Run
from reports.statistics import per_config, per_process
from reports.statistics.types import MeasuredRate, Process, Ratio
from reports.summary import cost, energy, scaling, tables, text, warnings
from reports.summary.prices import Pricing, select_prices
from reports.summary.summary import PROFILE_NOTES, ConfigurationRow, Failure, OtherConfiguration, Summary

BASELINE = "baseline"
_MEDIANS = ("first_loss", "last_loss", "load_time_sec")
_LARGEST = ("peak_vram_bytes", "peak_rss_bytes")


def summarize(run: Run, pricing: Pricing | None = None, *, today: date | None = None) -> Summary:
    """Summarize a loaded run, priced by the settings. Raises prices.PriceError for an invalid price.

    `today` is the latest allowed date of a price; the default is today in UTC.
    """
    hosts = fingerprint.describe_hosts(run.record, run.results)
    pricing = pricing or Pricing()
    priced = select_prices(pricing, hosts.devices, today=today or datetime.now(UTC).date())
    trained = tuple(configuration for configuration in run.configurations if configuration.workload.is_compared)
    measured = _measure_all(run, trained)
    baseline = _baseline(trained)
    over_workers = _aggregate_workers(run.trials)
    used = energy.measure_energy(
        run.results, {label: rate.processes for label, rate in measured.items()}, pricing.carbon()
    )
    speedups = _measure_speedups(run, trained, measured)
    succeeded = _succeeded_by_label(run)
    ends = Counter((run.label_of[result.trial_id], result.status) for result in run.results)
    missing = Counter(trial.configuration for trial in run.missing)

    def against_baseline(label: str, rate: str) -> Ratio | None:
        row, base = measured.get(label), None if label == baseline else measured.get(baseline)
        if row is None or base is None:
            return None
        return per_config.ratio(row, base, rate, comparisons=len(measured) - 1)

    rows = tuple(
        ConfigurationRow(
            label=configuration.label,
            trial=configuration.planned[0].trial,
            is_baseline=configuration.label == baseline,
            planned=len(configuration.planned),
            ends={end: amount for end in TrialStatus if (amount := ends[configuration.label, end])},
            missing=missing[configuration.label],
            measured=measured.get(configuration.label),
            samples_ratio=against_baseline(configuration.label, "samples_per_sec"),
            useful_tokens_ratio=against_baseline(configuration.label, "useful_tokens_per_sec"),
            costs=_costs(
                configuration,
                measured.get(configuration.label),
                priced,
                speedups,
                succeeded.get(configuration.label, []),
            ),
            energy=used.get(configuration.label),
            **{name: over_workers.get(configuration.label, {}).get(name) for name in (*_MEDIANS, *_LARGEST)},
        )
        for configuration in trained
    )
    others = _summarize_others(run, ends, missing)
    return Summary(
        record=run.record,
        rows=rows,
        others=others,
        measurements=tables.build_tables(run.results, run.label_of),
        baseline=baseline,
        finding=text.spell_out(text.finding(rows, others, baseline, run, hosts)),
        second_finding=text.second_finding(rows, baseline),
        profile_note=PROFILE_NOTES.get(run.record.profile),
        cautions=warnings.cautions(
            rows,
            others,
            baseline,
            hosts,
            priced[0] if priced else None,
            len(run.rejected),
            run.results,
            clocks.faults(run.record.created_at, run.results, run.started, time.time()),
        ),
        hosts=hosts,
        prices=priced,
        hosted=pricing.hosted(),
        billed=cost.worker_time(run.results, run.started),
        counts=dict(Counter(result.status for result in run.results)),
        failures=_failures(run),
        missing=run.missing,
        rejected=run.rejected,
    )


def _measure_speedups(
    run: Run, trained: tuple[Configuration, ...], measured: dict[str, MeasuredRate]
) -> dict[tuple[object, ...], list[scaling.Speedup]]:
    """Map each configuration key to its speed-ups over one worker."""
    rates = {
        scaling.configuration_key(configuration.planned[0]): measured[configuration.label].samples_per_sec.value
        for configuration in trained
        if configuration.label in measured
    }
    return scaling.measure_speedups(run.results, run.label_of, rates)


def _succeeded_by_label(run: Run) -> dict[str, list[TrialResult]]:
    succeeded: dict[str, list[TrialResult]] = {}
    for result in run.results:
        if result.status is TrialStatus.SUCCEEDED:
            succeeded.setdefault(run.label_of[result.trial_id], []).append(result)
    return succeeded


def _summarize_others(
    run: Run, ends: Counter[tuple[str, TrialStatus]], missing: Counter[str]
) -> tuple[OtherConfiguration, ...]:
    """Summarize the configurations that are not compared with the baseline."""
    n_measurements = Counter(run.measurements["configuration"])
    return tuple(
        OtherConfiguration(
            label=configuration.label,
            kind=configuration.workload.name,
            reason=configuration.planned[0].trial.reason,
            planned=len(configuration.planned),
            ends={end: amount for end in TrialStatus if (amount := ends[configuration.label, end])},
            missing=missing[configuration.label],
            n_measurements=n_measurements[configuration.label],
        )
        for configuration in run.configurations
        if not configuration.workload.is_compared
    )


def _baseline(trained: tuple[Configuration, ...]) -> str:
    """Return the configuration called baseline, else the plan's first."""
    labels = [configuration.label for configuration in trained]
    return BASELINE if BASELINE in labels else labels[0] if labels else ""


def _measure_all(run: Run, trained: tuple[Configuration, ...]) -> dict[str, MeasuredRate]:
    """Map each configuration to the rates of its successful trials. Each trial counts as a process."""
    labels = {configuration.label for configuration in trained}
    usable = [
        result
        for result in run.results
        if result.status is TrialStatus.SUCCEEDED and run.label_of[result.trial_id] in labels
    ]
    described: dict[str, list[Process]] = {}
    steps = [per_process.ProcessSteps.from_result(result) for result in usable]
    for trial, process in zip(usable, per_process.describe(steps), strict=True):
        described.setdefault(run.label_of[trial.trial_id], []).append(process)
    return per_config.combine_all(described)


def _aggregate_workers(trials: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Map configuration -> column -> median (loss, load time) or maximum (memory) of its successful trials."""
    succeeded = trials[trials["status"] == TrialStatus.SUCCEEDED.value].groupby("configuration", sort=False)
    medians = succeeded[list(_MEDIANS)].median()
    maxima = succeeded[list(_LARGEST)].max()
    return {
        str(label): {str(name): value for name, value in row.items() if pd.notna(value)}
        for label, row in medians.join(maxima).to_dict(orient="index").items()
    }


def _costs(
    configuration: Configuration,
    measured: MeasuredRate | None,
    priced: tuple[cost.Price, ...],
    speedups: Mapping[tuple[object, ...], list[scaling.Speedup]],
    succeeded: list[TrialResult],
) -> tuple[cost.Cost, ...]:
    if measured is None or not priced:
        return ()
    plans = scaling.scalings(scaling.configuration_key(configuration.planned[0]), speedups)
    startup = cost.startup_sec(succeeded)
    rates = (measured.elapsed_samples_per_sec, measured.elapsed_useful_tokens_per_sec)
    return tuple(cost.cost(*rates, price, scalings=plans, startup_sec=startup) for price in priced)


def _failures(run: Run) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            trial_id=result.trial_id,
            configuration=run.label_of[result.trial_id],
            worker=result.worker,
            end=result.status,
            reason=result.outcome.text,
            attempt=result.attempt,
            n_steps=len(result.steps.step_time_sec),
            n_measurements=len(result.measurements),
            log_tail=tuple(result.log_tail),
        )
        for result in run.results
        if result.status is not TrialStatus.SUCCEEDED
    )
