"""A training that loses a rank, a pod or a node every so often, against the same one undisturbed.

    python -m tests.benchmarks.interruptions [--every 15,60] [--losses rank,pod,node] [--jobs 8] [--json FILE]

as root. Two pods run the program of `inv train --job`, one rank each, without an operator: attempts, ranks, checkpoints
and restarts are real, and so is each start of Python. A pod is a set of namespaces with processes, a host name and a
local disk of its own; this program replaces a lost one, as the Job's controller does. A schedule drawn from the seed
has a loss after each 0.75 to 1.25 of the interval, whatever the training does at that moment:

- rank: SIGKILL of a rank, or of the next one if none runs;
- pod: SIGKILL of all processes of a pod, and its disk is removed; a new pod starts after 2 s;
- node: the same, but a new pod starts after `--node-sec`. Kubernetes notices a lost node after 40 s, and the manifests
  evict its pods after 30 s more.

A model of a few megabytes trains for minutes, and a fine-tuning takes hours: the interval as a share of the undisturbed
time is the scale. Dollars are the held time at the list price of one A10 for each rank.

Not covered: GPUs; a network that is silent instead of closed (tests/faults/bench/test_finetune_network.py); nodes that
must be made first; loading a large model or an image.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import torch_stack
from bench.records import Trial, schema
from bench.records.paths import ORDER_VARIABLE, STEPS_FILE, TRAINING_FILE
from bench.records.run import PlannedTrial, TrainingJobEnd, TrainingJobSpec
from bench.records.status import TrialStatus
from bench.records.training import TrainingRecord
from bench.workloads.ranks.torchrun import descendant_pids
from tests.benchmarks import Figure, print_figures
from tests.support import tiny_training
from tests.support.machines.ports import free_ports
from tests.support.paths import ROOT

RANKS, TRIAL_ID, SERVICE = 2, "train", "service"
PRICED_SHAPE = "VM.GPU.A10.1"
CHECKPOINT_SEC, POD_SEC, POLL_SEC = 2.0, 2.0, 0.1
LOSSES = ("rank", "pod", "node")
# The first process of a pod reaps those whose parent has died. A new UTS namespace takes its host name from the pod.
# All die with this program.
ENTER = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
POD = 'mount --bind "$1" /etc/hosts && echo "$2" >/proc/sys/kernel/hostname && shift 2 && "$@"; exit $?'


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One training. `held_sec` is the time from the start of the first pods to the end of the last one.

    An interruption costs the time from a loss to the first step after the last one that was done before it;
    `restart_sec` has one entry for each. Losses that come before the training has caught up count as one interruption.
    """

    loss: str
    every_sec: float | None
    status: str
    held_sec: float
    steps: int
    losses: int
    attempts: int
    repeated_steps: int
    steps_sec: float
    adapter_sha256: str | None
    restart_sec: list[float]

    @property
    def usd(self) -> float:
        """Price of the held time on one A10 for each rank, in US dollars."""
        prices = yaml.safe_load((ROOT / "reports" / "prices.yaml").read_text())
        return self.held_sec / 3600.0 * RANKS * float(prices["shapes"][PRICED_SHAPE]["on_demand"]["amount"])

    @property
    def goodput(self) -> float:
        """Share of the held time that became steps that count."""
        return self.steps_sec / self.held_sec

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "usd": self.usd, "goodput": self.goodput}


class Pod:
    """One pod and its local disk."""

    def __init__(self, folder: Path, rank: int, order: TrainingJobSpec) -> None:
        self.folder, self.rank, self.order = folder, rank, order
        self.starts_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a new pod with an empty disk."""
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        hosts = self.folder / "hosts"
        hosts.write_text(f"127.0.0.1 localhost train-0.{SERVICE} train-{self.rank}\n")
        argv = (sys.executable, "-m", "bench", "train", "--rank", str(self.rank), "--service", SERVICE)
        environment = {
            **os.environ,
            ORDER_VARIABLE: json.dumps(schema.to_json(self.order)),
            "TMPDIR": str(self.folder / "tmp"),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        with self.folder.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                (*ENTER, "sh", "-c", POD, "sh", str(hosts), f"train-{self.rank}", *argv),
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, replaced_after_sec: float) -> None:
        """Kill all processes, remove the disk, and set the time of the replacement."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process, self.starts_at = None, time.monotonic() + replaced_after_sec
        shutil.rmtree(self.folder, ignore_errors=True)

    def rank_pid(self) -> int | None:
        """Return the pid of its rank; None if none runs."""
        for pid in [] if self.process is None else descendant_pids(self.process.pid):
            with contextlib.suppress(OSError):
                argv = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"bench.workloads.finetune.rank" in argv and b"torchrun" not in argv:
                    return pid
        return None

    def reconcile(self) -> bool:
        """Start the pod if it is due; one that failed is replaced. Return whether it has completed."""
        if self.process is None:
            if time.monotonic() >= self.starts_at:
                self.start()
            return False
        code = self.process.poll()
        if code not in (None, 0):
            self.kill(POD_SEC)
        return code == 0


