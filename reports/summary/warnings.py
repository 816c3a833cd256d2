"""What a careful reader should know before believing the tables: a line for each cause, the worst first.

A cause is told once with the worker or the configurations that it concerns, not once for each trial. The first
MOST_SHOWN lines stand on the first screen; writers fold the rest.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.records.result import TrialResult
from reports import formatting
from reports.read.fingerprint import CPU, Hosts
from reports.statistics import per_config, pooling
from reports.statistics.types import Process
from reports.summary.cost import Price
from reports.summary.summary import ConfigurationRow, Other
from reports.summary.text import ends_in_words

MOST_SHOWN = 5
# Above this, workers of one fleet are no longer alike enough for one number to stand for all of them.
NOTABLE_SPREAD = 1.10
SLOW_WORKER = 0.04  # of a step's time
SLOW_STEPS = 0.02  # how much less elapsed throughput may be than the steady state without a word
_THROTTLED = "throttled"


@dataclass(frozen=True, kw_only=True)
class RunWarning:
    """A line and how much it matters: as a share, how far it moves or may move the numbers."""

    words: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class _Flagged:
    """Trials that raised the same flag, numbers in it aside; `worst` is the one of them that says most."""

    trials: tuple[str, ...]
    workers: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def worst(self) -> str:
        return max(self.flags, key=lambda flag: [float(number) for number in re.findall(r"[0-9.]*[0-9]", flag)])


def cautions(
    rows: Sequence[ConfigurationRow],
    others: Sequence[Other],
    baseline: str,
    hosts: Hosts,
    price: Price | None,
    rejected: int,
    results: Sequence[TrialResult],
) -> tuple[str, ...]:
    """Every caution, the worst first; empty when all is well."""
    measured = {row.label: row.measured.processes for row in rows if row.measured is not None}
    flagged = _flagged(results)
    slow = _slow_workers(measured)
    found = [
        *_of_the_run(rows, others, baseline, rejected),
        *_of_the_stopped(results),
        *_of_machines(hosts, price),
        *_of_other_workers(measured, baseline),
        *_of_slow_workers(slow, flagged, results),
        *_of_spread(rows, slow),
        *_of_clocks(measured),
        *_of_steps(rows),
        *_of_flags([one for one in flagged if not _explains(one, slow)], results),
    ]
    return tuple(one.words for one in sorted(found, key=lambda one: -one.weight))


def _of_the_run(
    rows: Sequence[ConfigurationRow], others: Sequence[Other], baseline: str, rejected: int
) -> Iterable[RunWarning]:
    every: tuple[ConfigurationRow | Other, ...] = (*rows, *others)
    planned = sum(one.planned for one in every)
    incomplete = sum(one.planned - one.succeeded for one in every)
    if 0 < incomplete < planned:  # of none that succeeded the headline says it
        gave = "did not succeed" if others else "gave no measurement"
        said = f"{incomplete} of {formatting.count(planned, 'planned trial')} {gave} ({ends_in_words(every)}); "
        yield RunWarning(words=f"{said}the numbers are over the others.", weight=0.5)
    if rejected:
        said = formatting.count(rejected, "file was rejected; it is", "files were rejected; each is")
        yield RunWarning(words=f"{said} listed with its reason.", weight=0.4)
    by_label = {row.label: row for row in rows}
    if baseline in by_label and by_label[baseline].measured is None and any(row.measured for row in rows):
        said = f"{baseline} has no successful trial, so no configuration can be compared with it."
        yield RunWarning(words=said, weight=2.0)


def _of_the_stopped(results: Sequence[TrialResult]) -> Iterable[RunWarning]:
    stopped = [result for result in results if result.status.is_resumable]
    if stopped:
        said = formatting.count(len(stopped), "trial was", "trials were")
        again = f"`inv bench --resume={stopped[0].run_id}` tries {'it' if len(stopped) == 1 else 'them'} again"
        yield RunWarning(words=f"{said} stopped or lost, which says nothing of a configuration; {again}.", weight=0.45)


def _of_machines(hosts: Hosts, price: Price | None) -> Iterable[RunWarning]:
    if len(hosts.devices) > 1:
        devices = ", ".join(hosts.devices)
        said = f"The workers have different devices ({devices}): their numbers are mixed."
        yield RunWarning(words=said, weight=1.5)
    if hosts.differences:
        keys = formatting.first_n([difference.key for difference in hosts.differences])
        differ = "differs" if len(hosts.differences) == 1 else "differ"
        said = f"Not every trial ran under the same conditions: {keys} {differ}; the fingerprint says where."
        yield RunWarning(words=said, weight=0.05)
    if hosts.contention is not None:
        yield RunWarning(words=hosts.contention, weight=1.0)
    if price is not None and CPU in hosts.devices:
        said = "The price is a GPU's, the speed a CPU's: the dollars only show how cost follows speed."
        yield RunWarning(words=said, weight=0.9)


def _of_other_workers(measured: Mapping[str, Sequence[Process]], baseline: str) -> Iterable[RunWarning]:
    """Configurations that share no worker with the baseline, as where each trial runs on whichever worker is idle."""
    workers = {label: {one.worker for one in found} for label, found in measured.items()}
    apart = [label for label, mine in workers.items() if mine.isdisjoint(workers.get(baseline, mine))]
    if apart:
        assumed = f"that workers are within about {100 * per_config.ASSUMED_NOISE:.0f} % of each other"
        said = f"{formatting.first_n(apart, 3)} ran on other workers than {baseline}; their ratios assume {assumed}"
        yield RunWarning(words=f"{said}; `--spread replicate` runs every configuration on every worker.", weight=0.3)


def _slow_workers(measured: Mapping[str, Sequence[Process]]) -> dict[str, float]:
    """Worker to how much slower than the others it is, as a share, where that is notable."""
    cells = {
        label: per_config.by_worker(per_config.samples(found, "step_time_sec")) for label, found in measured.items()
    }
    return {
        worker: math.expm1(log)
        for worker, log in pooling.slower_workers(cells).items()
        if math.expm1(log) >= SLOW_WORKER
    }


def _of_slow_workers(
    slow: Mapping[str, float], flagged: Sequence[_Flagged], results: Sequence[TrialResult]
) -> Iterable[RunWarning]:
    """`gpu-node-4 is 17 % slower than the other workers, throttled: hw_slowdown in 34 % of samples (9 of 9 trials).`"""
    for worker, share in slow.items():
        own = {result.trial_id for result in results if result.worker == worker}
        causes = [one for one in flagged if worker in one.workers and _explains(one, slow)]
        why = "".join(f", {cause.worst} ({len(own & set(cause.trials))} of {len(own)} trials)" for cause in causes)
        words = f"{worker} is {100 * share:.0f} % slower than the other workers{why}."
        yield RunWarning(words=words, weight=0.6 + share)


def _explains(one: _Flagged, slow: Mapping[str, float]) -> bool:
    """True where a flag is about slow workers alone."""
    return one.worst.startswith(_THROTTLED) and set(one.workers) <= slow.keys()


def _of_spread(rows: Sequence[ConfigurationRow], slow: Mapping[str, float]) -> Iterable[RunWarning]:
    """Configurations whose workers differ by more than the slow ones explain."""
    apart: list[tuple[float, str]] = []
    for row in rows:
        medians = (
            []
            if row.measured is None
            else [seconds / (1.0 + slow.get(worker, 0.0)) for worker, seconds in row.measured.worker_medians.items()]
        )
        if len(medians) > 1 and max(medians) / min(medians) > NOTABLE_SPREAD:
            apart.append((max(medians) / min(medians), row.label))
    if apart:
        spread, label = max(apart)
        more = (
            f", and in {formatting.first_n([name for _, name in apart if name != label], 3)}" if len(apart) > 1 else ""
        )
        said = f"{label}: the slowest worker took {formatting.number(spread, 2)}x the fastest worker's time for a step{more}."
        yield RunWarning(words=said, weight=spread - 1.0)


def _of_clocks(measured: Mapping[str, Sequence[Process]]) -> Iterable[RunWarning]:
    """Workers whose steps jump between two speeds."""
    jumping = [(one.levels_percent, one.worker) for found in measured.values() for one in found if one.levels_percent]
    if jumping:
        workers = list(dict.fromkeys(worker for _, worker in sorted(jumping, reverse=True)))
        total = sum(map(len, measured.values()))
        said = f"Steps jump between two speeds, up to {formatting.number(max(jumping)[0], 1)} % apart, in "
        where = (
            f"{len(jumping)} of {formatting.count(total, 'process', 'processes')} ({formatting.first_n(workers, 3)}): "
        )
        words = f"{said}{where}their clocks were not constant."
        yield RunWarning(words=words, weight=max(jumping)[0] / 100.0)


def _of_steps(rows: Sequence[ConfigurationRow]) -> Iterable[RunWarning]:
    """Drift, steps that stand out, and what slow steps cost."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for flag in () if row.measured is None else row.measured.flags:
            kinds.setdefault(re.sub(r"[^a-z ]", "", flag)[:20], []).append((row.label, flag))
    for found in kinds.values():
        label, flag = max(found, key=lambda one: [float(number) for number in re.findall(r"[0-9.]*[0-9]", one[1])][:1])
        more = [name for name, _ in found if name != label]
        also = f"; so did {formatting.first_n(more, 3)}" if more else ""
        yield RunWarning(words=f"{label}: {flag}{also}.", weight=0.03)
    lost = [
        (1.0 - row.measured.elapsed_samples_per_sec.value / row.measured.samples_per_sec.value, row.label)
        for row in rows
        if row.measured is not None
    ]
    notable = sorted((one for one in lost if one[0] > SLOW_STEPS), reverse=True)
    if notable:
        share, label = notable[0]
        names = formatting.first_n([name for _, name in notable], 3)
        most = f", most that of {label}," if len(notable) > 1 else ""
        said = f"Slow steps make the elapsed throughput of {names} lower than its steady state{most} by "
        yield RunWarning(
            words=f"{said}{100 * share:.1f} %; times, dollars and energy are of elapsed throughput.", weight=share
        )


