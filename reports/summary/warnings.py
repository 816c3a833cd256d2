"""Warnings for the reader of the report: one line per cause, the most important first.

A cause is listed once with the worker or configurations that it concerns, not once per trial. The first MAX_SHOWN lines
are on the first screen; writers fold the others.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.records.units import format_percent
from reports import formatting
from reports.read.fingerprint import CPU, Hosts
from reports.statistics import per_config
from reports.statistics.types import Process
from reports.summary.cost import Price
from reports.summary.summary import ConfigurationRow, OtherConfiguration
from reports.summary.text import SLOW_STEPS, describe_ends

MAX_SHOWN = 5
# Above this ratio of step times, one number does not represent all workers of a fleet.
NOTABLE_SPREAD = 1.10
OUTLIERS = 0.1  # share of the steps; fewer do not change a median
NOTABLE_DRIFT = 0.01  # from the first to the last trial
SLOW_WORKER = 0.04  # fraction of the step time
_THROTTLED = "throttled"
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class RunWarning:
    """A warning and its weight: the fraction by which it changes, or may change, the numbers."""

    text: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class _FlagGroup:
    """Trials that raised the same flag, ignoring its numbers; `worst` is the flag with the largest numbers."""

    trials: tuple[str, ...]
    workers: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def worst(self) -> str:
        return max(self.flags, key=lambda flag: [float(number) for number in _NUMBER.findall(flag)])


def cautions(
    rows: Sequence[ConfigurationRow],
    others: Sequence[OtherConfiguration],
    baseline: str,
    hosts: Hosts,
    price: Price | None,
    rejected: int,
    results: Sequence[TrialResult],
    dates: Sequence[str],
) -> tuple[str, ...]:
    """Return every warning as text, the most important first. `dates` are those of `reports.read.attempts`."""
    measured = {row.label: row.measured.processes for row in rows if row.measured is not None}
    groups = _group_flags(results)
    slow = _slow_workers(measured)
    warnings = [
        *_run_warnings(rows, others, baseline, rejected),
        *_stopped_warnings(results),
        *(RunWarning(text=sentence, weight=0.35) for sentence in dates),
        *_machine_warnings(hosts, price),
        *_other_worker_warnings(measured, baseline),
        *_slow_worker_warnings(slow, groups, results),
        *_spread_warnings(rows, slow),
        *_clock_warnings(measured),
        *_drift_warnings(measured),
        *_step_warnings(rows),
        *_flag_warnings([group for group in groups if not _is_about_slow_workers(group, slow)], results),
    ]
    return tuple(warning.text for warning in sorted(warnings, key=lambda warning: -warning.weight))


def _run_warnings(
    rows: Sequence[ConfigurationRow],
    others: Sequence[OtherConfiguration],
    baseline: str,
    rejected: int,
) -> Iterable[RunWarning]:
    configurations: tuple[ConfigurationRow | OtherConfiguration, ...] = (*rows, *others)
    planned = sum(row.planned for row in configurations)
    incomplete = sum(row.planned - row.succeeded for row in configurations)
    is_fault = any(row.planned > row.succeeded and not _is_unfit(row, baseline) for row in configurations)
    if is_fault and 0 < incomplete < planned:  # if none succeeded, the headline says so
        outcome = "did not succeed" if others else "gave no measurement"
        trials = f"{incomplete} of {formatting.count(planned, 'planned trial')}"
        text = f"{trials} {outcome} ({describe_ends(configurations)}); the numbers are of the others."
        yield RunWarning(text=text, weight=0.5)
    if rejected:
        text = formatting.count(rejected, "file was rejected; it is", "files were rejected; each is")
        yield RunWarning(text=f"{text} listed with the reason.", weight=0.4)
    by_label = {row.label: row for row in rows}
    if baseline in by_label and by_label[baseline].measured is None and any(row.measured for row in rows):
        text = f"{baseline} has no successful trial, so no configuration can be compared with it."
        yield RunWarning(text=text, weight=2.0)


def describe_unfit(rows: Sequence[ConfigurationRow], others: Sequence[OtherConfiguration], baseline: str) -> str:
    """Name the configurations that need more memory than there is: a result of the benchmark; "" without any."""
    configurations: tuple[ConfigurationRow | OtherConfiguration, ...] = (*rows, *others)
    labels = [row.label for row in configurations if _is_unfit(row, baseline)]
    if not labels or not any(row.succeeded for row in configurations):
        return ""
    verb = "does" if len(labels) == 1 else "do"
    return f"{formatting.first_n(labels)} {verb} not fit into memory: every trial ended OUT_OF_MEMORY."


def _is_unfit(row: ConfigurationRow | OtherConfiguration, baseline: str) -> bool:
    """Return True if every planned trial ran out of memory. Never for the baseline, which the others need."""
    return row.label != baseline and 0 < row.planned == row.ends.get(TrialStatus.OUT_OF_MEMORY, 0)


def _stopped_warnings(results: Sequence[TrialResult]) -> Iterable[RunWarning]:
    stopped = [result for result in results if result.status.is_external]
    if stopped:
        trials = formatting.count(len(stopped), "trial was", "trials were")
        remedy = f"`inv bench --resume={stopped[0].run_id}` retries {'it' if len(stopped) == 1 else 'them'}"
        yield RunWarning(text=f"{trials} stopped or lost, through no fault of a configuration; {remedy}.", weight=0.45)


def _machine_warnings(hosts: Hosts, price: Price | None) -> Iterable[RunWarning]:
    if len(hosts.devices) > 1:
        devices = ", ".join(hosts.devices)
        text = f"The workers have different devices ({devices}): their numbers are mixed."
        yield RunWarning(text=text, weight=1.5)
    if hosts.differences:
        keys = formatting.first_n([difference.key for difference in hosts.differences])
        differ = "differs" if len(hosts.differences) == 1 else "differ"
        text = f"Not every trial ran under the same conditions: {keys} {differ}; the fingerprint has the details."
        yield RunWarning(text=text, weight=0.05)
    if hosts.contention is not None:
        yield RunWarning(text=hosts.contention, weight=1.0)
    if price is not None and CPU in hosts.devices:
        text = "The price is a GPU's, but the speed is a CPU's: the dollars only show how cost depends on speed."
        yield RunWarning(text=text, weight=0.9)


def _other_worker_warnings(measured: Mapping[str, Sequence[Process]], baseline: str) -> Iterable[RunWarning]:
    """Warn of configurations that share no worker with the baseline, as when trials run on any idle worker."""
    workers = {label: {process.worker for process in processes} for label, processes in measured.items()}
    base = measured.get(baseline, ())
    other = [label for label, processes in measured.items() if base and not per_config.is_comparable(processes, base)]
    if other:
        text = f"{formatting.first_n(other, 3)} ran on other devices than {baseline} and cannot be compared with it"
        yield RunWarning(text=f"{text}; `--spread replicate` runs every configuration on every worker.", weight=1.4)
    disjoint = [
        label
        for label, names in workers.items()
        if label not in other and names.isdisjoint(workers.get(baseline, names))
    ]
    if disjoint:
        assumed = f"that workers are within about {format_percent(per_config.ASSUMED_NOISE)} of each other"
        text = f"{formatting.first_n(disjoint, 3)} ran on other workers than {baseline}; their ratios assume {assumed}"
        yield RunWarning(text=f"{text}; `--spread replicate` runs every configuration on every worker.", weight=0.3)


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
    slow: Mapping[str, float], groups: Sequence[_FlagGroup], results: Sequence[TrialResult]
) -> Iterable[RunWarning]:
    """Warn of slow workers, with the reason if it is known.

    Example: `gpu-node-4 is 17 % slower than the other workers, throttled: hw_slowdown in 34 % of samples (9 of 9
    trials).`
    """
    for worker, share in slow.items():
        own = {result.trial_id for result in results if result.worker == worker}
        causes = [group for group in groups if worker in group.workers and _is_about_slow_workers(group, slow)]
        why = "".join(f", {cause.worst} ({len(own & set(cause.trials))} of {len(own)} trials)" for cause in causes)
        text = f"{worker} is {format_percent(share)} slower than the other workers{why}."
        yield RunWarning(text=text, weight=0.6 + share)


def _is_about_slow_workers(group: _FlagGroup, slow: Mapping[str, float]) -> bool:
    """Return whether a flag says that workers throttled, all of them slow ones."""
    return group.worst.startswith(_THROTTLED) and set(group.workers) <= slow.keys()


def _spread_warnings(rows: Sequence[ConfigurationRow], slow: Mapping[str, float]) -> Iterable[RunWarning]:
    """Warn of configurations whose workers differ by more than the slow workers explain."""
    spreads: list[tuple[float, str]] = []
    for row in rows:
        medians = (
            []
            if row.measured is None
            else [seconds / (1.0 + slow.get(worker, 0.0)) for worker, seconds in row.measured.worker_medians.items()]
        )
        if len(medians) > 1 and max(medians) / min(medians) > NOTABLE_SPREAD:
            spreads.append((max(medians) / min(medians), row.label))
    if spreads:
        spread, label = max(spreads)
        others = [name for _, name in spreads if name != label]
        more = f"; a large spread also in {formatting.first_n(others, 3)}" if len(spreads) > 1 else ""
        ratio = formatting.number(spread, 2)
        text = f"{label}: the slowest worker took {ratio}x the fastest worker's time for a step{more}."
        yield RunWarning(text=text, weight=spread - 1.0)


def _drift_warnings(measured: Mapping[str, Sequence[Process]]) -> Iterable[RunWarning]:
    """Say which drift of the machines was taken off, if it is shown to be notable."""
    slope = per_config.fit_slope(measured)
    if slope is None or max(slope.low, -slope.high) < math.log1p(NOTABLE_DRIFT):
        return
    bounds = sorted(100.0 * abs(math.expm1(end)) for end in (slope.low, slope.high))
    word, change = "slower" if slope.change > 0.0 else "faster", 100.0 * abs(math.expm1(slope.change))
    text = f"The machines became {change:.2g} % {word} ({bounds[0]:.2g} to {bounds[1]:.2g} %) during the run"
    yield RunWarning(text=f"{text}; a line over the trials' times was taken off.", weight=abs(slope.change))


def _clock_warnings(measured: Mapping[str, Sequence[Process]]) -> Iterable[RunWarning]:
    """Warn of workers whose steps jump between two speeds."""
    jumping = [
        (process.levels_percent, process.worker)
        for processes in measured.values()
        for process in processes
        if process.levels_percent
    ]
    if jumping:
        workers = list(dict.fromkeys(worker for _, worker in sorted(jumping, reverse=True)))
        total = sum(map(len, measured.values()))
        text = f"Steps jump between two speeds, up to {formatting.number(max(jumping)[0], 1)} % apart, in "
        where = (
            f"{len(jumping)} of {formatting.count(total, 'process', 'processes')} ({formatting.first_n(workers, 3)}): "
        )
        sentence = f"{text}{where}their clocks were not constant."
        yield RunWarning(text=sentence, weight=max(jumping)[0] / 100.0)


def _step_warnings(rows: Sequence[ConfigurationRow]) -> Iterable[RunWarning]:
    """Warn of outliers, and of the cost of slow steps."""
    shares = {row.label: row.measured.outliers / row.measured.n_steps for row in rows if row.measured is not None}
    notable_shares = [label for label in sorted(shares, key=lambda label: -shares[label]) if shares[label] > OUTLIERS]
    if notable_shares:
        label, *more = notable_shares
        also = f"; also in {formatting.first_n(more, 3)}" if more else ""
        yield RunWarning(text=f"{label}: {format_percent(shares[label])} of the steps are outliers{also}.", weight=0.03)
    slowdowns = [
        (1.0 - row.measured.elapsed_samples_per_sec.value / row.measured.steady_samples_per_sec.value, row.label)
        for row in rows
        if row.measured is not None
    ]
    notable = sorted((slowdown for slowdown in slowdowns if slowdown[0] > SLOW_STEPS), reverse=True)
    if notable:
        share, label = notable[0]
        names = formatting.first_n([name for _, name in notable], 3)
        most = f", most that of {label}," if len(notable) > 1 else ""
        text = f"Slow steps make the elapsed throughput of {names} lower than the steady state{most} by "
        remark = "the headline, times, dollars and energy use elapsed throughput."
        yield RunWarning(text=f"{text}{format_percent(share, 1)}; {remark}", weight=share)


def _group_flags(results: Sequence[TrialResult]) -> list[_FlagGroup]:
    """Group the flags that trials raised about their own numbers; flags that differ only in numbers form one group."""
    groups: dict[str, list[tuple[TrialResult, str]]] = {}
    for result in results:
        for flag in dict.fromkeys(result.flags):
            groups.setdefault(_NUMBER.sub("#", flag), []).append((result, flag))
    return [
        _FlagGroup(
            trials=tuple(dict.fromkeys(result.trial_id for result, _ in raised)),
            workers=tuple(dict.fromkeys(result.worker or "unknown" for result, _ in raised)),
            flags=tuple(dict.fromkeys(flag for _, flag in raised)),
        )
        for raised in groups.values()
    ]


def _flag_warnings(groups: Sequence[_FlagGroup], results: Sequence[TrialResult]) -> Iterable[RunWarning]:
    for group in groups:
        if len(group.trials) == len(results) > 2:
            where = f"all {len(results)} trials"
        elif len(group.trials) <= 3:
            where = ", ".join(group.trials)
        else:
            where = f"{len(group.trials)} trials on {formatting.first_n(group.workers, 3)}"
        worst = "at worst " if len(group.flags) > 1 else ""
        yield RunWarning(text=f"{where}: {worst}{group.worst}", weight=0.2 * len(group.trials) / len(results))
