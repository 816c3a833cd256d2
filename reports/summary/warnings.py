"""Warnings of a benchmark: a code with its numbers for each cause, the most important first. `sentences` has the text.

The weight is the fraction by which the cause changes, or may change, the report's numbers: an event on all GPUs counts
more than a setting that one trial did not support.
"""

import enum
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from reports.read.loaded_run import Run
from reports.read.worker_fingerprints import CPU, Hosts
from reports.statistics import per_config
from reports.statistics.types import Process
from reports.summary.cost import Price
from reports.summary.decisions import choose, is_unfit
from reports.summary.loss_verdicts import verdict_of
from reports.summary.rows import ConfigurationRow, OtherConfiguration, PlannedRow

# Above this ratio of step times, one number does not represent all workers of a fleet.
NOTABLE_SPREAD = 1.10
SLOW_STEPS = 0.02  # elapsed throughput lower by more than this fraction is notable
NOTABLE_DRIFT = 0.01  # from the first to the last trial
SLOW_WORKER = 0.04  # fraction of the step time
_THROTTLED = "throttled"
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


class WarningCode(enum.StrEnum):
    """A cause of doubt about the report's numbers; `sentences.warning_text` names the values of each."""

    LOSS_PENDING = "loss_pending"
    LOSS_UNKNOWN = "loss_unknown"
    INCOMPLETE = "incomplete"
    REJECTED = "rejected"
    NO_BASELINE = "no_baseline"
    STOPPED = "stopped"
    DEVICES = "devices"
    CONDITIONS = "conditions"
    CONTENTION = "contention"
    CPU_PRICE = "cpu_price"
    SLOW_WORKER = "slow_worker"
    SPREAD = "spread"
    DRIFT = "drift"
    SLOW_STEPS = "slow_steps"
    FLAG = "flag"


@dataclass(frozen=True, kw_only=True)
class RunWarning:
    """A cause with its weight, and its values by name: numbers, names, and lists of names."""

    code: WarningCode
    weight: float
    values: Mapping[str, Any] = field(default_factory=dict)


def find(
    run: Run,
    rows: Sequence[ConfigurationRow],
    others: Sequence[OtherConfiguration],
    baseline: str,
    hosts: Hosts,
    prices: Sequence[Price],
) -> tuple[RunWarning, ...]:
    """Return every warning, the most important first."""
    measured = {row.label: row.measured.processes for row in rows if row.measured is not None}
    groups = _group_flags(run.results)
    slow = _slow_workers(measured)
    warnings = [
        *_loss_warnings(run, rows),
        *_run_warnings((*rows, *others), rows, baseline, len(run.rejected)),
        *_stopped_warnings(run.results),
        *_machine_warnings(hosts, prices),
        *_slow_worker_warnings(slow, groups, run.results),
        *_spread_warnings(rows, slow),
        *drift_warnings(measured),
        *_step_warnings(rows),
        *_flag_warnings([group for group in groups if not _is_about_slow_workers(group, slow)], len(run.results)),
    ]
    return tuple(sorted(warnings, key=lambda warning: -warning.weight))


def _loss_warnings(run: Run, rows: Sequence[ConfigurationRow]) -> Iterator[RunWarning]:
    """Yield a warning if the loss of the recommended configuration should have been compared and was not."""
    choice = choose(rows, run.quality)
    row = None if choice is None else choice.row
    if row is None or row.is_baseline or verdict_of(run.quality, row.trial) != "unknown":
        return
    if run.quality is not None:
        values = {"label": row.label, "run_id": run.record.run_id}
        yield RunWarning(code=WarningCode.LOSS_PENDING, weight=9.0, values=values)
    elif row.trial.matmul != "bf16":
        yield RunWarning(code=WarningCode.LOSS_UNKNOWN, weight=9.0, values={"label": row.label})


def _run_warnings(
    configurations: Sequence[PlannedRow],
    rows: Sequence[ConfigurationRow],
    baseline: str,
    rejected: int,
) -> Iterator[RunWarning]:
    planned = sum(row.planned for row in configurations)
    incomplete = sum(row.planned - row.succeeded for row in configurations)
    is_fault = any(row.planned > row.succeeded and not is_unfit(row, baseline) for row in configurations)
    if is_fault and 0 < incomplete < planned:  # if none succeeded, the headline says so
        values = {"trials": incomplete, "planned": planned, "ends": count_ends(configurations)}
        yield RunWarning(code=WarningCode.INCOMPLETE, weight=0.5, values=values)
    if rejected:
        yield RunWarning(code=WarningCode.REJECTED, weight=0.4, values={"files": rejected})
    if any(row.is_baseline and row.measured is None for row in rows) and any(row.measured for row in rows):
        yield RunWarning(code=WarningCode.NO_BASELINE, weight=2.0, values={"baseline": baseline})


def count_ends(rows: Iterable[PlannedRow]) -> dict[str, int]:
    """Count the trials of all rows by how they ended, and those without a usable result as missing."""
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update({end.value: amount for end, amount in row.ends.items()} | {"missing": row.missing})
    order = (*(end.value for end in TrialStatus), "missing")
    return {name: totals[name] for name in order if totals[name]}


def _stopped_warnings(results: Sequence[TrialResult]) -> Iterator[RunWarning]:
    stopped = [result for result in results if result.status.is_external]
    if stopped:
        values = {"trials": len(stopped), "run_id": stopped[0].run_id}
        yield RunWarning(code=WarningCode.STOPPED, weight=0.45, values=values)