class JobTraining:
    """A training over two pods with losses at the moments of a schedule."""

    def __init__(
        self, folder: Path, trial: Trial, kind: str, every_sec: float | None, seed: int, node_sec: float
    ) -> None:
        self.folder, self.kind, self.every_sec, self.node_sec = folder, kind, every_sec, node_sec
        self.schedule = random.Random(f"{seed}-{kind}-{every_sec}")
        order = TrainingJobSpec(
            run_id="run", planned=PlannedTrial(trial_id=TRIAL_ID, trial=trial), shared=str(folder / "shared"), turn=1,
            after=0, max_restarts=1000, port=free_ports(2), token="t",
        )  # fmt: skip
        self.pods = [Pod(folder / f"pod-{rank}", rank, order) for rank in range(RANKS)]
        self.run_folder = folder / "shared" / order.run_id
        self.losses, self.step_before = 0, 0
        self.lost_at: float | None = None
        self.restart_sec: list[float] = []

    def run(self, limit_sec: float) -> Outcome:
        """Train until all pods have completed or the limit of time is reached."""
        began = time.monotonic()
        due = began + self.interval()
        try:
            while time.monotonic() < began + limit_sec:
                completed = [pod.reconcile() for pod in self.pods]
                if all(completed):
                    break
                self.observe()
                if time.monotonic() >= due and self.lose():
                    due += self.interval()
                time.sleep(POLL_SEC)
        finally:
            held_sec = time.monotonic() - began
            for pod in self.pods:
                pod.kill(0.0)
        return self.outcome(held_sec)

    def interval(self) -> float:
        return float("inf") if self.every_sec is None else self.every_sec * self.schedule.uniform(0.75, 1.25)

    def lose(self) -> bool:
        """Cause a loss; return False if nothing runs that could be lost. The loss is then tried again."""
        pod = self.schedule.choice(self.pods)
        if self.kind == "rank":
            pid = pod.rank_pid()
            if pid is None:
                return False
            os.kill(pid, signal.SIGKILL)
        elif pod.process is None or pod.process.poll() is not None:
            return False
        else:
            pod.kill(POD_SEC if self.kind == "pod" else self.node_sec)
        self.losses += 1
        if self.lost_at is None:
            self.lost_at, self.step_before = time.monotonic(), self.step()
        return True

    def observe(self) -> None:
        """Note when a training has done its first new step after a loss."""
        if self.lost_at is not None and self.step() > self.step_before:
            self.restart_sec.append(round(time.monotonic() - self.lost_at, 2))
            self.lost_at = None

    def step(self) -> int:
        """Return the last step of the newest attempt."""
        steps = 0
        for number in self.attempts()[-1:]:
            with contextlib.suppress(OSError, ValueError):  # a line that is being written
                lines = (self.run_folder / f"{TRIAL_ID}.{number}" / STEPS_FILE).read_text().splitlines()
                steps = max((json.loads(line).get("step", 0) for line in lines[-2:]), default=0)
        return steps

    def attempts(self) -> list[int]:
        return sorted(int(path.name.partition(".")[2]) for path in self.run_folder.glob(f"{TRIAL_ID}.*"))

    def outcome(self, held_sec: float) -> Outcome:
        end, attempts = TrainingJobEnd.read_or_none(self.run_folder, 1), self.attempts()
        record = None
        if end is not None and end.end is TrialStatus.SUCCEEDED:
            record = TrainingRecord.read(self.run_folder / f"{TRIAL_ID}.{end.attempt}" / TRAINING_FILE)
        return Outcome(
            loss=self.kind,
            every_sec=self.every_sec,
            status="not ended" if end is None else end.end.value,
            held_sec=held_sec,
            steps=self.step() if record is None else record.steps_done,
            losses=self.losses,
            attempts=len(attempts),
            repeated_steps=0 if record is None else sum(restart.lost_steps for restart in record.restarts),
            steps_sec=0.0 if record is None else sum(record.steps.step_time_sec),
            adapter_sha256=None if record is None else record.adapter_sha256,
            restart_sec=self.restart_sec,
        )


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.interruptions")
    parser.add_argument("--every", default="15,60", help="seconds between two losses, one training each")
    parser.add_argument("--losses", default=",".join(LOSSES), help='"" for only the undisturbed training')
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--node-sec", type=float, default=10.0, help="until a lost node's pod is replaced")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once; each needs two cores")
    parser.add_argument("--max-sec", type=float, default=900.0, help="limit of one training")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="every training, written after each one")
    arguments = parser.parse_args(argv)
    subprocess.run((*ENTER, "true"), check=True)  # fails at once where namespaces cannot be made
    intervals, losses = arguments.every.split(","), [kind for kind in arguments.losses.split(",") if kind]
    cases = [("none", None), *((kind, float(every)) for every in intervals for kind in losses)]
    outcomes: dict[int, Outcome] = {}
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        trial = make_trial(Path(folder), arguments.steps)

        def measure(number: int) -> None:
            kind, every_sec = cases[number]
            here = Path(folder, str(number))
            (here / "shared").mkdir(parents=True)
            training = JobTraining(here, trial, kind, every_sec, arguments.seed, arguments.node_sec)
            outcome = training.run(arguments.max_sec)
            with lock:
                outcomes[number] = outcome
                print(json.dumps(outcome.to_json()), file=sys.stderr, flush=True)
                if arguments.json is not None:
                    trainings = [outcomes[each].to_json() for each in sorted(outcomes)]
                    options = {name: str(value) for name, value in vars(arguments).items()}
                    document = {"cores": os.cpu_count(), "options": options, "trainings": trainings}
                    arguments.json.write_text(json.dumps(document, indent=1))

        with ThreadPoolExecutor(arguments.jobs) as pool:
            list(pool.map(measure, range(len(cases))))
    return [figure(outcomes[number], outcomes[0]) for number in range(len(cases))]


