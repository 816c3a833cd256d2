"""The distributed trial: the same QLoRA step on several ranks, and the cost of their communication.

This process uses no GPU: it starts the ranks and turns their times into measurements. A step's time is the slowest
rank's; all ranks begin a step together, so that work between steps does not count as communication.
Samples and tokens of the steps are per device, as in all trials; the global rates are over all ranks. The report
compares them with a trial of one rank.

On several machines, the first one does this; the others only run their share of the ranks (`follow`).

Rates are inverted times, so a rate and its interval belong to the median step, as in all measurements.
"""

import statistics
from typing import Any

from bench.data.inputs import InputError, Inputs
from bench.data.trial_inputs import check_trial
from bench.harness.record import Record, Request
from bench.harness.termination import StopSignals
from bench.records import Trial
from bench.records.bootstrap import Interval, summarize
from bench.records.result import Steps
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.multi_node import NodeList

MODULE = "bench.workloads.distributed_rank"


def measure(record: Record, inputs: Inputs, stops: StopSignals) -> None:
    """Run the ranks and add their steps and measurements to the record.

    Raises RankFailed, WorkerGone and RankOutOfMemory with the rank's number, and InputError, also for a rank's input.
    """
    trial, (_, data_facts, _) = record.trial, inputs
    if data_facts.samples < trial.world_size:
        raise InputError(
            f"{trial.data}: expected a sample for each of {trial.world_size} ranks, found {data_facts.samples}"
        )
    launcher = RankLauncher(trial, stops, NodeList.from_environment(), module=MODULE)
    record.steps_planned = trial.warmup_steps + trial.measured_steps + 2 + trial.world_size  # and the measurements
    report = RankReport(record)
    with launcher.started() as ranks:
        launcher.lead(ranks, record, report.on_line)
    add_measurements(record, report, launcher.backend)


def follow(_request: Request, trial: Trial, nodes: NodeList, stops: StopSignals) -> int:
    """Run this machine's share of the ranks, with inputs that it checks on its own."""
    return RankLauncher(trial, stops, nodes, module=MODULE).follow(lambda: check_trial(trial))


class RankReport:
    """The data reported by rank 0: steps go into the record at once, the rest is used by `add_measurements`."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.tables: list[list[list[float]]] = []  # the measured steps

    def on_line(self, line: dict[str, Any]) -> None:
        """Process one of rank 0's lines."""
        if "step" in line:
            self._add_step(**line["step"])
        self.record.apply_report(line)

    def _add_step(self, phase: str, table: list[list[float]]) -> None:
        """Add a step; `table` has per rank: seconds, loss, samples, tokens, useful tokens."""
        steps: Steps = self.record.warmup if phase == "warmup" else self.record.steps
        if phase != "warmup":
            self.tables.append(table)
        seconds, losses, samples, tokens, useful = zip(*table, strict=True)
        self.record.add_step(
            steps,
            seconds=max(seconds),
            loss=statistics.mean(losses),
            samples=statistics.mean(samples),
            tokens=round(statistics.mean(tokens)),
            useful=round(statistics.mean(useful)),
        )


def add_measurements(record: Record, report: RankReport, backend: str) -> None:
    """Add the measurements of a successful run."""
    world_size, tables = record.trial.world_size, report.tables
    times = summarize(record.steps.step_time_sec)
    ranks: dict[str, Any] = {"world_size": world_size, "backend": backend}
    for name, column in (("global_samples_per_sec", 2), ("global_tokens_per_sec", 3)):
        amount = sum(row[column] for table in tables for row in table) / len(tables)
        record.add(name, rate(amount, times), **ranks)
    for rank in range(world_size):
        record.add("step_time_sec", summarize([table[rank][0] for table in tables]), rank=rank, world_size=world_size)


def rate(amount: float, times: Interval) -> Interval:
    """Return `amount` per second for an interval of seconds."""
    return Interval(median=amount / times.median, low=amount / times.high, high=amount / times.low, n=times.n)
