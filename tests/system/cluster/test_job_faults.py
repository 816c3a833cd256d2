"""A training's Job without an operator: a sick GPU ends it with the name of the node, a dead node does not end it.

Real kubectl and the tests' own cluster; steps compute nothing (tests/support/hosts/fake_worker_finetune.py), and the
GPUs' driver is a fake.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import ForkServer
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.inv_pods import make_workspace
from tests.support.kubernetes import Cluster
from tests.system.cluster.conftest import ROOT, Operator, make_operator
from tests.system.cluster.test_deploy_training import (
    VOLUME,
    WAIT_SEC,
    Volume,
    conditions,
    events,
    running_pod,
    submit_and_leave,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS, OTHER_NODE = 2, "node-2"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the content of the image: bench/ and the fake driver, with a switch for each node."""
    folder = make_workspace(tmp_path_factory)
    driver = (ROOT / "tests" / "support" / "fakes" / "pynvml.py").read_text()
    switch = 'os.environ.get("FAKE_NVML_SWITCH", "")'
    assert switch in driver
    (folder / "pynvml.py").write_text(driver.replace(switch, f'{switch} + os.environ.get("QLORA_FLEET_NODE_NAME", "")'))
    (folder / "sick").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster(tiny_model: Path, tiny_data: Path, workspace: Path) -> Iterator[Cluster]:
    image = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(workspace),
        "FAKE_NVML": json.dumps([{}]),
        "FAKE_NVML_SWITCH": f"{workspace}/sick/",
    }
    folders = (tiny_model.parent, tiny_data.parent, workspace)
    with Cluster(nodes=PODS + 1, image_paths=folders, image_environment=image) as cluster:
        cluster.patience_sec = WAIT_SEC
        yield cluster


@pytest.fixture
def trainer(
    cluster: Cluster, tiny_model: Path, tiny_data: Path, tmp_path: Path, workspace: Path, inv_server: ForkServer
) -> Iterator[Operator]:
    """Provide an operator of two nodes with a GPU; the third node has none."""
    for node in cluster.objects("nodes"):
        cluster.output("uncordon", node["metadata"]["name"])
        (workspace / "sick" / node["metadata"]["name"]).unlink(missing_ok=True)
    operator = make_operator(cluster, tmp_path, inv_server)
    operator.settings |= {
        "model": {"path": str(tiny_model)},
        "data": {"path": str(tiny_data)},
        "train": {"max_steps": 40, "max_seq_len": 256},
    }
    operator.set_cluster(volume=VOLUME)
    cluster.faults.set_gpus(OTHER_NODE, 0)
    yield operator
    operator.inv("teardown", "--yes", "--discard-results")


def test_a_training_ends_lost_with_the_node_of_a_sick_gpu_and_a_resume_goes_on_elsewhere(
    trainer: Operator, workspace: Path
) -> None:
    hold = install_fake_finetune(workspace)
    hold.touch()
    run_id = submit_and_leave(trainer)
    volume = Volume(trainer, run_id, hold)
    volume.continue_until(5)
    sick = running_pod(trainer, 1)
    node = next(pod for pod in trainer.objects("pods") if pod["metadata"]["name"] == sick)["spec"]["nodeName"]
    (workspace / "sick" / node).write_text(json.dumps({"xids": [79]}))
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to end")
    (job,) = trainer.objects("jobs.batch")
    assert "failed" not in job["status"], "no pod was started again"
    hold.unlink()  # not earlier: the training could end before the fault is seen

    for task in (("status",), ("monitor", f"--run={run_id}")):
        output = trainer.inv(*task)
        assert "LOST" in output
        assert f"`inv collect --run={run_id}`" in output
    output = trainer.inv("collect", f"--run={run_id}")
    assert f"`kubectl cordon {node}`" in output
    assert f"`inv train --resume={run_id}`" in output
    (end,) = events(trainer, "ended")
    assert (end["end"], end["reason_code"]) == ("LOST", "gpu_fault"), output
    assert f"node {node}" in end["reason"]
    assert "XID 79" in end["reason"]
    (command,) = re.findall(r"`kubectl ([^`]+)`", end["reason"])
    trainer.cluster.output(*shlex.split(command))
    nodes = {each["metadata"]["name"]: each["spec"] for each in trainer.cluster.objects("nodes")}
    assert nodes[node]["unschedulable"]
    trainer.cluster.faults.set_gpus(OTHER_NODE, 1)
    assert "verified" in trainer.inv("train", f"--resume={run_id}")
    assert [event["end"] for event in events(trainer, "ended")] == ["LOST", "SUCCEEDED"]


def test_a_training_goes_on_without_an_operator_after_the_death_of_the_first_pods_node(
    trainer: Operator, workspace: Path
) -> None:
    hold = install_fake_finetune(workspace)
    hold.touch()
    run_id = submit_and_leave(trainer)
    volume = Volume(trainer, run_id, hold)
    volume.continue_until(5)
    trainer.cluster.faults.set_gpus(OTHER_NODE, 1)
    first = running_pod(trainer, 0)
    node = next(pod for pod in trainer.objects("pods") if pod["metadata"]["name"] == first)["spec"]["nodeName"]
    trainer.cluster.faults.lose_node(node)
    try:
        volume.wait_for_attempt(2)
        hold.unlink()
        trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
        assert first in [pod["metadata"]["name"] for pod in trainer.objects("pods")], "the lost pod is still listed"
        assert "SUCCEEDED" in trainer.inv("monitor", f"--run={run_id}")
        assert "verified" in trainer.inv("collect", f"--run={run_id}")
    finally:
        trainer.cluster.faults.restore_node(node)
    assert [event["end"] for event in events(trainer, "ended")] == ["SUCCEEDED"]