def _flagged(results: Sequence[TrialResult]) -> list[_Flagged]:
    """What the trials themselves say makes their numbers doubtful, together where only its numbers differ."""
    who: dict[str, list[tuple[TrialResult, str]]] = {}
    for result in results:
        for flag in dict.fromkeys(result.flags):
            who.setdefault(re.sub(r"[0-9.]*[0-9]", "#", flag), []).append((result, flag))
    return [
        _Flagged(
            trials=tuple(dict.fromkeys(result.trial_id for result, _ in found)),
            workers=tuple(dict.fromkeys(result.worker or "unknown" for result, _ in found)),
            flags=tuple(dict.fromkeys(flag for _, flag in found)),
        )
        for found in who.values()
    ]


def _of_flags(flagged: Sequence[_Flagged], results: Sequence[TrialResult]) -> Iterable[RunWarning]:
    for one in flagged:
        if len(one.trials) == len(results) > 2:
            where = f"all {len(results)} trials"
        elif len(one.trials) <= 3:
            where = ", ".join(one.trials)
        else:
            where = f"{len(one.trials)} trials on {formatting.first_n(one.workers, 3)}"
        worst = "at worst " if len(one.flags) > 1 else ""
        yield RunWarning(words=f"{where}: {worst}{one.worst}", weight=0.2 * len(one.trials) / len(results))
