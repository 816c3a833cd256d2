"""Ranks of a training over a link of 10 and of 1 Gb/s: useful tokens a second, and the share of communication.

    python -m tests.benchmarks.train_link --model DIR [--targets attention,all-linear] [--cases direct:fp32:4:2,...]

As root, with a model folder (`python -m tests.model_shapes DIR`). Each rank has a GPU of this host and a network
namespace; all cables, whose ends the kernel shapes (tc, a token bucket), meet in a router, and NCCL exchanges by
sockets only. `direct` is the same without namespaces, by NVLink or PCIe. A case is a link, the gradients' type, the
rows of a step on each rank, and the ranks. Rows have 4,096 tokens, adapters rank 16. One GPU trains the first case's
rows of a rank, for comparison. Without a GPU the demo's small model is a rehearsal, whose ratios mean nothing.

Not covered: latency of a real network.
"""

import argparse
import contextlib
import json
import os
import random
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
from bench.records.training import Training, TrainingData, TrainingRecord
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from tests.benchmarks import Figure, a_trial, demo_inputs, print_figures, spread
from tests.support.machines.machine import SOCKETS_ONLY, Link, Machine, require
from tests.support.paths import ROOT

LIMIT_SEC = 1200.0
BURST = "256kb"  # burst of the token bucket: 2 ms of 1 Gb/s
WARM_STEPS = 2
STAR = "10.79.1{}.{}"  # the cable of a machine and the end of it: 1 is the machine's, 2 the router's
TARGETS = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
CASES = "direct:fp32:4:2,10gbit:fp32:4:2,10gbit:bf16:4:2,1gbit:fp32:4:2,1gbit:bf16:4:2"


def main(argv: Sequence[str] = ()) -> list[Figure]:
    """Measure every kind of adapter on one GPU, and on several over each link."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_link")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", help="default: the demo's small model, made for this")
    parser.add_argument("--targets", default="attention,all-linear", help="what has adapters")
    parser.add_argument("--cases", default=CASES, help="LINK:GRADIENTS:ROWS:RANKS")
    parser.add_argument("--json", type=Path, help="every step time")
    arguments = parser.parse_args(argv)
    texts = [case.split(":") for case in arguments.cases.split(",")]
    cases = [(rate, gradients, int(rows), int(ranks)) for rate, gradients, rows, ranks in texts]
    results: dict[str, dict[str, Any]] = {}
    figures = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        here = Path(folder)
        here.chmod(0o755)
        model = arguments.model or demo_inputs(here)[0]
        linked = [ranks for rate, _, _, ranks in cases if rate != "direct"]
        ends = star(opened, here, max(linked)) if linked else []
        for targets in arguments.targets.split(","):
            runs = Runs(here, model, ends, arguments.steps, targets)
            single = runs.run("direct", "fp32", cases[0][2], 1)
            results[f"1 GPU, {targets}"] = summary(single)
            for rate, gradients, rows, ranks in cases:
                record = runs.run(rate, gradients, rows * ranks, ranks)
                key = f"{ranks} GPUs, {rate}, {targets}, {gradients}, {rows} rows each"
                results[key] = summary(record)
                print(key, json.dumps(results[key]), flush=True)
                if arguments.json is not None:
                    arguments.json.write_text(json.dumps(results, indent=1))
                share = record.communication_measured_percent
                figures.append(
                    Figure(
                        name=key,
                        value=f"{statistics.median(speeds(record)):,.0f} tokens/s, communication {share:.1f} %",
                        ratio=spread(summarize(efficiencies(record, single)), f"of {ranks} GPUs apart"),
                        goal=">= 0.97" if rate == "direct" else ">= 0.96 at 10 Gb/s",
                    )
                )
    return figures


def star(opened: contextlib.ExitStack, folder: Path, count: int) -> list[tuple[Machine, str]]:
    """Create this many machines, whose cables meet in a router; return the cables' ends: machine and network card."""
    require("tc")
    router = opened.enter_context(Machine("router", folder))
    router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
    ends = []
    for number in range(count):
        machine = opened.enter_context(Machine(f"node{number}", folder))
        link = opened.enter_context(Link(machine, STAR.format(number, 1), router, STAR.format(number, 2)))
        machine.run("ip", "route", "add", "default", "via", link.other_address)
        ends += [(machine, link.card), (router, link.other_card)]
    return ends


