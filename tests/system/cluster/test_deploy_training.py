"""Tests of `inv train --job`: a training that Kubernetes runs without the operator, until its adapter is collected.

Real kubectl, the tests' own cluster with a hosts file for its DNS, the pods' command; steps compute nothing
(tests/support/hosts/fake_worker_finetune.py), and the adapter is the sum of the numbers of its steps. Not covered: the
controllers of JobSet and Kueue, GPUs, real ranks (tests/system/train/test_inv_train_pods.py has them).
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkServer
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.inv_pods import make_workspace
from tests.support.kubernetes import Cluster
from tests.system.cluster.conftest import PASSWORD, Operator, make_operator

# On a busy machine its waits take longer than those of any other test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VOLUME = {"handle": "ocid1.filesystem:10.0.0.1:/export"}
PODS, STEPS = 2, 40
WAIT_SEC = 200.0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the content of the image: bench/, whose fine-tunings compute nothing."""
    return make_workspace(tmp_path_factory)


@pytest.fixture(scope="module")
def training_cluster(tiny_model: Path, tiny_data: Path, workspace: Path) -> Iterator[Cluster]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    image = {"PATH": path, "PYTHONPATH": str(workspace)}
    folders = (tiny_model.parent, tiny_data.parent, workspace)
    with Cluster(nodes=PODS, image_paths=folders, image_environment=image) as cluster:
        cluster.patience_sec = WAIT_SEC
        yield cluster


@pytest.fixture
def trainer(
    training_cluster: Cluster,
    tiny_model: Path,
    tiny_data: Path,
    workspace: Path,
    tmp_path: Path,
    inv_server: ForkServer,
) -> Iterator[Operator]:
    """Provide an operator whose trainings pause in their next step while the file `hold` exists."""
    operator = make_operator(training_cluster, tmp_path, inv_server)
    operator.settings |= {
        "model": {"path": str(tiny_model)},
        "data": {"path": str(tiny_data)},
        "train": {"max_steps": STEPS, "max_seq_len": 256},
    }
    hold = install_fake_finetune(workspace)
    yield operator
    hold.unlink(missing_ok=True)
    with contextlib.suppress(AssertionError):
        operator.inv("teardown", "--yes", "--discard-results")


class Volume:
    """Run folder on the shared volume."""

    def __init__(self, operator: Operator, run_id: str, hold: Path) -> None:
        self.operator, self.hold = operator, hold
        self.folder = operator.cluster.claim_folder("shared", operator.namespace) / run_id

    def continue_until(self, step: int) -> None:
        """Let the training run until the checkpoint of this step, then pause it in its next step."""
        self.hold.unlink(missing_ok=True)
        name = f"step-{step:08}"
        has_checkpoint = lambda: any(path.name >= name for path in self.folder.glob("checkpoints/step-*"))  # noqa: E731
        self.operator.cluster.wait_until(has_checkpoint, name)
        self.hold.touch()

    def wait_for_attempt(self, number: int) -> None:
        folder = self.folder / f"train.{number}"
        self.operator.cluster.wait_until(folder.exists, f"attempt {number}")


def running_pod(operator: Operator, index: int) -> str:
    """Return the running pod of this index."""

    def names() -> list[str]:
        return [
            candidate["metadata"]["name"]
            for candidate in operator.objects("pods")
            if candidate["metadata"]["name"].startswith(f"train-{index}-")
            and not candidate["metadata"].get("deletionTimestamp")
            and candidate.get("status", {}).get("phase") == "Running"
        ]

    operator.cluster.wait_until(names, f"pod {index}")
    return names()[0]


def conditions(operator: Operator) -> dict[str, str]:
    (job,) = operator.objects("jobs.batch")
    return {condition["type"]: condition["status"] for condition in job.get("status", {}).get("conditions", [])}


