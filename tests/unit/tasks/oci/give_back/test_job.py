"""`train.then: shrink` on OKE by a Job: its plan and policy, and what `inv collect` takes over of its record."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from bench.records import schema
from bench.records.checksummed import write_checksummed
from bench.records.nodes import JobIdentity, JobPool, NodesRecord, NodesState
from bench.records.run import RunRecord
from reports.read.nodes import describe_nodes
from tasks.fleet import nodes as run_nodes
from tasks.settings.load import Settings, load
from tests.support.kubernetes.listed_cluster import FakeCluster
from tests.support.machines.fake_tenancy import FakeTenancy, ocid
from tests.unit.tasks.oci.give_back.conftest import POOL, TEXT, Make, pod, puts, record

pytestmark = pytest.mark.usefixtures("cluster")


def node(name: str, *, gpus: int = 0, **spec: Any) -> Any:
    """Return a Ready node; one with GPUs is an instance of the pool."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/arch": "amd64"}},
        "spec": {"providerID": ocid("instance", name), **spec},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}, "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.fixture
def whole_cluster(cluster: FakeCluster) -> FakeCluster:
    """Provide a cluster with the pool's two nodes of one GPU, and one without."""
    cluster.live_nodes = [node("n1", gpus=1), node("n2", gpus=1), node("cpu")]
    return cluster


@pytest.mark.parametrize(
    ("text", "scope", "policy"),
    [
        ("", "tenancy", "Allow dynamic-group DYNAMIC-GROUP to manage cluster-node-pools in tenancy"),
        (
            "tenancy: {job_auth: workload_identity, compartment: team-1}\n",
            "compartment",
            f"Allow any-user to manage cluster-node-pools in compartment id {ocid('compartment', 'team-1')} where all "
            "{request.principal.type = 'workload', request.principal.namespace = 'n', "
            "request.principal.service_account = 'bench', "
            f"request.principal.cluster_id = '{ocid('cluster', 'one')}'}}",
        ),
    ],
)
@pytest.mark.usefixtures("whole_cluster")
def test_a_job_that_holds_the_pool_whole_gives_it_back_itself_with_one_policy(
    context: Make, text: str, scope: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(context(text=TEXT + text))
    planned = run_nodes.plan(settings, "train", yes=True, job_pods=2)
    assert planned is not None
    assert planned.job == JobPool(
        region="eu-frankfurt-1",
        identity=JobIdentity(settings.tenancy.job_auth),
        gpus_per_node=1,
        gpus_per_pod=1,
        policy=policy,
    ), scope
    assert run_nodes.plan(settings, "train", yes=False, dry_run=True, job_pods=2) == planned, "with its manifests"
    assert f"  {policy}\n" in capsys.readouterr().out


JOB_DOUBTS: dict[str, tuple[str, Callable[[FakeCluster], object]]] = {
    "a node is not in the cluster": ("1 of the 2 nodes", lambda cluster: cluster.live_nodes.pop(0)),
    "a node shares its GPU": (
        "offers 4 GPUs",
        lambda cluster: cluster.live_nodes[0]["status"]["allocatable"].update({"nvidia.com/gpu": "4"}),
    ),
    "no node is left to fetch the adapter": ("no other node", lambda cluster: cluster.live_nodes.pop()),
    "the other node is cordoned": (
        "no other node",
        lambda cluster: cluster.live_nodes[-1]["spec"].update(unschedulable=True),
    ),
    "the other node is of another kind": (
        "no other node",
        lambda cluster: cluster.live_nodes[-1]["metadata"]["labels"].update({"kubernetes.io/arch": "arm64"}),
    ),
    "the other node is not Ready": ("no other node", lambda cluster: cluster.live_nodes[-1]["status"].clear()),
    "a pod of another team": (
        "team-b/x uses a GPU",
        lambda cluster: cluster.others.append(pod("x", namespace="team-b")),
    ),
    "pods that may not be listed": ("others may use its nodes", lambda cluster: setattr(cluster, "others", None)),
}


@pytest.mark.parametrize("name", JOB_DOUBTS)
def test_a_job_that_may_not_hold_the_pool_whole_leaves_it_to_collect(
    name: str, settings: Settings, whole_cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    reason, change = JOB_DOUBTS[name]
    change(whole_cluster)
    planned = run_nodes.plan(settings, "train", yes=True, job_pods=2)
    assert planned is not None
    assert planned.job is None
    assert reason in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("per_node", "pods", "per_pod", "one_per_node", "is_whole"),
    [
        (1, 2, 1, True, True),
        (1, 2, 1, False, True),
        (1, 1, 1, True, False),
        (2, 2, 2, True, True),
        (2, 4, 1, False, True),
        (2, 4, 1, True, False),
        (2, 2, 1, False, False),
        (2, 3, 1, False, False),
    ],
)
def test_the_pods_of_a_job_take_all_gpus_of_each_node(
    context: Make,
    whole_cluster: FakeCluster,
    tenancy: FakeTenancy,
    *,
    per_node: int,
    pods: int,
    per_pod: int,
    one_per_node: bool,
    is_whole: bool,
) -> None:
    tenancy.resources.objects[POOL]["nodeShape"] = f"VM.GPU.A10.{per_node}"
    for live in whole_cluster.live_nodes[:2]:
        live["status"]["allocatable"]["nvidia.com/gpu"] = str(per_node)
    section = f"cluster: {{gpus_per_pod: {per_pod}, one_per_node: {str(one_per_node).lower()}}}\n"
    planned = run_nodes.plan(load(context(text=TEXT + section)), "train", yes=True, job_pods=pods)
    assert planned is not None
    assert (planned.job is not None) is is_whole


@pytest.fixture
def job_record(folder: Path, tmp_path: Path) -> Callable[..., NodesRecord]:
    """Function that writes what a Job left on the volume, and takes it over into the run's folder."""

    def write(**changes: Any) -> NodesRecord:
        job = JobPool(region="r", identity=JobIdentity.INSTANCE, gpus_per_node=1, gpus_per_pod=1, policy="p")
        own = dataclasses.replace(record(folder), job=job)
        own.write(folder)
        dataclasses.replace(own, **changes).write(tmp_path)
        run_nodes.import_job_record(folder, tmp_path)
        return record(folder)

    return write


def test_what_a_job_requested_is_only_confirmed(
    shrink: Callable[[], None], job_record: Callable[..., NodesRecord], folder: Path, tenancy: FakeTenancy
) -> None:
    times = {"ended_at": "2026-11-22T02:00:00+00:00", "requested_at": "2026-11-22T02:01:00+00:00"}
    taken = job_record(state=NodesState.DONE, work_request_id=ocid("clustersworkrequest", "w"), **times)
    assert (taken.state, taken.requested_at) == (NodesState.REQUESTED, times["requested_at"])
    tenancy.resources.objects[POOL] |= {"nodeConfigDetails": {"size": 0}, "nodes": []}
    tenancy.resources.work_requests = [{"status": "SUCCEEDED", "timeFinished": "2026-11-22T02:05:00.000Z"}]
    shrink()
    done = record(folder)
    assert (done.state, done.finished_at) == (NodesState.DONE, "2026-11-22T02:05:00+00:00")
    assert done.idle_sec(0.0) == 300.0
    assert puts(tenancy) == 0


def test_a_request_that_the_service_has_forgotten_is_confirmed_by_the_pool(
    shrink: Callable[[], None], job_record: Callable[..., NodesRecord], folder: Path, tenancy: FakeTenancy
) -> None:
    job_record(state=NodesState.REQUESTED, work_request_id=ocid("clustersworkrequest", "w"))
    tenancy.resources.objects[POOL] |= {"nodeConfigDetails": {"size": 0}, "nodes": []}
    tenancy.fail("/workRequests/", 404, "NotFound")
    shrink()
    assert record(folder).state is NodesState.DONE


def test_nodes_that_a_job_claims_to_have_given_back_are_given_back(
    shrink: Callable[[], None], job_record: Callable[..., NodesRecord], folder: Path, tenancy: FakeTenancy
) -> None:
    job_record(state=NodesState.DONE, finished_at="2026-11-22T02:05:00+00:00")
    shrink()
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 0}}]
    assert record(folder).state is NodesState.DONE


