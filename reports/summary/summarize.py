"""From a loaded run and a price to a summary. Pure: the only place where the report's numbers are computed."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any

import pandas as pd

from bench.records.result import TrialResult, TrialStatus
from reports.read import fingerprint
from reports.read.run import Configuration, Run
from reports.statistics import per_config, per_process
from reports.statistics.types import MeasuredRate, Process, Ratio
from reports.summary import cost, energy, scaling, tables, text, warnings
from reports.summary.prices import Pricing, choose
from reports.summary.summary import PROFILE_NOTES, ConfigurationRow, Failure, Other, Summary

BASELINE = "baseline"
_MEDIANS = ("first_loss", "last_loss", "load_time_sec")  # over workers
_LARGEST = ("peak_vram_bytes", "peak_rss_bytes")
TRAINING = "training"  # the kind whose configurations are compared with each other


def summarize(run: Run, pricing: Pricing | None = None, *, today: date | None = None) -> Summary:
    """Sum up a loaded run, priced as the settings say. Raises prices.PriceError where they cannot be followed.

    `today` is the day after which no price may be dated; today's in UTC by default.
    """
    hosts = fingerprint.hosts(run.record, run.results)
    pricing = pricing or Pricing()
    priced = choose(pricing, hosts.devices, today=today or datetime.now(UTC).date())
    trained = tuple(configuration for configuration in run.configurations if configuration.kind == TRAINING)
    measured = _measure_all(run, trained)
    baseline = _baseline(trained)
    over_workers = _over_workers(run.trials)
    used = energy.measured(run.results, {label: one.processes for label, one in measured.items()}, pricing.carbon())
    speedups = scaling.measured(
        run.results,
        run.label_of,
        {
            scaling.key(one.planned[0]): measured[one.label].samples_per_sec.value
            for one in trained
            if one.label in measured
        },
    )
    succeeded: dict[str, list[TrialResult]] = {}
    for result in run.results:
        if result.status is TrialStatus.SUCCEEDED:
            succeeded.setdefault(run.label_of[result.trial_id], []).append(result)
    ends = Counter((run.label_of[result.trial_id], result.status) for result in run.results)
    missing = Counter(one.configuration for one in run.missing)

    def against_baseline(label: str, rate: str) -> Ratio | None:
        mine, base = measured.get(label), None if label == baseline else measured.get(baseline)
        return None if mine is None or base is None else per_config.ratio(mine, base, rate, among=len(measured) - 1)

    rows = tuple(
        ConfigurationRow(
            label=one.label,
            trial=one.planned[0].trial,
            is_baseline=one.label == baseline,
            planned=len(one.planned),
            ends={end: amount for end in TrialStatus if (amount := ends[one.label, end])},
            missing=missing[one.label],
            measured=measured.get(one.label),
            samples_ratio=against_baseline(one.label, "samples_per_sec"),
            useful_tokens_ratio=against_baseline(one.label, "useful_tokens_per_sec"),
            costs=_costs(one, measured.get(one.label), priced, speedups, succeeded.get(one.label, [])),
            energy=used.get(one.label),
            **{name: over_workers.get(one.label, {}).get(name) for name in (*_MEDIANS, *_LARGEST)},
        )
        for one in trained
    )
    taken = Counter(run.measurements["configuration"])
    others = tuple(
        Other(
            label=configuration.label,
            kind=configuration.kind,
            reason=configuration.planned[0].trial.reason,
            planned=len(configuration.planned),
            ends={end: amount for end in TrialStatus if (amount := ends[configuration.label, end])},
            missing=missing[configuration.label],
            n_measurements=taken[configuration.label],
        )
        for configuration in run.configurations
        if configuration.kind != TRAINING
    )
    return Summary(
        record=run.record,
        rows=rows,
        others=others,
        measurements=tables.tables(run.results, run.label_of),
        baseline=baseline,
        finding=text.spell_out(text.finding(rows, others, baseline, run, hosts)),
        second_finding=text.second_finding(rows, baseline),
        profile_note=PROFILE_NOTES.get(run.record.profile),
        cautions=warnings.cautions(
            rows, others, baseline, hosts, priced[0] if priced else None, len(run.rejected), run.results
        ),
        hosts=hosts,
        prices=priced,
        hosted=pricing.hosted(),
        billed=cost.billed(run.results, run.started),
        counts=dict(Counter(result.status for result in run.results)),
        failures=_failures(run),
        missing=run.missing,
        rejected=run.rejected,
    )


def _baseline(trained: tuple[Configuration, ...]) -> str:
    """The configuration called baseline, else the plan's first."""
    labels = [one.label for one in trained]
    return BASELINE if BASELINE in labels else labels[0] if labels else ""


def _measure_all(run: Run, trained: tuple[Configuration, ...]) -> dict[str, MeasuredRate]:
    """Configuration -> what its successful processes measured. A trial is a process, also where two share a worker."""
    ours = {one.label for one in trained}
    usable = [
        result
        for result in run.results
        if result.status is TrialStatus.SUCCEEDED and run.label_of[result.trial_id] in ours
    ]
    described: dict[str, list[Process]] = {}
    steps = [per_process.ProcessSteps.of(one) for one in usable]
    for one, process in zip(usable, per_process.describe(steps), strict=True):
        described.setdefault(run.label_of[one.trial_id], []).append(process)
    return per_config.combine_all(described)


def _over_workers(trials: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Configuration -> column -> median (loss, load time) or largest (memory) of its successes; unknown is left out."""
    good = trials[trials["status"] == TrialStatus.SUCCEEDED.value].groupby("configuration", sort=False)
    middle = good[list(_MEDIANS)].median()
    largest = good[list(_LARGEST)].max()
    return {
        str(label): {str(name): value for name, value in row.items() if pd.notna(value)}
        for label, row in middle.join(largest).to_dict(orient="index").items()
    }


def _costs(
    configuration: Configuration,
    mine: MeasuredRate | None,
    priced: tuple[cost.Price, ...],
    speedups: Mapping[tuple[object, ...], list[scaling.Speedup]],
    succeeded: list[TrialResult],
) -> tuple[cost.Cost, ...]:
    if mine is None or not priced:
        return ()
    plans = scaling.scalings(scaling.key(configuration.planned[0]), speedups)
    startup = cost.startup_sec(succeeded)
    rates = (mine.elapsed_samples_per_sec, mine.elapsed_useful_tokens_per_sec)
    return tuple(cost.cost(*rates, price, scalings=plans, startup_sec=startup) for price in priced)


def _failures(run: Run) -> tuple[Failure, ...]:
    return tuple(
        Failure(
            trial_id=result.trial_id,
            configuration=run.label_of[result.trial_id],
            worker=result.worker,
            end=result.status,
            reason=result.reason,
            attempt=result.attempt,
            n_steps=len(result.steps.step_time_sec),
            n_measurements=len(result.measurements),
            log_tail=tuple(result.log_tail),
        )
        for result in run.results
        if result.status is not TrialStatus.SUCCEEDED
    )
