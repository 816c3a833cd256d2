"""A training's Job without an operator: it gives its nodes back, killed at each step, and leaves a sick GPU.

Real kubectl, the tests' own cluster and the real SDK in `inv` and in the pods, against a service that verifies each
signature; steps compute nothing (tests/support/hosts/fake_worker_finetune.py), and the GPUs' driver is a fake. Not
covered: OKE itself, and what it does between a request and the end of a node.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from bench.records.nodes import NodesRecord, NodesState
from tests.support.forked import ForkServer
from tests.support.hosts.fake_worker_finetune import install_fake_finetune
from tests.support.inv_pods import make_workspace
from tests.support.kubernetes import Cluster
from tests.support.machines.fake_instance import FakeInstance
from tests.support.machines.fake_tenancy import TENANCY, ApiKey, FakeTenancy, ocid, signature_error
from tests.support.machines.webhook import Webhook
from tests.system.cluster.conftest import PASSWORD, ROOT, Operator, make_operator
from tests.system.cluster.test_deploy_training import VOLUME, WAIT_SEC, Volume, conditions, events, running_pod

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS, OTHER_NODE = 2, "node-2"
POOL = f"/nodePools/{ocid('nodepool', 'pool')}"
STEPS = ("verify", "ask", "save REQUESTED", "notify", "request", "requested", "wait")
# Added to the pods' program: the first pod stays at each step until it is killed, once, if the file `stops` exists.
STOPS = """

def _stop_at(pod, step):
    folder = pod._folder
    if (folder.parent / "stops").exists() and not (folder / f"stop {step}").exists():
        (folder / f"stop {step}").touch()
        time.sleep(3600)


def _stopped(name, before, after=None):
    original = getattr(JobNodes, name)

    def call(pod, *arguments, **options):
        if before is not None:
            _stop_at(pod, before)
        result = original(pod, *arguments, **options)
        step = after(pod, options) if callable(after) else after
        if step is not None:
            _stop_at(pod, step)
        return result

    setattr(JobNodes, name, call)


def _saved(pod, _options):
    return "save REQUESTED" if pod._record.state is NodesState.REQUESTED else None


POLL_SEC = RETRY_PAUSE_SEC = 0.1
_stopped("_verify_outputs", "verify")
_stopped("_ask_pods", "ask")
_stopped("_save", None, _saved)
_stopped("_report", "notify")
_stopped("_resize", "request", "requested")
_stopped("_await_removal", "wait")
"""


@pytest.fixture(scope="module")
def tenancy() -> Iterator[FakeTenancy]:
    with FakeTenancy(ApiKey()) as server:
        yield server


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tenancy: FakeTenancy) -> Path:
    """Make the content of the image: bench/ for the fake service, and the fake driver, with a switch for each node."""
    folder = make_workspace(tmp_path_factory)
    with (folder / "bench" / "nodes" / "oke.py").open("a") as file:
        file.write(f"\nENDPOINT, FEDERATION_ENDPOINT = {tenancy.url!r}, {f'{tenancy.url}/v1/x509'!r}\n")
    with (folder / "bench" / "commands" / "job_nodes.py").open("a") as file:
        file.write(STOPS)
    with (folder / "bench" / "commands" / "job_faults.py").open("a") as file:
        file.write("\nRETURN_DELAY_SEC = 0.5\n")
    driver = (ROOT / "tests" / "support" / "fakes" / "pynvml.py").read_text()
    switch = 'os.environ.get("FAKE_NVML_SWITCH", "")'
    assert switch in driver
    (folder / "pynvml.py").write_text(driver.replace(switch, f'{switch} + os.environ.get("QLORA_FLEET_NODE_NAME", "")'))
    (folder / "sick").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster(
    tiny_model: Path, tiny_data: Path, workspace: Path, hook: Webhook, tenancy: FakeTenancy
) -> Iterator[Cluster]:
    """Provide a cluster of the pool's two nodes, and one node of another pool."""
    image = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(workspace),
        "SSL_CERT_FILE": str(hook.authority),
        "OCI_METADATA_BASE_URL": f"{tenancy.url}/opc/v2",
        "FAKE_NVML": json.dumps([{}]),
        "FAKE_NVML_SWITCH": f"{workspace}/sick/",
    }
    folders = (tiny_model.parent, tiny_data.parent, workspace)
    with Cluster(nodes=PODS + 1, image_paths=folders, image_environment=image) as cluster:
        cluster.patience_sec = WAIT_SEC
        for node in range(PODS + 1):
            provider_id = json.dumps({"spec": {"providerID": ocid("instance", f"n{node}")}})
            done = cluster.kubectl("patch", "node", f"node-{node}", "--type=merge", "-p", provider_id)
            assert done.returncode == 0, done.stderr
        yield cluster


