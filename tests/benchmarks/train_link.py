"""Two ranks of a training over a link of 10 and of 1 Gb/s: the share of communication, predicted beside measured.

`python -m tests.benchmarks.train_link [--steps 20] [--rows 4,16]`, as root. Two network namespaces, a rank in each, and
a cable whose both ends the kernel shapes (tc, a token bucket). The model is small and its adapters are large for it, so
that gradients take time on such a link. One rank alone trains the same global batches.

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

from bench import stack
from bench.records import ALL_LINEAR, NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.training import TrainingRecord
from tests.benchmarks import Figure
from tests.support import tiny_training
from tests.support.forked import BENCH, ForkServer
from tests.support.machines.machine import Link, Machine, require

ADDRESSES = ("10.79.9.1", "10.79.9.2")
LIMIT_SEC = 1200.0
BURST = "256kb"  # what a token bucket lets through at once; 2 ms of 1 Gb/s
WARM_STEPS = 2


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_link")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", default="4,16", help="packed rows of a step, one measurement each")
    arguments = parser.parse_args(argv)
    require("tc")
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        here.chmod(0o755)
        model = tiny_training.make_folder(stack.load(), here / "models" / "tiny--wide", width=128)
        data = tiny_training.make_data(here / "chats.jsonl", lines=200)
        with contextlib.ExitStack() as opened:
            machines = [opened.enter_context(Machine(name, here)) for name in ("one", "two")]
            link = opened.enter_context(Link(machines[0], ADDRESSES[0], machines[1], ADDRESSES[1]))
            servers = [opened.enter_context(_server(machine)) for machine in machines]
            runs = Runs(here, (model, data), link, servers, arguments.steps)
            return [figure for rows in map(int, arguments.rows.split(",")) for figure in runs.figures(rows)]


def _server(machine: Machine) -> ForkServer:
    """What starts trials on a machine: forks of one process, because to import the stack takes longer than to train."""
    return ForkServer(machine.folder, BENCH, lambda argv, **options: machine.start(*argv, **options))


class Runs:
    """Trainings of the same global batches, by one rank and by two over a link."""

    def __init__(
        self, here: Path, inputs: tuple[Path, Path], link: Link, servers: Sequence[ForkServer], steps: int
    ) -> None:
        self.here, self.inputs, self.link, self.servers, self.steps, self.number = here, inputs, link, servers, steps, 0

    def figures(self, rows: int) -> list[Figure]:
        alone = speed(self.train(rows, "fp32", 1))
        found = []
        for rate in ("10gbit", "1gbit"):
            self.shape(rate)
            for gradients in ("fp32", "bf16"):
                record = self.train(rows, gradients, 2)
                share = record.communication_predicted_percent, record.communication_measured_percent
                found.append(
                    Figure(
                        name=f"2 ranks, {rate[:-4]} Gb/s, {gradients}, {rows} rows a step",
                        value=f"communication {share[0]:.1f} % predicted, {share[1]:.1f} % measured",
                        ratio=f"{speed(record) / alone:.2f}x of one rank",
                        goal=">= 1.8x where arithmetic allows" if (rate, gradients) == ("1gbit", "bf16") else "-",
                    )
                )
        return found

    def shape(self, rate: str) -> None:
        for machine, card in ((self.link.one, self.link.card), (self.link.other, self.link.other_card)):
            limits = ("tbf", "rate", rate, "burst", BURST, "latency", "50ms")
            machine.run("tc", "qdisc", "replace", "dev", card, "root", *limits)

    def train(self, rows: int, gradients: str, ranks: int) -> TrainingRecord:
        """Raises AssertionError with what a rank said, where it did not train."""
        self.number += 1
        trial = tiny_training.plan(
            *self.inputs, world_size=ranks, lora_rank=256, lora_targets=ALL_LINEAR,
            training={
                "rows_per_step": rows, "gradients": gradients, "max_steps": self.steps, "epochs": 1000.0,
                "evaluate_every": 0, "checkpoint_sec": 3600.0,
            },
        )  # fmt: skip
        started = []
        for node, server in enumerate(self.servers[:ranks]):
            place = self.here / f"{self.number}-{node}"
            place.mkdir()
            (place / "trial.json").write_text(trial.to_text())
            words = ("--trial", str(place / "trial.json"), "--out", str(place / "out"))
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **({} if ranks == 1 else self.meeting(node))}
            pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            argv = ("-m", "bench", "run", *words, "--checkpoints", str(place / "checkpoints"))
            started.append(server.start(*argv, env=environment, **pipes))
        for process in started:
            said, _ = process.communicate(timeout=LIMIT_SEC)
            assert process.returncode == 0, said
        return TrainingRecord.read(self.here / f"{self.number}-0" / "out" / "training.json")

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


def speed(record: TrainingRecord) -> float:
    """Useful tokens a second, of the middle step."""
    pairs = list(zip(record.steps.tokens, record.steps.step_time_sec, strict=True))[WARM_STEPS:]
    return statistics.median(tokens / seconds for tokens, seconds in pairs)


if __name__ == "__main__":
    for figure in main(sys.argv[1:]):
        print("\t".join((figure.name, figure.value, figure.ratio, figure.goal)))
