"""The distributed trial: the same QLoRA step on several ranks, and the cost of their communication.

This process uses no GPU: it starts the ranks and turns their times into measurements. A step's time is the slowest
rank's; all ranks begin a step together, so that work between steps does not count as communication.
Samples and tokens of the steps are per device, as in all trials; the global rates are over all ranks. Efficiency here
compares with the same ranks in the same run without communication; the report compares with a trial of one rank.

On several machines, the first one does this; the others only run their share of the ranks (`follow`).

Rates are inverted times, so a rate and its interval belong to the median step, as in all measurements.
"""

import random
import statistics
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from bench.data.inputs import InputError, Inputs
from bench.data.trial_inputs import check_trial
from bench.harness.record import Record, Request
from bench.harness.termination import StopSignals
from bench.records import Trial
from bench.records.bootstrap import RESAMPLES, Interval, quantile, summarize
from bench.records.result import Steps
from bench.workloads.ranks.launcher import RankLauncher, make_limits
from bench.workloads.ranks.multi_node import NodeList

MODULE = "bench.workloads.distributed_rank"
REDUCE_SIZE_COUNT = {"gpu": 5, "tiny": 3}


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Run the ranks and add their steps and measurements to the record.

    Raises RankFailed, RankGone and RankOutOfMemory with the rank's number, and InputError, also for a rank's input.
    """
    trial, (_, data_facts, _) = record.trial, inputs
    if data_facts.samples < trial.world_size:
        raise InputError(
            f"{trial.data}: expected a sample for each of {trial.world_size} ranks, found {data_facts.samples}"
        )
    launcher = RankLauncher(trial, stops, NodeList.from_environment(), module=MODULE, limits=make_limits(trial))
    launcher.check()
    record.steps_planned = trial.warmup_steps + trial.measured_steps + _planned_measurements(trial)
    report = RankReport(record)
    with launcher.started() as ranks:
        launcher.lead(ranks, record, report.on_line)
    add_measurements(record, report, launcher.backend)


def follow(_request: Request, trial: Trial, nodes: NodeList, stops: StopSignals) -> int:
    """Run this machine's share of the ranks, with inputs that it checks on its own."""
    launcher = RankLauncher(trial, stops, nodes, module=MODULE, limits=make_limits(trial))
    return launcher.follow(lambda: check_trial(trial))


class RankReport:
    """The data reported by rank 0: steps go into the record at once, the rest is used by `add_measurements`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.tables: dict[str, dict[int, list[list[list[float]]]]] = defaultdict(lambda: defaultdict(list))
        self.all_reduce_sec: dict[int, list[float]] = {}
        self.peaks: dict[str, list[float]] = {}

    def on_line(self, line: dict[str, Any]) -> None:
        """Process one of rank 0's lines."""
        record = self.record
        if "step" in line:
            self._add_step(**line["step"])
        if "all_reduce" in line:
            self.all_reduce_sec[line["all_reduce"]["bytes"]] = line["all_reduce"]["sec"]
        record.apply_report(line)
        if "peaks" in line:
            self.peaks = line["peaks"]
            record.peak_rss_bytes = int(max(self.peaks["rss_bytes"]))
            if record.fingerprint.get("device") == "cuda":
                record.peak_vram_bytes = int(max(self.peaks["vram_bytes"]))

    def _add_step(self, kind: str, block: int, table: list[list[float]]) -> None:
        """Add a step; `table` has per rank: seconds, loss, samples, tokens, useful tokens."""
        self.tables[kind][block].append(table)
        if kind not in ("warmup", "on"):
            return
        steps: Steps = self.record.warmup if kind == "warmup" else self.record.steps
        seconds, losses, samples, tokens, useful = zip(*table, strict=True)
        self.record.add_step(
            steps,
            seconds=max(seconds),
            loss=statistics.mean(losses),
            samples=statistics.mean(samples),
            tokens=round(statistics.mean(tokens)),
            useful=round(statistics.mean(useful)),
        )

    def slowest(self, kind: str) -> list[list[float]]:
        """Return the slowest rank's step times of a kind, by block."""
        return [[max(row[0] for row in table) for table in block] for block in self.tables[kind].values()]


