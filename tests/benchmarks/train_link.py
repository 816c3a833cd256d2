"""Two ranks of a training over a link of 10 and of 1 Gb/s: the share of communication.

`python -m tests.benchmarks.train_link [--steps 20] [--rows 4,16] [--rounds 3]`, as root. Two network namespaces, a rank
in each, and a cable whose both ends the kernel shapes (tc, a token bucket). The model is small and its adapters are
large for it, so that gradients take time on such a link. In each round a single rank trains the same global batches,
and two trainings of one rank run at once: they exchange nothing, so that no link can be faster.

    python -m tests.benchmarks.train_link --model DIR [--targets attention,all-linear] [--cases direct:fp32:4:2,...]

With a model folder (`python -m tests.model_shapes DIR`) each rank has a GPU of this host and a namespace, all cables
meet in a router, and NCCL exchanges by sockets only; `direct` is the same without namespaces, by NVLink or PCIe. A case
is a link, the gradients' type, the rows of a step on each rank, and the ranks. Rows have 4,096 tokens, adapters rank
16. One GPU trains the first case's rows of a rank, for comparison. With `--suite`, a `distributed` trial of the same
rows follows each case of float32 gradients over a link.

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
from functools import partial
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.records import Trial
from bench.records.bootstrap import summarize
from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.result import TrialResult
from bench.records.training import Training, TrainingData, TrainingRecord
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from tests.benchmarks import Figure, a_trial, print_figures, spread
from tests.support import tiny_training
from tests.support.forked import BENCH_LIBRARIES, ForkServer
from tests.support.machines.machine import Link, Machine, require
from tests.support.paths import ROOT

ADDRESSES = ("10.79.9.1", "10.79.9.2")
LIMIT_SEC = 1200.0
BURST = "256kb"  # burst of the token bucket: 2 ms of 1 Gb/s
WARM_STEPS = 2
STAR = "10.79.1{}.{}"  # the cable of a machine and the end of it: 1 is the machine's, 2 the router's
Ends = Sequence[tuple[Machine, str]]  # a machine and its network card
TARGETS = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}
GPU_CASES = "direct:fp32:4:2,10gbit:fp32:4:2,10gbit:bf16:4:2,1gbit:fp32:4:2,1gbit:bf16:4:2"
CASES = tuple((rate, gradients) for rate in ("10gbit", "1gbit") for gradients in ("fp32", "bf16"))


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_link")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", default="4,16", help="packed rows of a step, one measurement each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="measure on GPUs with this model folder")
    parser.add_argument("--targets", default="attention,all-linear", help="with --model: what has adapters")
    parser.add_argument("--cases", default=GPU_CASES, help="with --model: LINK:GRADIENTS:ROWS:RANKS")
    parser.add_argument("--suite", action="store_true", help="with --model: distributed trials too")
    parser.add_argument("--json", type=Path, help="with --model: every step time")
    arguments = parser.parse_args(argv)
    if arguments.model is not None:
        return on_gpus(arguments)
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
            ends = [(link.one, link.card), (link.other, link.other_card)]
            runs = Runs(here, (model, data), ends, ADDRESSES[0], servers, arguments.steps)
            each = [runs.figures(int(rows), arguments.rounds) for rows in arguments.rows.split(",")]
            return [figure for figures in each for figure in figures]


def _server(machine: Machine) -> ForkServer:
    """Start a fork server on a machine, because importing the stack takes longer than training."""
    return ForkServer(machine.folder, BENCH_LIBRARIES, lambda argv, **options: machine.start(*argv, **options))


GPU_ROW_TOKENS, GPU_HELD_LAYERS = 4096, 6
SOCKETS_ONLY = {
    "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0",
    "NCCL_NET": "Socket",
}  # fmt: skip


def on_gpus(arguments: argparse.Namespace) -> list[Figure]:
    """Measure every kind of adapter on one GPU, and on two over each link."""
    results: dict[str, dict[str, Any]] = {}
    figures = []

    def add_result(name: str, record: TrainingRecord) -> None:
        results[name] = summary(record)
        print(name, json.dumps(results[name]), flush=True)
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(results, indent=1))

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        here = Path(folder)
        here.chmod(0o755)
        data = long_data(here / "chats.jsonl")
        texts = [case.split(":") for case in arguments.cases.split(",")]
        cases = [(rate, gradients, int(rows), int(ranks)) for rate, gradients, rows, ranks in texts]
        linked = [ranks for rate, _, _, ranks in cases if rate != "direct"]
        ends = star(opened, here, max(linked)) if linked else []
        for targets in arguments.targets.split(","):
            runs = GpuRuns(here, (arguments.model, data), ends, STAR.format(0, 1), (), arguments.steps)
            runs.targets = targets
            single = runs.direct(cases[0][2], "fp32", 1)
            add_result(f"1 GPU, {targets}", single)
            for rate, gradients, rows, ranks in cases:
                run = runs.direct if rate == "direct" else partial(runs.together, rate=rate)
                record = run(rows * ranks, gradients=gradients, ranks=ranks)
                key = f"{ranks} GPUs, {rate}, {targets}, {gradients}, {rows} rows each"
                add_result(key, record)
                efficiency = [each / ranks / speed(single) for each in speeds(record)]
                figures.append(
                    Figure(
                        name=key,
                        value=f"{speed(record):,.0f} tokens/s, communication {communication(record):.1f} %",
                        ratio=spread(summarize(efficiency), f"of {ranks} GPUs apart"),
                        goal=">= 0.97" if rate == "direct" else ">= 0.96 at 10 Gb/s",
                    )
                )
                if arguments.suite and gradients == "fp32" and rate != "direct":
                    figures.append(runs.distributed(rows, rate, ranks))
    return figures


def star(opened: contextlib.ExitStack, folder: Path, count: int) -> list[tuple[Machine, str]]:
    """Create this many machines, whose cables meet in a router; return each with its network card."""
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


def long_data(path: Path, chats: int = 4000) -> Path:
    """Write chats of about 200 tokens: random words, since speed depends only on lengths."""
    vocabulary = ("adapter", "gradient", "rank", "learning", "memory", "cluster", "token", "weights", "number", "layer")
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(chats):
            texts = [" ".join(draw.choices(vocabulary, k=count)) for count in (40, 100)]
            roles = zip(("user", "assistant"), texts, strict=True)
            file.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in roles]}) + "\n")
    return path


def summary(record: TrainingRecord) -> dict[str, Any]:
    return {
        "tokens_per_sec": speed(record),
        "step_time_sec": list(record.steps.step_time_sec),
        "loss": list(record.steps.loss),
        "measured_percent": record.communication_measured_percent,
    }


class Runs:
    """Trainings of the same global batches: by one rank, by two separate ones, and by two over a link."""

    def __init__(
        self, here: Path, inputs: tuple[Path, Path], ends: Ends, address: str, servers: Sequence[ForkServer], steps: int
    ) -> None:
        """`ends` are the cables' ends, `address` is that of the first."""
        self.here, self.inputs, self.ends, self.address = here, inputs, ends, address
        self.servers, self.steps, self.number = servers, steps, 0

    def figures(self, rows: int, rounds: int) -> list[Figure]:
        apart: list[float] = []
        ratios: dict[tuple[str, str], list[float]] = {case: [] for case in CASES}
        shares: dict[tuple[str, str], list[float]] = {case: [] for case in CASES}
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

    def figure(self, rows: int, case: tuple[str, str], shares: Sequence[float], ratios: list[float]) -> Figure:
        rate, gradients = case
        return Figure(
            name=f"2 ranks, {rate[:-4]} Gb/s, {gradients}, {rows} rows a step",
            value=f"communication {statistics.median(shares):.1f} %",
            ratio=of_one(ratios),
            goal=">= 1.8x where arithmetic allows" if case == ("1gbit", "bf16") else "-",
        )

    def shape(self, rate: str) -> None:
        for machine, card in self.ends:
            limits = ("tbf", "rate", rate, "burst", BURST, "latency", "50ms")
            machine.run("tc", "qdisc", "replace", "dev", card, "root", *limits)

    def apart(self, rows: int, count: int) -> float:
        """Measure useful tokens per second of this many concurrent trainings of one rank."""
        trial = self.trial(rows, "fp32", 1)
        return sum(map(speed, self.ended([self.start(node, trial, {}) for node in range(count)])))

    def together(self, rows: int, rate: str, gradients: str, ranks: int = 2) -> TrainingRecord:
        """Run one training of several ranks over the link."""
        self.shape(rate)
        return self.ended(self.started(self.trial(rows, gradients, ranks)))[0]

    def started(self, trial: Trial) -> list[tuple[subprocess.Popen[str], Path]]:
        return [self.start(node, trial, self.meeting(node, trial)) for node in range(trial.world_size)]

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
        arguments: tuple[str, ...] = ("--trial", str(folder / "trial.json"), "--out", str(folder / "out"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **meeting}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        if trial.training is not None:
            arguments += ("--checkpoints", str(folder / "checkpoints"))
        argv = ("-m", "bench", "run", *arguments)
        return self.run_program(node, *argv, env=environment, **pipes), folder / "out"

    def run_program(self, node: int, *argv: str, env: dict[str, str], **pipes: Any) -> subprocess.Popen[str]:
        return self.servers[node].start(*argv, env=env, **pipes)

    def ended(self, started: Sequence[tuple[subprocess.Popen[str], Path]]) -> list[TrainingRecord]:
        """Wait for the trainings; return their records. Raises AssertionError with a failed rank's output."""
        self.wait(started)
        written = [out / "training.json" for _, out in started]
        return [TrainingRecord.read(path) for path in written if path.exists()]

    def wait(self, started: Sequence[tuple[subprocess.Popen[str], Path]]) -> None:
        for process, _ in started:
            output, _ = process.communicate(timeout=LIMIT_SEC)
            assert process.returncode == 0, output

    def meeting(self, node: int, trial: Trial) -> dict[str, str]:
        return {
            NODE_COUNT: str(trial.world_size),
            NODE_RANK: str(node),
            NODE_ADDRESS: self.address,
            NODE_PORT: "29400",
            NODE_TOKEN: "word",
            "GLOO_SOCKET_IFNAME": self.card(node),
        }

    def card(self, node: int) -> str:
        return self.ends[node][1]


class GpuRuns(Runs):
    """The same on GPUs: ranks on this host, and in namespaces around a router."""

    targets = "attention"

    def direct(self, rows: int, gradients: str, ranks: int) -> TrainingRecord:
        gpus = ",".join(map(str, range(ranks)))
        return self.ended([self.start(-1, self.trial(rows, gradients, ranks), {"CUDA_VISIBLE_DEVICES": gpus})])[0]

    def card(self, node: int) -> str:
        return self.ends[2 * node][1]

    def trial(self, rows: int, gradients: str, ranks: int) -> Trial:
        data = str(self.inputs[1])
        files = TrainingData(files=[data], weights=[1.0], max_seq_len=GPU_ROW_TOKENS, validation_share=0.0)
        training = Training(
            data=files, rows_per_step=rows, gradients=gradients, max_steps=self.steps, epochs=1000.0, evaluate_every=0,
            checkpoint_sec=3600.0,
        )  # fmt: skip
        return self.gpu_trial(kind="finetune", world_size=ranks, training=training)

    def distributed(self, rows: int, rate: str, ranks: int) -> Figure:
        """Run a `distributed` trial of several ranks over the link, with these rows on each."""
        self.shape(rate)
        trial = self.gpu_trial(
            kind="distributed", world_size=ranks, gradient_accumulation_steps=rows, layout="pack",
            warmup_steps=WARM_STEPS, measured_steps=self.steps,
        )  # fmt: skip
        started = self.started(trial)
        self.wait(started)
        _, out = started[0]
        measurements = {each.name: each for each in TrialResult.read(out / "result.json").measurements}
        return Figure(
            name=f"distributed trial of {ranks}, {rate}, {self.targets}, fp32, {rows} rows each",
            value=spread(measurements["global_tokens_per_sec"].interval, "tokens/s"),
        )

    def gpu_trial(self, **fields: Any) -> Trial:
        model, data = map(str, self.inputs)
        return a_trial(
            "link", model, data=data, recipe="fast", max_seq_len=GPU_ROW_TOKENS, micro_batch_size=1, lora_dropout=0.0,
            lora_targets=TARGETS[self.targets], optimizer="adamw_torch", held_layers=GPU_HELD_LAYERS,
            gradient_checkpointing=False, **fields,
        )  # fmt: skip

    def run_program(self, node: int, *argv: str, env: dict[str, str], **pipes: Any) -> subprocess.Popen[str]:
        if node < 0:
            return subprocess.Popen((sys.executable, *argv), env=env, cwd=ROOT, **pipes)
        environment = {**env, **SOCKETS_ONLY, "CUDA_VISIBLE_DEVICES": str(node)}
        environment["NCCL_SOCKET_IFNAME"] = environment["GLOO_SOCKET_IFNAME"]
        return self.ends[2 * node][0].start(sys.executable, *argv, env=environment, cwd=ROOT, **pipes)


def of_one(ratios: list[float]) -> str:
    return spread(summarize(ratios), "x of one rank")


def communication(record: TrainingRecord) -> float:
    """Return the percentage of a step."""
    assert record.communication_measured_percent is not None
    return record.communication_measured_percent


def speed(record: TrainingRecord) -> float:
    """Return the useful tokens per second of the median step."""
    return statistics.median(speeds(record))


def speeds(record: TrainingRecord) -> list[float]:
    pairs = list(zip(record.steps.tokens, record.steps.step_time_sec, strict=True))[WARM_STEPS:]
    return [tokens / seconds for tokens, seconds in pairs]


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
