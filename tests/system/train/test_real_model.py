"""Fault tolerance with real weights: SmolLM2-135M-Instruct over four ranks, killed ten times, ends with the same
adapter, bit by bit, as an undisturbed training; on local workers and over pods.

    THOROUGH=1 REAL_MODEL=models/HuggingFaceTB--SmolLM2-135M-Instruct pytest tests/system/train/test_real_model.py

takes an hour on two cores. REAL_MODEL is a folder that `inv model.demo --real` made; without it the model is made here.
QUIET is the run folder of an earlier undisturbed training; KILLS_SEED=2 draws other times, KILLS=4 fewer. Everything is
real except the cluster, which is the tests' own.
"""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.records.training import TrainingRecord
from bench.workloads.ranks.torchrun import descendant_pids
from tests.support import inv_pods
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.pods import job, volume
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
def projects(real: tuple[Path, Path], inv_server: Any, tmp_path_factory: Any) -> Iterator[Callable[[], Project]]:
    opened = []

    def make() -> Project:
        opened.append(project_copy(tmp_path_factory.mktemp("project"), inv_server))
        project = opened[-1].__enter__()
        inputs = {"INVOKE_MODEL_PATH": str(real[0]), "INVOKE_DATA_PATH": str(real[1])}
        project.environment |= inputs | {"INVOKE_FLEET_SIZE": str(RANKS)}
        write_settings(project, {"train": SETTINGS})
        return project

    yield make
    for manager in opened:
        manager.__exit__(None, None, None)


def write_settings(project: Project, settings: dict[str, Any]) -> None:
    (project.folder / "real.json").write_text(json.dumps(settings))
    project.options = ("-f", "real.json")


@pytest.fixture(scope="module")
def quiet(projects: Callable[[], Project]) -> TrainingRecord:
    """The undisturbed training on local workers."""
    if "QUIET" in os.environ:
        return TrainingRecord.read(Path(os.environ["QUIET"]) / "training.json")
    project, began = projects(), time.monotonic()
    out, err = project.start("train").communicate(timeout=WAIT_TIMEOUT_SEC)
    record = TrainingRecord.read(project.run_folder() / "training.json")
    assert (record.stop, record.steps.step, record.restarts) == ("finished", list(range(1, STEPS + 1)), []), out + err
    log(f"quiet, in {time.monotonic() - began:.0f} s: adapter {record.adapter_sha256}")
    return record


def log(text: str) -> None:
    print(text, flush=True)