def events(operator: Operator, kind: str) -> list[dict[str, Any]]:
    lines = (operator.results / "latest" / "ledger.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_an_impossible_training_is_refused_before_any_change(trainer: Operator) -> None:
    trainer.set_cluster(overlay="job-4gpu", volume=VOLUME)
    assert "`inv train --job`" in trainer.inv("deploy", code=2)
    output = trainer.inv("train", "--job", "--dry-run", stdin=f"{PASSWORD}\n")
    assert "hours and dollars are unknown" in output
    assert "create     job/train" in output
    assert "dry run: nothing was changed" in output
    trainer.set_cluster(volume={"handle": None})
    assert "cluster.volume.handle is null" in trainer.inv("train", "--job", code=2)
    trainer.settings["fleet"]["kind"] = "local"
    assert "fleet.kind is local" in trainer.inv("train", "--job", code=2)
    assert trainer.objects("jobs.batch") == []
    assert list(trainer.results.glob("*-train*")) == []


def test_a_training_without_an_operator_survives_lost_pods_is_cancelled_resumed_and_collected(
    trainer: Operator, workspace: Path, tmp_path: Path
) -> None:
    faults, hold = trainer.cluster.faults, install_fake_finetune(workspace)
    trainer.set_cluster(volume=VOLUME)
    sent = tmp_path / "sent"
    trainer.settings["notify"] = {"command": ["sh", "-c", 'cat >> "$1"', "sh", str(sent)]}
    output = trainer.inv("train", "--job", stdin=f"{PASSWORD}\n")
    run_id = (trainer.results / "latest").resolve().name
    assert f"`inv cancel --run={run_id}`" in output
    volume = Volume(trainer, run_id, hold)

    volume.continue_until(5)
    faults.delete_pod(running_pod(trainer, 1), trainer.namespace)  # a drain has time for a checkpoint
    volume.wait_for_attempt(2)
    volume.continue_until(10)
    output = trainer.inv("monitor", "--once", f"--run={run_id}")
    assert f"{run_id}: train " in output
    assert "1 restart" in output
    faults.delete_pod(running_pod(trainer, 0), trainer.namespace, grace=0)
    volume.wait_for_attempt(3)
    volume.continue_until(15)
    assert "still training" in trainer.inv("teardown", "--yes", code=4)
    assert f"`inv monitor --run={run_id}`" in trainer.inv("train", "--job", f"--resume={run_id}", code=3)

    assert "cancelled" in trainer.inv("cancel", f"--run={run_id}")
    assert trainer.objects("jobs.batch") == []
    output = trainer.inv("collect", f"--run={run_id}")  # no Job is left whose pod could be copied
    assert "pod reader" in output
    assert trainer.objects("jobs.batch") == []
    trainer.inv("train", "--job", f"--resume={run_id}")
    volume.continue_until(20)
    hold.unlink()
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
    assert conditions(trainer).get("Failed") != "True"

    trainer.inv("cancel", f"--run={run_id}")
    output = trainer.inv("collect", f"--run={run_id}")
    assert "pod reader" in output
    assert "verified" in output
    folder = trainer.results / run_id
    assert (folder / "adapter" / "adapter_model.safetensors").read_text() == f"{STEPS * (STEPS + 1) // 2}\n"
    assert [event["end"] for event in events(trainer, "ended")] == ["CANCELLED", "SUCCEEDED"]
    assert [event["attempt"] for event in events(trainer, "started")] == [1, 2, 3, 4]
    assert [(event["attempt"], event["lost_sec"]) for event in events(trainer, "restarted")] == [(2, 1.0), (3, 1.0)]
    assert [job["metadata"]["name"] for job in trainer.objects("jobs.batch")] == ["train"], "the reader is gone"
    assert "nothing to resume" in trainer.inv("train", "--job", f"--resume={run_id}")
    ends = [json.loads(line) for line in sent.read_text().splitlines()]
    assert [(end["run"], end["kind"], end["status"]) for end in ends] == [
        (run_id, "train", "CANCELLED"),
        (run_id, "train", "SUCCEEDED"),
    ]
    trainer.inv("teardown", "--yes")
    assert trainer.objects("networkpolicies") == []
    assert "verified" in trainer.inv("collect", f"--run={run_id}"), "the volume outlives the deployment"
    assert trainer.objects("persistentvolumeclaims") == []
