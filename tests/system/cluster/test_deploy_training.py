"""Tests of `inv train` over pods: a training that Kubernetes runs without the operator, until its adapter is collected.

Real kubectl, the tests' own cluster with a hosts file for its DNS, the pods' command; steps compute nothing
(tests/support/hosts/fake_worker_finetune.py), the adapter is the sum of the numbers of its steps, and the GPUs' driver
is a fake. Not covered: the controllers of JobSet and Kueue, GPUs.
"""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.support.forked import ForkServer
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.inv_pods import LOOPBACK, make_workspace
from tests.support.kubernetes import Cluster
from tests.support.pods import EVICTION_SCALE
from tests.system.cluster.conftest import PASSWORD, ROOT, Operator, make_operator

# On a busy machine its waits take longer than those of any other test.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
VOLUME = {"handle": "ocid1.filesystem:10.0.0.1:/export"}
PODS, STEPS, OTHER_NODE = 2, 40, "node-2"
WAIT_SEC, SILENCE_SEC = 200.0, 18.0  # longer than the operator's silence limit


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the content of the image: bench/ without computation, and a fake driver with a switch for each node."""
    folder = make_workspace(tmp_path_factory)
    driver = (ROOT / "tests" / "support" / "fakes" / "pynvml.py").read_text()
    switch = 'os.environ.get("FAKE_NVML_SWITCH", "")'
    assert switch in driver
    (folder / "pynvml.py").write_text(driver.replace(switch, f'{switch} + os.environ.get("QLORA_FLEET_NODE_NAME", "")'))
    (folder / "sick").mkdir()
    return folder


@pytest.fixture(scope="module")
def training_cluster(tiny_model: Path, tiny_data: Path, workspace: Path) -> Iterator[Cluster]:
    """Provide a cluster of two nodes with a GPU, and a spare node without one until `add_gpu`."""
    image = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(workspace),
        "FAKE_NVML": json.dumps([{}]),
        "FAKE_NVML_SWITCH": f"{workspace}/sick/",
        **LOOPBACK,
    }
    folders = (tiny_model.parent, tiny_data.parent, workspace)
    with Cluster(
        nodes=PODS + 1, image_paths=folders, image_environment=image, toleration_scale=EVICTION_SCALE
    ) as cluster:
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
    training_cluster.faults.set_gpus(OTHER_NODE, 0)
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


def node_of(operator: Operator, pod: str) -> str:
    (node,) = (each["spec"]["nodeName"] for each in operator.objects("pods") if each["metadata"]["name"] == pod)
    return str(node)


def conditions(operator: Operator) -> dict[str, str]:
    (job,) = operator.objects("jobs.batch")
    return {condition["type"]: condition["status"] for condition in job.get("status", {}).get("conditions", [])}


def events(operator: Operator, kind: str) -> list[dict[str, Any]]:
    lines = (operator.results / "latest" / "ledger.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def submit(trainer: Operator, *arguments: str) -> Popen[str]:
    """Start `inv train`, which follows the training; return once it needs no operator."""
    process = trainer.start("train", *arguments, stdin=f"{PASSWORD}\n")
    for line in process.stdout or ():
        if "it needs no operator" in line:
            return process
    raise AssertionError(process.communicate())


def submit_and_leave(trainer: Operator, *arguments: str) -> str:
    """Submit a training whose operator is gone from the first second; return its run."""
    process = submit(trainer, *arguments)
    process.kill()
    process.communicate()
    return newest_run(trainer)


def finish(process: Popen[str], code: int = 0) -> str:
    """Wait for the end of a training that is followed."""
    out, err = process.communicate(timeout=2 * WAIT_SEC)
    assert process.returncode == code, out + err
    return out + err


def newest_run(trainer: Operator) -> str:
    return (trainer.results / "latest").resolve().name


def test_an_impossible_training_is_refused_before_any_change(trainer: Operator) -> None:
    trainer.set_cluster(overlay="job-4gpu", volume=VOLUME)
    assert "`inv train`" in trainer.inv("deploy", code=2)
    output = trainer.inv("train", "--dry-run", stdin=f"{PASSWORD}\n")
    assert "hours and dollars are unknown" in output
    assert "create     job/train" in output
    assert "dry run: nothing was changed" in output
    trainer.set_cluster(volume={"handle": None})
    for flags in ((), ("--dry-run",)):
        assert "cluster.volume.handle is null" in trainer.inv("train", *flags, code=2)
    assert "lost with the pod" in trainer.inv("train", "--dry-run", "--workers=1", stdin=f"{PASSWORD}\n")
    assert trainer.objects("jobs.batch") == []
    assert list(trainer.results.glob("*-train*")) == []


def test_a_training_without_an_operator_survives_a_lost_pod_and_node_is_cancelled_resumed_and_collected(
    trainer: Operator, workspace: Path
) -> None:
    faults, hold = trainer.cluster.faults, install_fake_finetune(workspace)
    trainer.set_cluster(volume=VOLUME)
    run_id = submit_and_leave(trainer)
    volume = Volume(trainer, run_id, hold)

    volume.continue_until(5)
    faults.delete_pod(running_pod(trainer, 1), trainer.namespace)  # a drain has time for a checkpoint
    volume.wait_for_attempt(2)
    volume.continue_until(10)
    output = trainer.inv("monitor", f"--run={run_id}")
    assert f"{run_id}: train " in output
    assert "1 restart" in output
    faults.set_gpus(OTHER_NODE, 1)
    first = running_pod(trainer, 0)
    node = node_of(trainer, first)
    faults.lose_node(node)
    volume.wait_for_attempt(3)
    assert first in [pod["metadata"]["name"] for pod in trainer.objects("pods")], "the lost pod is still listed"
    faults.restore_node(node)
    volume.continue_until(15)
    assert "still training" in trainer.inv("teardown", "--yes", code=4)
    operator = trainer.start("train", f"--resume={run_id}")
    assert any("2 restarts" in line for line in operator.stdout or ()), "it follows the training again"
    operator.send_signal(signal.SIGINT)
    _, error = operator.communicate(timeout=WAIT_SEC)
    assert operator.returncode == 130, error
    assert f"`inv train --resume={run_id}`" in error

    assert "cancelled" in trainer.inv("cancel", f"--run={run_id}")
    assert trainer.objects("jobs.batch") == []
    submit_and_leave(trainer, f"--resume={run_id}")
    volume.continue_until(20)
    hold.unlink()
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
    assert conditions(trainer).get("Failed") != "True"

    assert "nothing to cancel" in trainer.inv("cancel", f"--run={run_id}")
    output = trainer.inv("collect", f"--run={run_id}")
    assert "pod reader" in output
    assert "verified" in output
    folder = trainer.results / run_id
    assert (folder / "adapter" / "adapter_model.safetensors").read_text() == f"{STEPS * (STEPS + 1) // 2}\n"
    assert [event["end"] for event in events(trainer, "ended")] == ["CANCELLED", "SUCCEEDED"]
    assert [event["attempt"] for event in events(trainer, "started")] == [1, 2, 3, 4]
    assert [(event["attempt"], event["lost_sec"]) for event in events(trainer, "restarted")] == [(2, 1.0), (3, 1.0)]
    assert [job["metadata"]["name"] for job in trainer.objects("jobs.batch")] == ["train"], "the reader is gone"
    assert "nothing to resume" in trainer.inv("train", f"--resume={run_id}")
    trainer.inv("teardown", "--yes")
    assert trainer.objects("networkpolicies") == []
    # No Job is left whose pod could be copied, and the volume outlives the deployment.
    assert "verified" in trainer.inv("collect", f"--run={run_id}")
    assert trainer.objects("persistentvolumeclaims") == []


def test_a_followed_training_outlasts_the_api_server_and_a_silent_node_but_not_a_sick_gpu(
    trainer: Operator, workspace: Path
) -> None:
    cluster, hold = trainer.cluster, install_fake_finetune(workspace)
    trainer.set_cluster(volume=VOLUME)
    operator = submit(trainer)
    run_id = newest_run(trainer)
    volume = Volume(trainer, run_id, hold)
    volume.continue_until(5)
    cluster.wait_until(lambda: events(trainer, "started"), "the operator to follow")
    cluster.faults.stop_server()
    volume.continue_until(10)
    cluster.faults.start_server()
    node = node_of(trainer, running_pod(trainer, 0))
    cluster.faults.silence_node(node)
    time.sleep(SILENCE_SEC)
    cluster.faults.restore_node(node)
    volume.continue_until(15)
    assert [event["attempt"] for event in events(trainer, "started")] == [1]

    node = node_of(trainer, running_pod(trainer, 1))
    (workspace / "sick" / node).write_text(json.dumps({"xids": [79]}))
    output = finish(operator, code=3)
    assert f"`kubectl cordon {node}`" in output
    assert f"`inv train --resume={run_id}`" in output
    cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to end")
    (job,) = trainer.objects("jobs.batch")
    assert "failed" not in job["status"], "no pod was started again"
    assert "LOST" in trainer.inv("status")
    (end,) = events(trainer, "ended")
    assert (end["end"], end["reason_code"]) == ("LOST", "gpu_fault"), output
    assert f"node {node}" in end["reason"]
    assert "XID 79" in end["reason"]
    (workspace / "sick" / node).unlink()


def test_one_pod_without_a_volume_keeps_its_adapter_until_it_is_collected(trainer: Operator, workspace: Path) -> None:
    install_fake_finetune(workspace)
    trainer.set_cluster(volume={"handle": None}, size=1)
    run_id = submit_and_leave(trainer)
    assert "verified" in trainer.inv("train", f"--resume={run_id}")
    adapter = trainer.results / run_id / "adapter" / "adapter_model.safetensors"
    assert adapter.read_text() == f"{STEPS * (STEPS + 1) // 2}\n"
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the pod to end")