class KilledTraining(ABC):
    """A running training, and the ways to kill it. Each way returns after the kill."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.operator = project.start("train")

    @property
    @abstractmethod
    def checkpoints(self) -> Path:
        """Folder of its checkpoints."""

    @abstractmethod
    def ranks(self) -> list[int]:
        """Return the process ids of its ranks."""

    @property
    @abstractmethod
    def kills(self) -> dict[str, Callable[[], None]]:
        """Ways to kill it, by name."""

    @property
    def step(self) -> int:
        return max((int(path.name.partition("-")[2]) for path in self.checkpoints.glob("step-*")), default=0)

    def wait_until(self, holds: Callable[[], object], label: str) -> None:
        deadline = time.monotonic() + WAIT_TIMEOUT_SEC
        while not holds():
            assert self.operator.poll() is None, self.operator.communicate()
            assert time.monotonic() < deadline, f"{label}: waited {WAIT_TIMEOUT_SEC:g} s"
            time.sleep(0.2)

    def kill_all_ranks(self) -> None:
        for pid in self.ranks():
            os.kill(pid, signal.SIGKILL)

    def kill_one_rank(self) -> None:
        os.kill(random.choice(self.ranks()), signal.SIGKILL)

    def kill_operator(self) -> None:
        self.project.kill(self.operator)
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
            log(f"{name} after checkpoint {checkpoint}")
            if kill != self.kill_operator:
                self.wait_until(lambda before=before: not set(before) <= set(self.ranks()), f"the effect of {name}")

    def wait_for_record(self) -> TrainingRecord:
        self.project.wait_for_exit(self.operator, timeout_sec=2 * WAIT_TIMEOUT_SEC)
        assert [event["end"] for event in self.project.events("ended")] == ["SUCCEEDED"]
        return TrainingRecord.read(self.project.run_folder() / "training.json")


class LocalTraining(KilledTraining):
    @property
    def checkpoints(self) -> Path:
        folders = list(self.project.folder.glob(".workers/worker-0/runs/*/checkpoints"))
        return folders[0] if folders else self.project.folder / "none yet"

    def trial(self) -> int:
        return min(pid for pid, argv in self.project.trainers().items() if "supervisor" not in " ".join(argv))

    def ranks(self) -> list[int]:
        return [pid for trainer in self.project.trainers() for pid in descendant_pids(trainer) if is_rank(pid)]

    @property
    def kills(self) -> dict[str, Callable[[], None]]:
        return {
            "SIGKILL of a rank": self.kill_one_rank,
            "SIGKILL of all ranks": self.kill_all_ranks,
            "SIGKILL of the trial": lambda: os.kill(self.trial(), signal.SIGKILL),
            "SIGKILL of the supervisor": self.kill_supervisor,
            "SIGKILL of the operator": self.kill_operator,
            "SIGTERM": lambda: os.kill(self.trial(), signal.SIGTERM),
        }

    def kill_supervisor(self) -> None:
        os.kill(parent_of(self.trial()), signal.SIGKILL)


class PodTraining(KilledTraining):
    def __init__(self, project: Project, cluster: Cluster, label: str) -> None:
        self.cluster, self.label = cluster, label
        super().__init__(project)

    @property
    def checkpoints(self) -> Path:
        folders = list((self.cluster.claim_folder("shared") / self.label).glob("*/checkpoints"))
        return folders[0] if folders else Path("none yet")

    def ranks(self) -> list[int]:
        pods = inv_pods.live_pods(self.cluster)
        return [pid for pod in pods for pid in self.cluster.processes(pod) if is_rank(int(pid))]

    def delete_pod(self, worker: str, grace: int | None) -> None:
        inv_pods.wait_for_pods(self.cluster, RANKS)
        self.cluster.faults.delete_pod(inv_pods.pod_of(self.cluster, worker), grace=grace)

    @property
    def kills(self) -> dict[str, Callable[[], None]]:
        return {
            "SIGKILL of a rank": self.kill_one_rank,
            "SIGKILL of all ranks": self.kill_all_ranks,
            "the leader's pod deleted": lambda: self.delete_pod("worker-0", 0),
            "another pod deleted": lambda: self.delete_pod("worker-2", 0),
            "the leader's pod drained": lambda: self.delete_pod("worker-0", None),
            "another pod drained": lambda: self.delete_pod("worker-1", None),
            "SIGKILL of the operator": self.kill_operator,
        }


def is_rank(pid: int) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"bench.workloads.finetune.rank" in argv and b"bench.workloads.ranks.torchrun" not in argv


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def assert_same_training(record: TrainingRecord, quiet: TrainingRecord) -> None:
    """Check that every step counts once, and that the adapter equals that of the undisturbed training."""
    for restart in record.restarts:
        log(f"attempt {restart.attempt} from step {restart.from_step}, {restart.lost_steps} repeated: {restart.reason}")
    log(f"killed {KILLS} times, {len(record.restarts)} restarts: adapter {record.adapter_sha256}")
    assert record.steps.step == list(range(1, STEPS + 1))
    assert record.steps.loss == quiet.steps.loss
    assert record.adapter_sha256 == quiet.adapter_sha256


def make_rng() -> random.Random:
    return random.Random(int(os.environ.get("KILLS_SEED", "1")))


def test_killed_ten_times_on_local_workers_it_ends_with_the_quiet_adapter(projects, quiet: TrainingRecord) -> None:
    training = LocalTraining(projects())
    training.kill_many_times(make_rng())
    assert_same_training(training.wait_for_record(), quiet)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """The program of the pods: a copy of bench/, so that edits during the test do not matter."""
    shutil.copytree(ROOT / "bench", tmp_path / "workspace" / "bench")
    return tmp_path / "workspace"


@pytest.fixture
def cluster(real: tuple[Path, Path], workspace: Path) -> Iterator[Cluster]:
    seen = [real[0], real[1].parent, workspace]
    with Cluster(nodes=RANKS, image_paths=seen, image_environment=inv_pods.LOOPBACK) as cluster:
        cluster.apply(*volume(), job(RANKS, grace_sec=30))
        inv_pods.wait_for_pods(cluster, RANKS)
        yield cluster


def test_killed_ten_times_over_pods_it_ends_with_the_quiet_adapter(
    projects: Callable[[], Project], quiet: TrainingRecord, cluster: Cluster, workspace: Path
) -> None:
    project = projects()
    settings = inv_pods.settings_of(cluster, workspace, "real")
    settings["fleet"]["size"] = RANKS
    write_settings(project, {**settings, "train": SETTINGS})
    training = PodTraining(project, cluster, "real")
    training.kill_many_times(make_rng())
    assert_same_training(training.wait_for_record(), quiet)
