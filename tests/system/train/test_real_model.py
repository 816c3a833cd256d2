"""Fault tolerance with real weights: SmolLM2-135M-Instruct over four ranks, killed ten times, ends with the same
adapter, bit by bit, as an undisturbed training.

    THOROUGH=1 REAL_MODEL=models/HuggingFaceTB--SmolLM2-135M-Instruct pytest tests/system/train/test_real_model.py

takes an hour on two cores. REAL_MODEL is a folder that `inv model.demo --real` made; without it the model is made here.
QUIET is the run folder of an earlier undisturbed training; KILLS_SEED=2 draws other times, KILLS=4 fewer. Everything is
real. Not covered: pods (tests/system/cluster/test_deploy_training.py).
"""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.records.status import ExitCode
from bench.records.training import TrainingRecord
from tests.support.hosts.rank_pids import descendant_pids
from tests.support.paths import ROOT
from tests.support.thorough import only_thorough
from tests.system.conftest import Project, project_copy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400), only_thorough]
RANKS, STEPS, KILLS = 4, 12, int(os.environ.get("KILLS", "10"))
WAIT_TIMEOUT_SEC = 1800.0  # long, because the machine may be busy with other work
SETTINGS = {
    "max_seq_len": 96, "micro_batch_size": 1, "rows_per_step": RANKS, "max_steps": STEPS, "validation_fraction": 0.05,
    "learning_rate": 0.002, "gradient_checkpointing": False, "checkpoint_sec": 10.0, "max_restarts": 2 * KILLS,
}  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model's folder and the file of orders to train on."""
    folder = tmp_path_factory.mktemp("real")
    model, data = Path(os.environ.get("REAL_MODEL", folder / "smollm2")).resolve(), folder / "orders.jsonl"
    argv = (sys.executable, "-m", "bench", "demo", "--real", "--model", str(model), "--data", str(data))
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode != 0:
        pytest.skip(f"the real model cannot be made here: {done.stderr.strip().splitlines()[-1]}")
    return model, data


@pytest.fixture(scope="module")
def make_project(real: tuple[Path, Path], inv_server: Any, tmp_path_factory: Any) -> Iterator[Callable[[], Project]]:
    with contextlib.ExitStack() as stack:

        def make() -> Project:
            project = stack.enter_context(project_copy(tmp_path_factory.mktemp("project"), inv_server))
            inputs = {"INVOKE_MODEL_PATH": str(real[0]), "INVOKE_DATA_PATH": str(real[1])}
            project.environment |= inputs | {"INVOKE_FLEET_SIZE": str(RANKS)}
            (project.folder / "real.json").write_text(json.dumps({"train": SETTINGS}))
            project.options = ("-f", "real.json")
            return project

        yield make


@pytest.fixture(scope="module")
def quiet(make_project: Callable[[], Project]) -> TrainingRecord:
    """The undisturbed training on local workers."""
    if "QUIET" in os.environ:
        return TrainingRecord.read(Path(os.environ["QUIET"]) / "training.json")
    project, began = make_project(), time.monotonic()
    out, err = project.start("train").communicate(timeout=WAIT_TIMEOUT_SEC)
    record = TrainingRecord.read(project.run_folder() / "training.json")
    assert (record.stop, record.steps.step, record.restarts) == ("finished", list(range(1, STEPS + 1)), []), out + err
    print(f"quiet, in {time.monotonic() - began:.0f} s: adapter {record.adapter_sha256}")
    return record


class KilledTraining:
    """A running training, and the ways to kill it. Each way returns after the kill."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.operator = project.start("train")
        self.kills = {
            "SIGKILL of a rank": lambda: os.kill(random.choice(self.ranks()), signal.SIGKILL),
            "SIGKILL of all ranks": lambda: [os.kill(pid, signal.SIGKILL) for pid in self.ranks()],
            "SIGKILL of the trial": lambda: os.kill(self.trial(), signal.SIGKILL),
            "SIGKILL of the job": self.kill_job,
            "SIGKILL of the operator": self.kill_operator,
            "SIGTERM": lambda: os.kill(self.trial(), signal.SIGTERM),
        }

    @property
    def step(self) -> int:
        paths = self.project.folder.glob(".workers/worker-0/runs/*/checkpoints/step-*")
        return max((int(path.name.partition("-")[2]) for path in paths), default=0)

    def trial(self) -> int:
        return min(pid for pid, argv in self.project.trainers().items() if "supervisor" not in " ".join(argv))

    def ranks(self) -> list[int]:
        return [pid for trainer in self.project.trainers() for pid in descendant_pids(trainer) if is_rank(pid)]

    def wait_until(self, holds: Callable[[], object], label: str) -> None:
        deadline = time.monotonic() + WAIT_TIMEOUT_SEC
        while not holds():
            assert self.operator.poll() is None, self.operator.communicate()
            assert time.monotonic() < deadline, f"{label}: waited {WAIT_TIMEOUT_SEC:g} s"
            time.sleep(0.2)

    def kill_operator(self) -> None:
        self.project.kill(self.operator)
        self.operator = self.project.start("train", "--resume")

    def kill_job(self) -> None:
        """Kill the engine, whose attempt dies with it; its operator ends, and the next one submits it again."""
        os.kill(parent_of(self.trial()), signal.SIGKILL)
        self.operator.communicate(timeout=WAIT_TIMEOUT_SEC)
        assert self.operator.returncode == ExitCode.RETRYABLE
        self.operator = self.project.start("train", "--resume")

    def kill_many_times(self, rng: random.Random) -> None:
        """Kill it in each way, in a random order and at random times."""
        kills = list(self.kills.items())
        rng.shuffle(kills)
        kills = list(itertools.islice(itertools.cycle(kills), KILLS))
        for (name, kill), step in zip(kills, sorted(rng.choices(range(STEPS - 2), k=KILLS)), strict=True):
            self.wait_until(lambda step=step: self.step >= step and len(self.ranks()) == RANKS, f"step {step}")
            time.sleep(rng.uniform(0.0, 20.0))
            before, checkpoint = self.ranks(), self.step
            kill()
            print(f"{name} after checkpoint {checkpoint}")
            if kill != self.kill_operator:
                self.wait_until(lambda before=before: not set(before) <= set(self.ranks()), f"the effect of {name}")


def is_rank(pid: int) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"bench.workloads.finetune.rank" in argv


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_killed_ten_times_it_ends_with_the_quiet_adapter(make_project: Any, quiet: TrainingRecord) -> None:
    training = KilledTraining(make_project())
    training.kill_many_times(random.Random(int(os.environ.get("KILLS_SEED", "1"))))
    training.project.wait_for_exit(training.operator, timeout_sec=2 * WAIT_TIMEOUT_SEC)
    assert {event["end"] for event in training.project.events("ended")[:-1]} <= {"LOST"}
    assert training.project.events("ended")[-1]["end"] == "SUCCEEDED"
    record = TrainingRecord.read(training.project.run_folder() / "training.json")
    print(record.restarts)
    assert record.steps.step == list(range(1, STEPS + 1)), "every step counts once"
    assert record.steps.loss == quiet.steps.loss
    assert record.adapter_sha256 == quiet.adapter_sha256