def add_measurements(record: Record, report: RankReport, backend: str) -> None:
    """Add the measurements of a successful run."""
    world_size = record.trial.world_size
    on = [table for block in report.tables["on"].values() for table in block]
    times = summarize(record.steps.step_time_sec)
    ranks: dict[str, Any] = {"world_size": world_size, "backend": backend}
    for name, column in (("global_samples_per_sec", 2), ("global_tokens_per_sec", 3)):
        amount = sum(row[column] for table in on for row in table) / len(on)
        record.add(name, rate(amount, times), **ranks)
    for rank in range(world_size):
        record.add("step_time_sec", summarize([table[rank][0] for table in on]), rank=rank, world_size=world_size)
    record.fingerprint["rank_peak_rss_bytes"] = [int(value) for value in report.peaks["rss_bytes"]]
    if world_size == 1:
        for name in COMMUNICATION_METRICS:
            record.add(name, None, note="one rank does not communicate", **ranks)
        return
    _add_communication(record, report, ranks)


COMMUNICATION_METRICS = (
    "efficiency_percent",
    "communication_share_no_sync_percent",
    "all_reduce_gb_per_sec",
    "all_reduce_bus_gb_per_sec",
    "communication_bound_sec",
)


def _add_communication(record: Record, report: RankReport, ranks: dict[str, Any]) -> None:
    world_size, gradient = record.trial.world_size, int(record.fingerprint["gradient_bytes"])
    for size, seconds in report.all_reduce_sec.items():
        on_bus = size / 1e9 * bus_factor(world_size)
        context: dict[str, Any] = {"size_bytes": size, "is_gradient_size": size == gradient, "dtype": "fp32", **ranks}
        record.add("all_reduce_gb_per_sec", rate(size / 1e9, summarize(seconds)), **context)
        record.add("all_reduce_bus_gb_per_sec", rate(on_bus, summarize(seconds)), **context)
    off, on = report.slowest("off"), report.slowest("on")
    step_sec_without = statistics.median(t for block in off for t in block)
    bound = summarize(report.all_reduce_sec[gradient])
    record.add(
        "communication_bound_sec",
        bound,
        gradient_bytes=gradient,
        efficiency_without_overlap_percent=round(100.0 * step_sec_without / (step_sec_without + bound.median), 3),
        efficiency_with_full_overlap_percent=round(100.0 * step_sec_without / max(step_sec_without, bound.median), 3),
        **ranks,
    )
    efficiency_interval = efficiency_percent(off, on)
    record.add(
        "efficiency_percent",
        efficiency_interval,
        against="the same ranks without communication",
        step_time_without_sec=round(step_sec_without, 6),
        blocks=len(off),
        **ranks,
    )
    share = remainder_percent(efficiency_interval)
    record.add("communication_share_no_sync_percent", share, blocks=len(off), **ranks)


def _planned_measurements(trial: Trial) -> int:
    if trial.world_size == 1:
        return 3 + len(COMMUNICATION_METRICS)
    return 2 + trial.world_size + 2 * REDUCE_SIZE_COUNT[trial.profile] + len(COMMUNICATION_METRICS) - 2


def rate(amount: float, times: Interval) -> Interval:
    """Return `amount` per second for an interval of seconds."""
    return _map_decreasing(times, lambda sec: amount / sec)


def efficiency_percent(without: list[list[float]], with_: list[list[float]]) -> Interval:
    """Divide the median step time without communication by the one with it, in percent; blocks of both alternate.

    The interval is a bootstrap's over the steps of each side. Values above 100 are noise and are not clipped.
    """
    off, on = [t for block in without for t in block], [t for block in with_ for t in block]
    chooser = random.Random(0)  # noqa: S311 - a bootstrap wants repeatable, not secret

    def resampled_median(times: list[float]) -> float:
        return statistics.median(chooser.choices(times, k=len(times)))

    resampled = sorted(100.0 * resampled_median(off) / resampled_median(on) for _ in range(RESAMPLES))
    return Interval(
        median=100.0 * statistics.median(off) / statistics.median(on),
        low=quantile(resampled, 0.025),
        high=quantile(resampled, 0.975),
        n=len(off),
    )


def remainder_percent(part: Interval) -> Interval:
    """Subtract an interval in percent from 100."""
    return _map_decreasing(part, lambda percent: 100.0 - percent)


def _map_decreasing(values: Interval, map_: Callable[[float], float]) -> Interval:
    """Map an interval by a decreasing function, which swaps the ends."""
    return Interval(
        median=map_(values.median),
        low=map_(values.high),
        high=map_(values.low),
        n=values.n,
    )


def bus_factor(world_size: int) -> float:
    """Return bytes per link over bytes reduced in a ring all-reduce: 2 (n - 1) / n, as in nccl-tests."""
    return 2.0 * (world_size - 1) / world_size