@pytest.fixture
def trainer(
    cluster: Cluster,
    tiny_model: Path,
    tiny_data: Path,
    tenancy: FakeTenancy,
    workspace: Path,
    hook: Webhook,
    tmp_path: Path,
    inv_server: ForkServer,
) -> Iterator[Operator]:
    """Provide an operator of the tenancy whose Jobs give their two nodes back; the third node has no GPU."""
    operator = make_operator(cluster, tmp_path, inv_server)
    with (operator.project / "tasks.py").open("a") as file:
        file.write(
            f"from tasks.oci import clients, nodes\nclients.ENDPOINT, nodes.POLL_INTERVAL_SEC = {tenancy.url!r}, 0.1\n"
        )
    (operator.project / "reports").symlink_to(ROOT / "reports")
    tenancy.reset()
    tenancy.keys.write_config(operator.project)
    tenancy.instance, tenancy.resizes = FakeInstance(TENANCY, signature_error), True
    tenancy.resources.work_requests = [{"status": "SUCCEEDED"}]
    tenancy.resources.objects[POOL]["nodes"] = [
        {"id": ocid("instance", f"n{node}"), "lifecycleState": "ACTIVE", "privateIp": f"10.99.0.{10 + node}"}
        for node in range(PODS)
    ]
    hook.requests.clear()
    operator.settings |= {
        "model": {"path": str(tiny_model)},
        "data": {"path": str(tiny_data)},
        "train": {"max_steps": 10, "max_seq_len": 256, "then": "shrink", "then_nodes": 0},
        "notify": {"url": hook.url, "allow_private": True},
    }
    operator.set_cluster(volume=VOLUME)
    cluster.faults.set_gpus(OTHER_NODE, 0)
    install_fake_finetune(workspace).unlink(missing_ok=True)
    yield operator
    for path in (workspace / "sick").iterdir():
        path.unlink()
    for node in range(PODS + 1):
        cluster.kubectl("uncordon", f"node-{node}")
    operator.inv("teardown", "--yes", "--discard-results")


def submit(trainer: Operator) -> tuple[str, Volume]:
    """Submit the Job; return its run's id and its folder on the volume."""
    output = trainer.inv("train", "--job", "--yes", stdin=f"{PASSWORD}\n")
    run_id = (trainer.results / "latest").resolve().name
    assert "  Allow dynamic-group DYNAMIC-GROUP to manage cluster-node-pools in tenancy\n" in output
    assert "the Job gives the nodes back" in output
    return run_id, Volume(trainer, run_id, Path("hold"))


def sent(hook: Webhook) -> list[str]:
    return [json.loads(request.body)["event"] for request in hook.requests]


def record(volume: Volume) -> NodesRecord:
    return NodesRecord.read(volume.folder / "nodes.json")