def test_nodes_that_a_job_kept_are_given_back_by_collect(
    shrink: Callable[[], None], job_record: Callable[..., NodesRecord], folder: Path, tenancy: FakeTenancy
) -> None:
    assert job_record(state=NodesState.KEPT, reason="409 IncorrectState").reason == "409 IncorrectState"
    run = RunRecord.read(folder / "run.json")
    assert "the Job kept them: 409" in str(describe_nodes(folder, run, 0.0))
    shrink()
    assert (record(folder).state, puts(tenancy)) == (NodesState.DONE, 1)


@pytest.mark.parametrize(
    "changes", [{"run_id": "r2"}, {"pool_id": "other"}, {"from_size": 9}, {"to_size": 1}, {"state": NodesState.PLANNED}]
)
def test_a_record_of_another_plan_is_not_taken_over(
    changes: dict[str, Any], job_record: Callable[..., NodesRecord], folder: Path, tmp_path: Path
) -> None:
    assert job_record(**{"state": NodesState.DONE, **changes}).state is NodesState.PLANNED
    (tmp_path / "nodes.json").write_text("{}")
    run_nodes.import_job_record(folder, tmp_path)
    for time in ("soon", "2026-11-26T00:00:00"):
        document = schema.to_json(record(folder)) | {"state": "requested", "finished_at": time}
        write_checksummed(tmp_path / "nodes.json", "nodes", document)
        run_nodes.import_job_record(folder, tmp_path)
    assert record(folder).state is NodesState.PLANNED
