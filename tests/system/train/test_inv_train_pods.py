"""A training over pods, one rank per pod, when pods, nodes and operators disappear.

Real kubectl, the tests' own cluster. The last test trains the tiny model with real ranks; in the others steps compute
nothing (tests/support/hosts/fake_worker_finetune.py), and the adapter is the sum of the step numbers, so a repeated or
missing step is visible. Not covered: GPUs, a network between pods other than this machine's own.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.records.training import TrainingRecord
from tests.support import inv_pods
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.hosts.local_fleet import wait_for_line
from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.pods import EVICTION_SCALE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS, STEPS = 2, 60


workspace, cluster = inv_pods.fixtures(PODS, install_fake_finetune, grace_sec=30, toleration_scale=EVICTION_SCALE)


class Training:
    """A project whose fleet is the cluster's two pods."""

    def __init__(self, project: Any, cluster: Cluster, workspace: Path, label: str) -> None:
        self.project, self.cluster, self.label = project, cluster, label
        self.hold = install_fake_finetune(workspace)
        self.settings: dict[str, Any] = inv_pods.settings_of(cluster, workspace, label)
        self.settings["fleet"] |= {"size": PODS, "lost_after_sec": 21.0}  # 15 s of these are for the last attempt
        self.settings["train"] = {"max_steps": STEPS, "max_seq_len": 256}
        del project.environment["INVOKE_FLEET_SIZE"]
        project.options = ("-f", "pods.yaml")
        self.update_settings()

    def update_settings(self, **sections: dict[str, Any]) -> None:
        for name, more in sections.items():
            self.settings[name] |= more
        (self.project.folder / "pods.yaml").write_text(json.dumps(self.settings))

    @property
    def checkpoint(self) -> int:
        """Step of the newest checkpoint on the shared volume."""
        folder = self.cluster.claim_folder("shared") / self.label
        return max((int(path.name.removeprefix("step-")) for path in folder.glob("*/checkpoints/step-*")), default=0)

    def run_to(self, step: int) -> None:
        """Wait for a checkpoint of this step; then pause the training in its next step."""
        self.hold.unlink(missing_ok=True)
        self.project.wait_until(lambda: self.checkpoint >= step, f"checkpoint {step}")
        self.hold.touch()

    def node_of(self, worker: str) -> str:
        return str(self.cluster.pod(self.pod_of(worker))["spec"]["nodeName"])

    def pod_of(self, worker: str) -> str:
        return inv_pods.pod_of(self.cluster, worker)

    def assert_succeeds(self, process: Any) -> str:
        out, err = self.project.wait_for_exit(process, timeout_sec=300)
        assert [event["end"] for event in self.project.events("ended")][-1] == "SUCCEEDED"
        assert "verified" in out
        adapter = self.project.run_folder() / "adapter" / "adapter_model.safetensors"
        steps = self.settings["train"]["max_steps"]
        assert adapter.read_text() == f"{steps * (steps + 1) // 2}\n"
        return str(out + err)


@pytest.fixture
def training(project: Any, cluster: Cluster, workspace: Path, request: pytest.FixtureRequest) -> Iterator[Training]:
    for node in cluster.objects("nodes"):
        cluster.faults.restore_node(node["metadata"]["name"])
    inv_pods.wait_for_pods(cluster, PODS)
    made = Training(project, cluster, workspace, f"t{abs(hash(request.node.name))}")
    yield made
    made.hold.unlink(missing_ok=True)


def test_every_step_counts_once_when_pods_a_node_and_operators_are_lost_in_turn(training: Training) -> None:
    project, faults = training.project, training.cluster.faults
    operator = project.start("train")
    training.run_to(5)
    assert "`inv monitor`" in project.inv_error("train", code=3, INVOKE_RESULTS_FOLDER="of another operator")

    faults.delete_pod(training.pod_of("worker-1"))  # as a drain does it, with time to write a checkpoint
    project.wait_until(lambda: len(project.events("started")) == 2, "a second attempt")
    training.run_to(10)
    faults.delete_pod(training.pod_of("worker-0"), grace=0)
    project.wait_until(lambda: len(project.events("started")) == 3, "a third attempt")
    training.run_to(15)
    faults.delete_pod(training.pod_of("worker-1"), grace=0)
    project.wait_until(lambda: len(project.events("started")) == 4, "a fourth attempt")
    training.run_to(20)
    project.kill(operator)

    node = training.node_of("worker-0")
    operator = project.start("train", "--resume")
    wait_for_line(operator, "reattached")
    faults.silence_node(node)
    assert "worker-0: worker lost" in operator.stdout.readline()
    faults.restore_node(node)
    training.hold.unlink()
    training.assert_succeeds(operator)
    assert len(project.events("started")) == 4, "a node that is silent for a while causes no restart"
    reasons = [event["reason"] for event in project.events("retried")]
    assert "one of its workers was told to stop" in reasons[0]
    assert "its job died with its worker" in reasons[1]
    assert "rank 1 is gone with its machine" in reasons[2]


def test_without_a_volume_checkpoints_come_home_and_are_sent_to_a_replaced_pod(training: Training) -> None:
    project = training.project
    training.settings["fleet"]["pods"]["shared"] = None
    training.update_settings()
    operator = project.start("train")

    def at_home() -> list[Path]:
        return list((project.run_folder() / "checkpoints").glob("step-*"))

    project.wait_until(at_home, "a checkpoint at home")
    training.hold.touch()
    training.cluster.faults.delete_pod(training.pod_of("worker-0"), grace=0)
    project.wait_until(lambda: len(project.events("started")) == 2, "a second attempt")
    project.kill(operator)
    operator = project.start("train", "--resume")
    wait_for_line(operator, "reattached")
    training.hold.unlink()
    training.assert_succeeds(operator)


def test_real_ranks_in_two_pods_train_one_adapter_that_is_collected(training: Training) -> None:
    """Train with real ranks. Killed ranks are covered by test_finetune_ranks.py, lost ones by the tests above."""
    project, steps = training.project, 4
    training.hold.unlink(missing_ok=True)
    real = {"max_steps": steps, "max_seq_len": 64, "micro_batch_size": 1, "rows_per_step": 2, "checkpoint_sec": 0.0}
    training.update_settings(fleet={"workspace": str(ROOT)}, train=real)
    assert "verified" in project.inv("train").stdout
    record = TrainingRecord.read(project.run_folder() / "training.json")
    assert (record.world_size, record.stop, record.steps.step) == (2, "finished", list(range(1, steps + 1)))
    assert (record.fingerprint["backend"], record.restarts) == ("gloo", [])
