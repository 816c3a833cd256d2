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
from bench.workloads.ranks.launcher import RankLauncher
from bench.workloads.ranks.multi_node import NodeList

MODULE = "bench.workloads.distributed_rank"
Table = list[list[float]]  # a step's seconds, loss, samples, tokens and useful tokens, of each rank


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
    tables = list[Table]()
    with launcher.started() as ranks:
        launcher.lead(ranks, record, lambda line: apply_line(record, tables, line))
    add_measurements(record, tables, launcher.backend)


def follow(_request: Request, trial: Trial, nodes: NodeList, stops: StopSignals) -> int:
    """Run this machine's share of the ranks, with inputs that it checks on its own."""
    return RankLauncher(trial, stops, nodes, module=MODULE).follow(lambda: check_trial(trial))


def apply_line(record: Record, tables: list[Table], line: dict[str, Any]) -> None:
    """Add one of rank 0's lines to the record, and the table of a measured step to `tables`."""
    if "step" in line:
        table, is_warmup = line["step"]["table"], line["step"]["phase"] == "warmup"
        if not is_warmup:
            tables.append(table)
        seconds, losses, samples, tokens, useful = zip(*table, strict=True)
        record.add_step(
            record.warmup if is_warmup else record.steps,
            seconds=max(seconds),
            loss=statistics.mean(losses),
            samples=statistics.mean(samples),
            tokens=round(statistics.mean(tokens)),
            useful=round(statistics.mean(useful)),
        )
    record.apply_report(line)


def add_measurements(record: Record, tables: list[Table], backend: str) -> None:
    """Add the measurements of a successful run."""
    world_size = record.trial.world_size
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
