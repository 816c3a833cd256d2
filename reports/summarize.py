"""From a loaded run and a price to a summary. Pure: the only place where the report's numbers are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from bench.result import End
from reports import cost, fingerprint, sentences, stats
from reports.load import Configuration, Run
from reports.summary import PROFILE_NOTES, Failure, Row, Summary

BASELINE = "baseline"


def summarize(run: Run, price: cost.Price | None = None) -> Summary:
    """Sum up a loaded run at a price per GPU hour."""
    measured = _measure_all(run)
    baseline = _baseline(run.configurations)
    trials = dict(tuple(run.trials.groupby("configuration", sort=False)))
    missing = Counter(one.configuration for one in run.missing)
    rows = tuple(
        _row(
            one,
            trials.get(one.label),
            missing[one.label],
            measured,
            baseline,
            price,
        )
        for one in run.configurations
    )
    hosts = fingerprint.hosts(run.record, run.results)
    note = PROFILE_NOTES.get(run.record.profile)
    return Summary(
        record=run.record,
        rows=rows,
        baseline=baseline,
        finding=sentences.finding(rows, baseline, run.record, hosts),
        second_finding=sentences.second_finding(rows, baseline),
        profile_note=note,
        cautions=sentences.cautions(rows, baseline, hosts, price, len(run.rejected)),
        hosts=hosts,
        price=price,
        counts=dict(Counter(result.status for result in run.results)),
        failures=_failures(run),
        missing=run.missing,
        rejected=run.rejected,
    )


def _baseline(configurations: tuple[Configuration, ...]) -> str:
    """The configuration called baseline, else the plan's first."""
    labels = [one.label for one in configurations]
    return BASELINE if BASELINE in labels else labels[0] if labels else ""


def _measure_all(run: Run) -> dict[str, stats.Measured]:
    steps = run.steps
    usable = steps[(steps["phase"] == "measure") & (steps["status"] == End.SUCCEEDED.value)]
    workers: dict[str, list[stats.WorkerSteps]] = {}
    columns = ["step_time_sec", "samples", "tokens", "useful_tokens"]
    # Two trials of one configuration on one worker (a repeat) are one worker's steps.
    for (label, worker), rows in usable.groupby(["configuration", "worker"], sort=False, dropna=False):
        arrays = {name: rows[name].to_numpy(dtype=np.float64) for name in columns}
        workers.setdefault(str(label), []).append(stats.WorkerSteps(worker=str(worker), **arrays))
    streams = {one.label: number for number, one in enumerate(run.configurations)}
    return {label: stats.measure(found, stream=streams[label]) for label, found in workers.items()}


def _row(
    configuration: Configuration,
    trials: pd.DataFrame | None,
    missing: int,
    measured: Mapping[str, stats.Measured],
    baseline: str,
    price: cost.Price | None,
) -> Row:
    trial = configuration.planned[0].trial
    mine, base = measured.get(configuration.label), measured.get(baseline)
    comparable = mine is not None and base is not None and configuration.label != baseline
    ends = {} if trials is None else {End(end): int(n) for end, n in trials["status"].value_counts(sort=False).items()}
    good = None if trials is None else trials[trials["status"] == End.SUCCEEDED.value]
    return Row(
        label=configuration.label,
        reason=trial.reason,
        max_seq_len=trial.max_seq_len,
        micro_batch_size=trial.micro_batch_size,
        gradient_accumulation_steps=trial.gradient_accumulation_steps,
        layout=trial.layout,
        base_precision=trial.base_precision,
        lora_rank=trial.lora_rank,
        optimizer=trial.optimizer,
        gradient_checkpointing=trial.gradient_checkpointing,
        is_baseline=configuration.label == baseline,
        planned=len(configuration.planned),
        ends=ends,
        missing=missing,
        measured=mine,
        samples_ratio=stats.ratio(mine, base, "samples_per_sec") if comparable and mine and base else None,
        useful_tokens_ratio=stats.ratio(mine, base, "useful_tokens_per_sec") if comparable and mine and base else None,
        cost=None if mine is None else cost.per_1000_samples(mine.samples_per_sec, price),
        first_loss=_median(good, "first_loss"),
        last_loss=_median(good, "last_loss"),
        peak_vram_bytes=_largest(good, "peak_vram_bytes"),
        peak_rss_bytes=_largest(good, "peak_rss_bytes"),
        load_time_sec=_median(good, "load_time_sec"),
    )


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
            log_tail=tuple(result.log_tail),
        )
        for result in run.results
        if result.status is not End.SUCCEEDED
    )


def _median(trials: pd.DataFrame | None, column: str) -> float | None:
    known = None if trials is None else trials[column].dropna()
    return None if known is None or known.empty else float(known.median())


def _largest(trials: pd.DataFrame | None, column: str) -> int | None:
    known = None if trials is None else trials[column].dropna()
    return None if known is None or known.empty else int(known.max())