def _machine_warnings(hosts: Hosts, prices: Sequence[Price]) -> Iterator[RunWarning]:
    if len(hosts.devices) > 1:
        yield RunWarning(code=WarningCode.DEVICES, weight=1.5, values={"devices": list(hosts.devices)})
    if hosts.differences:
        yield RunWarning(code=WarningCode.CONDITIONS, weight=0.05, values={"keys": list(hosts.differences)})
    if hosts.contention is not None:
        yield RunWarning(code=WarningCode.CONTENTION, weight=1.0, values=hosts.contention)
    if prices and CPU in hosts.devices:
        yield RunWarning(code=WarningCode.CPU_PRICE, weight=0.9)


def _slow_workers(measured: Mapping[str, Sequence[Process]]) -> dict[str, float]:
    """Map each notably slow worker to the fraction by which it is slower than the others."""
    cells = {
        label: per_config.mean_by_worker(per_config.samples(processes, "step_time_sec"))
        for label, processes in measured.items()
    }
    return {worker: math.expm1(log) for worker, log in slower_workers(cells).items() if math.expm1(log) >= SLOW_WORKER}


def slower_workers(cells: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Map each worker to its time relative to the median worker, as a logarithm.

    At least three quarters of the configurations that every worker ran reach this value. {} with fewer than three
    workers: of two, neither can be called the slow one.
    """
    workers = sorted({worker for by_worker in cells.values() for worker in by_worker})
    shared = [by_worker for by_worker in cells.values() if len(by_worker) == len(workers)]
    if len(workers) < 3 or not shared:
        return {}
    table = np.array([[by_worker[worker] for worker in workers] for by_worker in shared])
    deviations = table - np.median(table, axis=1, keepdims=True)
    return dict(zip(workers, np.quantile(deviations, 0.25, axis=0, method="lower").tolist(), strict=True))


def _slow_worker_warnings(
    slow: Mapping[str, float], groups: Sequence[Mapping[str, Any]], results: Sequence[TrialResult]
) -> Iterator[RunWarning]:
    """Warn of slow workers, with the flags of their trials that say why, and how many trials raised each."""
    for worker, share in slow.items():
        own = {result.trial_id for result in results if result.worker == worker}
        causes = {
            group["flag"]: len(own & set(group["trials"]))
            for group in groups
            if worker in group["workers"] and _is_about_slow_workers(group, slow)
        }
        values = {"worker": worker, "share": share, "causes": causes, "trials": len(own)}
        yield RunWarning(code=WarningCode.SLOW_WORKER, weight=0.6 + share, values=values)


def _is_about_slow_workers(group: Mapping[str, Any], slow: Mapping[str, float]) -> bool:
    """Return whether a flag says that workers throttled, all of them slow ones."""
    return group["flag"].startswith(_THROTTLED) and set(group["workers"]) <= slow.keys()


def _spread_warnings(rows: Sequence[ConfigurationRow], slow: Mapping[str, float]) -> Iterator[RunWarning]:
    """Warn of configurations whose workers differ by more than the slow workers explain."""
    spreads: dict[str, float] = {}
    for row in rows:
        medians = {} if row.measured is None else row.measured.worker_medians
        healthy = [seconds / (1.0 + slow.get(worker, 0.0)) for worker, seconds in medians.items()]
        if len(healthy) > 1 and max(healthy) / min(healthy) > NOTABLE_SPREAD:
            spreads[row.label] = max(healthy) / min(healthy)
    if spreads:
        label = max(spreads, key=lambda name: (spreads[name], name))
        values = {"label": label, "ratio": spreads[label], "also": [name for name in spreads if name != label]}
        yield RunWarning(code=WarningCode.SPREAD, weight=spreads[label] - 1.0, values=values)


def drift_warnings(measured: Mapping[str, Sequence[Process]]) -> Iterator[RunWarning]:
    """Yield the drift of the machines that was taken off, if it is shown to be notable; positive: slower."""
    slope = per_config.fit_slope(measured)
    if slope is None or max(slope.low, -slope.high) < math.log1p(NOTABLE_DRIFT):
        return
    values = {name: 100.0 * math.expm1(getattr(slope, name)) for name in ("change", "low", "high")}
    yield RunWarning(code=WarningCode.DRIFT, weight=abs(slope.change), values=values)


def _step_warnings(rows: Sequence[ConfigurationRow]) -> Iterator[RunWarning]:
    """Warn of the cost of slow steps."""
    losses = {
        row.label: 1.0 - row.measured.elapsed_samples_per_sec.value / row.measured.steady_samples_per_sec.value
        for row in rows
        if row.measured is not None
    }
    slowed = sorted((label for label in losses if losses[label] > SLOW_STEPS), key=lambda label: -losses[label])
    if slowed:
        share = losses[slowed[0]]
        yield RunWarning(code=WarningCode.SLOW_STEPS, weight=share, values={"labels": slowed, "share": share})


def _group_flags(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Group the flags that trials raised about their own numbers; flags that differ only in numbers form one group.

    Its flag is that with the largest numbers.
    """
    groups: dict[str, list[tuple[TrialResult, str]]] = {}
    for result in results:
        for flag in dict.fromkeys(result.flags):
            groups.setdefault(_NUMBER.sub("#", flag), []).append((result, flag))
    return [
        {
            "trials": list(dict.fromkeys(result.trial_id for result, _ in raised)),
            "workers": list(dict.fromkeys(result.worker or "unknown" for result, _ in raised)),
            "flag": max((flag for _, flag in raised), key=lambda flag: list(map(float, _NUMBER.findall(flag)))),
            "is_worst": len({flag for _, flag in raised}) > 1,
        }
        for raised in groups.values()
    ]


def _flag_warnings(groups: Sequence[Mapping[str, Any]], trials: int) -> Iterator[RunWarning]:
    for group in groups:
        weight = 0.2 * len(group["trials"]) / trials
        yield RunWarning(code=WarningCode.FLAG, weight=weight, values={**group, "total": trials})