def make_trial(folder: Path, steps: int) -> Trial:
    """Make model and data, and the trial of a training over both pods."""
    model = tiny_training.make_folder(torch_stack.load(), folder / "models" / "tiny--wide", layers=4, width=256)
    data = tiny_training.make_data(folder / "chats.jsonl", lines=2000)
    training = {
        "rows_per_step": 8, "max_steps": steps, "epochs": 1000.0, "evaluate_every": 0,
        "checkpoint_sec": CHECKPOINT_SEC,
    }  # fmt: skip
    return tiny_training.plan(model, data, world_size=RANKS, learning_rate=0.0005, training=training)


def figure(outcome: Outcome, undisturbed: Outcome) -> Figure:
    name = "undisturbed"
    if outcome.every_sec is not None:
        share = outcome.every_sec / undisturbed.held_sec
        name = f"a {outcome.loss} lost every {outcome.every_sec:g} s ({share:.2f} of its time)"
    restart = f"{statistics.median(outcome.restart_sec):.1f} s each" if outcome.restart_sec else "-"
    has_succeeded = outcome.status == TrialStatus.SUCCEEDED.value
    goodput = f"{outcome.goodput * 100:.0f} %" if has_succeeded else "-"
    same = "same adapter" if outcome.adapter_sha256 == undisturbed.adapter_sha256 else "ANOTHER ADAPTER"
    return Figure(
        name=name,
        value=f"{outcome.held_sec:.0f} s, ${outcome.usd:.3f}, {outcome.losses} lost ({restart}), "
        f"{outcome.repeated_steps} of {outcome.steps} steps repeated, goodput {goodput}",
        ratio=f"{outcome.held_sec / undisturbed.held_sec:.2f} x",
        goal=same if has_succeeded else outcome.status,
    )


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