def write_chats(path: Path, chats: int = 4000) -> str:
    """Write chats of about 200 tokens: random words, since speed depends only on lengths."""
    vocabulary = ("adapter", "gradient", "rank", "learning", "memory", "cluster", "token", "weights", "number", "layer")
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(chats):
            texts = [" ".join(draw.choices(vocabulary, k=count)) for count in (40, 100)]
            roles = zip(("user", "assistant"), texts, strict=True)
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in roles]}) + "\n")
    return str(path)


class Runs:
    """Trainings of several ranks, over cables with these ends or without."""

    def __init__(self, here: Path, model: str, ends: list[tuple[Machine, str]], steps: int, targets: str) -> None:
        self.here, self.model, self.ends, self.steps, self.targets = here, model, ends, steps, targets
        self.on_gpu, self.number = torch_stack.load().torch.cuda.is_available(), 0
        self.data = write_chats(here / "chats.jsonl")

    def run(self, rate: str, gradients: str, rows: int, ranks: int) -> TrainingRecord:
        """Train with these rows of a step on all ranks together."""
        self.number += 1
        folder = self.here / f"{self.targets}-{self.number}"
        folder.mkdir()
        (folder / "trial.json").write_text(self.trial(gradients, rows, ranks).to_text())
        if rate == "direct":
            started = [self.start_directly(folder, ranks)]
        else:
            for machine, card in self.ends:
                limits = ("tbf", "rate", rate, "burst", BURST, "latency", "50ms")
                machine.run("tc", "qdisc", "replace", "dev", card, "root", *limits)
            started = [self.start(folder, node, ranks) for node in range(ranks)]
        for process in started:
            output, _ = process.communicate(timeout=LIMIT_SEC)
            assert process.returncode == 0, output
        return TrainingRecord.read(folder / "out-0" / "training.json")

    def trial(self, gradients: str, rows: int, ranks: int) -> Trial:
        tokens = 4096 if self.on_gpu else 1024
        files = TrainingData(files=[self.data], max_seq_len=tokens, validation_share=0.0)
        training = Training(
            data=files, rows_per_step=rows, gradients=gradients, max_steps=self.steps, epochs=1000.0, evaluate_every=0,
            checkpoint_sec=3600.0,
        )  # fmt: skip
        return a_trial(
            "link", self.model, is_cuda=self.on_gpu, data=self.data, recipe="fast", max_seq_len=tokens,
            micro_batch_size=1, lora_dropout=0.0, lora_targets=TARGETS[self.targets], optimizer="adamw_torch",
            held_layers=6 if self.on_gpu else 0, gradient_checkpointing=False, kind="finetune", world_size=ranks,
            training=training,
        )  # fmt: skip

    def start_directly(self, folder: Path, ranks: int) -> subprocess.Popen[str]:
        environment = {**ENVIRONMENT, "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(ranks)))}
        return subprocess.Popen(self.argv(folder, 0), env=environment, cwd=ROOT, **PIPES)

    def start(self, folder: Path, node: int, ranks: int) -> subprocess.Popen[str]:
        machine, card = self.ends[2 * node]
        meeting = {
            NODE_COUNT: str(ranks), NODE_RANK: str(node), NODE_ADDRESS: STAR.format(0, 1), NODE_PORT: "29400",
            NODE_TOKEN: "word", "GLOO_SOCKET_IFNAME": card, "NCCL_SOCKET_IFNAME": card,
            "CUDA_VISIBLE_DEVICES": str(node),
        }  # fmt: skip
        environment = {**ENVIRONMENT, **SOCKETS_ONLY, **meeting}
        return machine.start(*self.argv(folder, node), env=environment, cwd=ROOT, **PIPES)

    def argv(self, folder: Path, node: int) -> tuple[str, ...]:
        paths = ("--trial", str(folder / "trial.json"), "--out", str(folder / f"out-{node}"))
        return (sys.executable, "-m", "bench", "run", *paths, "--checkpoints", str(folder / "checkpoints"))


def summary(record: TrainingRecord) -> dict[str, Any]:
    return {
        "tokens_per_sec": statistics.median(speeds(record)),
        "step_time_sec": list(record.steps.step_time_sec),
        "loss": list(record.steps.loss),
        "measured_percent": record.communication_measured_percent,
    }


def efficiencies(record: TrainingRecord, single: TrainingRecord) -> list[float]:
    """Return the tokens per second of each step as a share of those of as many separate GPUs."""
    apart = record.world_size * statistics.median(speeds(single))
    return [speed / apart for speed in speeds(record)]


def speeds(record: TrainingRecord) -> list[float]:
    pairs = list(zip(record.steps.tokens, record.steps.step_time_sec, strict=True))[WARM_STEPS:]
    return [tokens / seconds for tokens, seconds in pairs]


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
