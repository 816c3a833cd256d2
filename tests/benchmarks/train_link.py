"""Two ranks of a training over a link of 10 and of 1 Gb/s: the share of communication, predicted and measured.

`python -m tests.benchmarks.train_link [--steps 20] [--rows 4,16] [--rounds 3]`, as root. Two network namespaces, a rank
in each, and a cable whose both ends the kernel shapes (tc, a token bucket). The model is small and its adapters are
large for it, so that gradients take time on such a link. In each round a single rank trains the same global batches,
and two trainings of one rank run at once: they exchange nothing, so that no link can be faster.

Not covered: GPUs and NCCL; latency of a real network; more than two ranks.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.training import TrainingRecord
from bench.records.validation import ALL_LINEAR
from tests.benchmarks import Figure, print_figures, spread
from tests.support import tiny_training
from tests.support.forked import BENCH_LIBRARIES, ForkServer
from tests.support.machines.machine import Link, Machine, require

ADDRESSES = ("10.79.9.1", "10.79.9.2")
LIMIT_SEC = 1200.0
BURST = "256kb"  # burst of the token bucket: 2 ms of 1 Gb/s
WARM_STEPS = 2
CASES = tuple((rate, gradients) for rate in ("10gbit", "1gbit") for gradients in ("fp32", "bf16"))


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_link")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", default="4,16", help="packed rows of a step, one measurement each")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args(argv)
    require("tc")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        here.chmod(0o755)
        model = tiny_training.make_folder(torch_stack.load(), here / "models" / "tiny--wide", width=128)
        data = tiny_training.make_data(here / "chats.jsonl", lines=200)
        with contextlib.ExitStack() as opened:
            machines = [opened.enter_context(Machine(name, here)) for name in ("one", "two")]
            link = opened.enter_context(Link(machines[0], ADDRESSES[0], machines[1], ADDRESSES[1]))
            servers = [opened.enter_context(_server(machine)) for machine in machines]
            runs = Runs(here, (model, data), link, servers, arguments.steps)
            each = [runs.figures(int(rows), arguments.rounds) for rows in arguments.rows.split(",")]
            return [figure for figures in each for figure in figures]


def _server(machine: Machine) -> ForkServer:
    """Start a fork server on a machine, because importing the stack takes longer than training."""
    return ForkServer(machine.folder, BENCH_LIBRARIES, lambda argv, **options: machine.start(*argv, **options))


class Runs:
    """Trainings of the same global batches: by one rank, by two separate ones, and by two over a link."""

    def __init__(
        self, here: Path, inputs: tuple[Path, Path], link: Link, servers: Sequence[ForkServer], steps: int
    ) -> None:
        self.here, self.inputs, self.link, self.servers, self.steps, self.number = here, inputs, link, servers, steps, 0

    def figures(self, rows: int, rounds: int) -> list[Figure]:
        apart: list[float] = []
        ratios: dict[tuple[str, str], list[float]] = {case: [] for case in CASES}
        shares: dict[tuple[str, str], list[tuple[float, ...]]] = {case: [] for case in CASES}
        for _ in range(rounds):
            single_rank = self.apart(rows, 1)
            apart.append(self.apart(rows, 2) / single_rank)
            for case in CASES:
                record = self.together(rows, *case)
                ratios[case].append(speed(record) / single_rank)
                shares[case].append(communication(record))
        first = Figure(
            name=f"2 trainings of one rank at once, {rows} rows a step", value="no communication", ratio=of_one(apart)
        )
        return [first, *(self.figure(rows, case, shares[case], ratios[case]) for case in CASES)]

    def figure(
        self, rows: int, case: tuple[str, str], shares: Sequence[tuple[float, ...]], ratios: list[float]
    ) -> Figure:
        (rate, gradients), (predicted, measured) = case, map(statistics.median, zip(*shares, strict=True))
        return Figure(
            name=f"2 ranks, {rate[:-4]} Gb/s, {gradients}, {rows} rows a step",
            value=f"communication {predicted:.1f} % predicted, {measured:.1f} % measured",
            ratio=of_one(ratios),
            goal=">= 1.8x where arithmetic allows" if case == ("1gbit", "bf16") else "-",
        )

    def shape(self, rate: str) -> None:
        for machine, card in ((self.link.one, self.link.card), (self.link.other, self.link.other_card)):
            limits = ("tbf", "rate", rate, "burst", BURST, "latency", "50ms")
            machine.run("tc", "qdisc", "replace", "dev", card, "root", *limits)

    def apart(self, rows: int, count: int) -> float:
        """Measure useful tokens per second of this many concurrent trainings of one rank."""
        trial = self.trial(rows, "fp32", 1)
        return sum(map(speed, self.ended([self.start(node, trial, {}) for node in range(count)])))

    def together(self, rows: int, rate: str, gradients: str) -> TrainingRecord:
        """Run one training of two ranks over the link."""
        self.shape(rate)
        trial = self.trial(rows, gradients, 2)
        return self.ended([self.start(node, trial, self.meeting(node)) for node in (0, 1)])[0]

    def trial(self, rows: int, gradients: str, ranks: int) -> Trial:
        return tiny_training.plan(
            *self.inputs, world_size=ranks, lora_rank=256, lora_targets=ALL_LINEAR,
            training={
                "rows_per_step": rows, "gradients": gradients, "max_steps": self.steps, "epochs": 1000.0,
                "evaluate_every": 0, "checkpoint_sec": 3600.0,
            },
        )  # fmt: skip

    def start(self, node: int, trial: Trial, meeting: dict[str, str]) -> tuple[subprocess.Popen[str], Path]:
        """Start a trial on a machine; return it and the folder of its results."""
        self.number += 1
        folder = self.here / str(self.number)
        folder.mkdir()
        (folder / "trial.json").write_text(trial.to_text())
        arguments = ("--trial", str(folder / "trial.json"), "--out", str(folder / "out"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **meeting}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        argv = ("-m", "bench", "run", *arguments, "--checkpoints", str(folder / "checkpoints"))
        return self.servers[node].start(*argv, env=environment, **pipes), folder / "out"

    def ended(self, started: Sequence[tuple[subprocess.Popen[str], Path]]) -> list[TrainingRecord]:
        """Wait for the trainings; return their records. Raises AssertionError with a failed rank's output."""
        for process, _ in started:
            output, _ = process.communicate(timeout=LIMIT_SEC)
            assert process.returncode == 0, output
        written = [out / "training.json" for _, out in started]
        return [TrainingRecord.read(path) for path in written if path.exists()]

    def meeting(self, node: int) -> dict[str, str]:
        card = (self.link.card, self.link.other_card)[node]
        return {
            NODE_COUNT: "2",
            NODE_RANK: str(node),
            NODE_ADDRESS: ADDRESSES[0],
            NODE_PORT: "29400",
            NODE_TOKEN: "word",
            "GLOO_SOCKET_IFNAME": card,
        }


def of_one(ratios: list[float]) -> str:
    return spread(summarize(ratios), "x of one rank")


def communication(record: TrainingRecord) -> tuple[float, float]:
    """Return the percentage of a step: predicted, measured."""
    predicted, measured = record.communication_predicted_percent, record.communication_measured_percent
    assert predicted is not None
    assert measured is not None
    return predicted, measured


def speed(record: TrainingRecord) -> float:
    """Return the useful tokens per second of the median step."""
    pairs = list(zip(record.steps.tokens, record.steps.step_time_sec, strict=True))[WARM_STEPS:]
    return statistics.median(tokens / seconds for tokens, seconds in pairs)


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