def test_a_job_trains_notifies_and_shrinks_with_nobody_there(
    trainer: Operator, hook: Webhook, tenancy: FakeTenancy
) -> None:
    tenancy.stuck = PODS  # the nodes go a moment after the request
    assert "networkpolicy/nodes" in trainer.inv("train", "--job", "--dry-run", stdin=f"{PASSWORD}\n")
    run_id, volume = submit(trainer)
    trainer.cluster.wait_until(lambda: bool(tenancy.bodies), "the request")
    assert sent(hook) == ["started", "ended", "nodes"], "before the nodes go"
    trainer.cluster.wait_until(lambda: record(volume).work_request_id is not None, "the request's id")
    for node in range(PODS):
        trainer.cluster.kubectl("cordon", f"node-{node}")
    for index in range(PODS):  # the drain of the nodes
        trainer.cluster.faults.delete_pod(running_pod(trainer, index), trainer.namespace)
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
    tenancy.resources.objects[POOL]["nodes"] = []
    assert (record(volume).state, len(tenancy.bodies)) == (NodesState.REQUESTED, 1)

    output = trainer.inv("collect", f"--run={run_id}")  # by a pod on the node that is left
    assert "nodes: given back (gpus: 2 -> 0)" in output
    assert "nodes given back (gpus: 2 -> 0)" in trainer.inv("runs")
    assert len(tenancy.bodies) == 1
    assert (trainer.results / run_id / "adapter" / "adapter_model.safetensors").is_file()
    trainer.inv("collect", f"--run={run_id}")


def test_a_first_pod_that_is_killed_at_each_step_gives_the_nodes_back_once(
    trainer: Operator, tenancy: FakeTenancy
) -> None:
    run_id, volume = submit(trainer)
    (volume.folder.parent / "stops").touch()
    try:
        for step in STEPS:
            trainer.cluster.wait_until((volume.folder / f"stop {step}").exists, f"the first pod to stop at {step}")
            trainer.cluster.faults.delete_pod(running_pod(trainer, 0), trainer.namespace, grace=0)
        trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
    finally:
        (volume.folder.parent / "stops").unlink()
    assert record(volume).state is NodesState.DONE
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 0}}]
    assert "nodes: given back (gpus: 2 -> 0)" in trainer.inv("collect", f"--run={run_id}")


def test_a_job_that_lacks_the_right_keeps_its_nodes_until_collect(
    trainer: Operator, hook: Webhook, tenancy: FakeTenancy
) -> None:
    tenancy.fail("^PUT", 404, "NotAuthorizedOrNotFound")
    run_id, volume = submit(trainer)
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
    assert record(volume).state is NodesState.KEPT
    assert sent(hook) == ["started", "ended", "nodes", "nodes"]
    assert "required policy: Allow dynamic-group" in json.loads(hook.requests[-1].body)["text"]
    tenancy.faults.clear()
    output = trainer.inv("collect", f"--run={run_id}")
    assert "the Job kept its nodes: resizing the pool: 404" in output
    assert "nodes: given back (gpus: 2 -> 0)" in output


def test_a_training_leaves_a_node_whose_gpu_shows_an_xid(
    trainer: Operator, workspace: Path, hook: Webhook, tenancy: FakeTenancy
) -> None:
    trainer.settings["train"] |= {"then": "keep", "max_steps": 40}
    hold = install_fake_finetune(workspace)
    hold.touch()
    trainer.inv("train", "--job", stdin=f"{PASSWORD}\n")
    run_id = (trainer.results / "latest").resolve().name
    volume = Volume(trainer, run_id, hold)
    volume.continue_until(5)
    sick = running_pod(trainer, 1)
    node = next(pod for pod in trainer.objects("pods") if pod["metadata"]["name"] == sick)["spec"]["nodeName"]
    (workspace / "sick" / node).write_text(json.dumps({"xids": [79]}))
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Failed") == "True", "the Job to give up the node")
    hold.unlink()  # not earlier: the training could end before the fault is seen

    output = trainer.inv("collect", f"--run={run_id}")
    (end,) = events(trainer, "ended")
    assert (end["end"], end["reason_code"]) == ("LOST", "gpu_fault"), output
    assert f"node {node}" in end["reason"]
    assert "XID 79" in end["reason"]
    trainer.cluster.faults.set_gpus(OTHER_NODE, 1)
    output = trainer.inv("train", "--job", f"--resume={run_id}", "--cordon")
    assert f"cordoned node {node}\n" in output
    trainer.cluster.wait_until(lambda: conditions(trainer).get("Complete") == "True", "the Job to complete")
    assert "verified" in trainer.inv("collect", f"--run={run_id}")
    assert [event["end"] for event in events(trainer, "ended")] == ["LOST", "SUCCEEDED"]
    assert tenancy.bodies == []
    assert sent(hook)[-1] == "ended"
