"""`train.then: shrink` on OKE: the real SDK against a service that verifies signatures; kills at every step."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from bench.records.nodes import NodesRecord, NodesState
from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode
from remote.fleet.ledger import Ledger
from remote.providers import GENERIC
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet import node_use
from tasks.fleet import nodes as run_nodes
from tasks.fleet.pending_results import PendingRun
from tasks.oci import give_back, nodes
from tasks.settings.load import Settings, load
from tests.support.kubernetes.listed_cluster import FakeCluster
from tests.support.machines.fake_tenancy import FakeTenancy, ocid
from tests.unit.tasks.oci.give_back.conftest import POOL, TEXT, Make, job, pod, puts, record

pytestmark = pytest.mark.usefixtures("cluster")


class Killed(BaseException):
    """Stands for a kill of the process: no handler of ours runs after it."""


def test_the_plan_names_pool_sizes_and_price_and_is_confirmed_once(
    settings: Settings, tenancy: FakeTenancy, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfirmationRequired, match="--yes"):
        run_nodes.plan(settings, "train", yes=False)
    assert "pool gpus (VM.GPU.A10.1): 2 -> 0 nodes" in capsys.readouterr().out
    planned = run_nodes.plan(settings, "train", yes=True)
    assert run_nodes.plan(settings, "train", yes=False, dry_run=True) == planned
    assert planned is not None
    assert (planned.from_size, planned.to_size, planned.state) == (2, 0, NodesState.PLANNED)
    assert planned.usd_per_hour == pytest.approx(4.01, abs=0.01)
    assert puts(tenancy) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {then: shrink}", "then_nodes: null"),
        ("train: {then: shrink, then_nodes: 2}", "nothing to give back"),
        ("fleet: {kind: local}", "fleet.kind is local"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(context: Make, text: str, message: str) -> None:
    base = {"fleet": "fleet: {kind: pods, size: 2}\n", "train": "train: {then: shrink}\n"}
    base[text.partition(":")[0]] = f"{text}\n"
    with pytest.raises(UsageError, match=message):
        run_nodes.plan(load(context(text="".join(base.values()))), "train", yes=True)


def test_null_is_the_size_before_nodes_were_added(context: Make) -> None:
    settings = load(context(text="fleet: {kind: pods, size: 2}\ntrain: {then: shrink}\n"))
    settings.results_folder.mkdir(parents=True, exist_ok=True)
    (settings.results_folder / nodes.SIZES_FILE).write_text(json.dumps({ocid("nodepool", "pool"): 1}))
    planned = run_nodes.plan(settings, "train", yes=True)
    assert planned is not None
    assert planned.to_size == 1


def test_nodes_are_kept_by_default(context: Make) -> None:
    assert run_nodes.plan(load(context()), "train", yes=False) is None


def test_the_pool_shrinks_once_after_the_pods_are_deleted(
    shrink: Callable[[], None], folder: Path, cluster: FakeCluster, tenancy: FakeTenancy
) -> None:
    shrink()
    done = record(folder)
    assert done.state is NodesState.DONE
    assert None not in (done.ended_at, done.requested_at, done.finished_at, done.work_request_id)
    assert cluster.deleted == ["budget", "worker"]
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 0}}]
    shrink()
    assert puts(tenancy) == 1
    assert done.idle_usd(0.0) is not None


def pod_with(**spec: Any) -> Any:
    """Return another team's pod on a node of the pool, whose containers use no whole GPU."""
    other = pod("x", "n2", namespace="team-b", gpus="0")
    return {**other, "spec": other["spec"] | spec}


def later_run(folder: Path) -> None:
    """Write a later run over the same cluster."""
    run = RunRecord.read(folder / "run.json")
    other = folder.with_name("r2")
    other.mkdir()
    provenance = {"cluster": {"server": "https://s", "namespace": "n"}}
    dataclasses.replace(run, run_id="r2", created_at="2026-11-23T00:00:00+00:00", provenance=provenance).write(other)


def test_nodes_are_kept_if_that_is_the_setting_now(context: Make, folder: Path, tenancy: FakeTenancy) -> None:
    settings = load(context(text=TEXT.replace("then: shrink", "then: keep")))
    run_nodes.give_back(settings, RunRecord.read(folder / "run.json"), folder)
    assert puts(tenancy) == 0


def doubts() -> dict[str, Callable[[FakeCluster, pytest.MonkeyPatch, FakeTenancy, Path], object]]:
    """Return what makes giving nodes back doubtful, by name."""
    pending = [PendingRun(folder=Path(), description="run r2: never collected")]
    return {
        "uncollected run": lambda _, patch, *__: patch.setattr(node_use, "pending_runs", lambda *_: pending),
        "another operator's job": lambda _, patch, *__: patch.setattr(
            node_use, "foreign_active_jobs", lambda *_, **__: ["worker-1 runs t of run r3"]
        ),
        "a pod of another team": lambda cluster, *_: cluster.others.append(pod("x", "n2", namespace="team-b")),
        "a slice of a GPU": lambda cluster, *_: cluster.others.append(
            pod_with(containers=[{"resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}])
        ),
        "a GPU before the pod's start": lambda cluster, *_: cluster.others.append(
            pod_with(initContainers=[{"resources": {"limits": {"nvidia.com/gpu": 1}}}])
        ),
        "a claim on a device": lambda cluster, *_: cluster.others.append(pod_with(resourceClaims=[{"name": "gpu"}])),
        "a server of ours": lambda cluster, *_: cluster.fleet_pods.append(pod("serve-0", component="serve")),
        "a training's Job": lambda cluster, *_: cluster.objects["Job"].append(job("train")),
        "pods that may not be listed": lambda cluster, *_: setattr(cluster, "others", None),
        "another cluster": lambda cluster, *_: setattr(
            cluster, "target", dataclasses.replace(cluster.target, server="https://other")
        ),
        "a later run": lambda *a: later_run(a[3]),
        "another provider": lambda cluster, *_: setattr(cluster, "provider", GENERIC),
        "an old plan": lambda _, patch, *__: patch.setattr(run_nodes, "MAX_IDLE_SEC", -1.0),
        "a changed result": lambda *a: (a[3] / "trials" / "train" / "training.json").write_text("{}"),
        "a missing adapter": lambda *a: (a[3] / "adapter" / "adapter_model.safetensors").unlink(),
        "a damaged record": lambda *a: (a[3] / "nodes.json").write_text("{}"),
        "a pool that grew": lambda *a: a[2].resources.objects[POOL].update(nodeConfigDetails={"size": 3}),
        "a pool whose etag changed": lambda *a: a[2].fail("^PUT", 412, "NoEtagMatch", times=1),
        "a pool that is being changed": lambda *a: a[2].fail("^PUT", 409, "IncorrectState"),
    }


@pytest.mark.parametrize("name", doubts())
def test_nodes_are_kept_in_doubt(
    name: str,
    shrink: Callable[[], None],
    folder: Path,
    cluster: FakeCluster,
    tenancy: FakeTenancy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubts()[name](cluster, monkeypatch, tenancy, folder)
    with pytest.raises(ConfirmationRequired):
        shrink()
    assert tenancy.bodies == []
    if not name.startswith("a pool whose") and not name.startswith("a pool that is"):
        assert (puts(tenancy), cluster.deleted) == (0, [])


@pytest.mark.parametrize("name", ["a later run", "an old plan"])
def test_a_request_that_was_not_accepted_is_repeated_only_if_the_plan_is_current(
    name: str, shrink: Callable[[], None], folder: Path, cluster: FakeCluster, tenancy: FakeTenancy, monkeypatch
) -> None:
    tenancy.fail("^PUT", 503, "ServiceUnavailable")
    with pytest.raises(RetryableError):
        shrink()
    tenancy.faults.clear()
    doubts()[name](cluster, monkeypatch, tenancy, folder)
    with pytest.raises(ConfirmationRequired):
        shrink()
    assert (record(folder).state, tenancy.bodies) == (NodesState.REQUESTED, [])
    tenancy.resources.objects[POOL].update(nodeConfigDetails={"size": 0}, nodes=[])  # it was accepted after all
    shrink()
    assert record(folder).state is NodesState.DONE


def test_a_cpu_pod_and_one_on_another_node_are_no_doubt(
    shrink: Callable[[], None], folder: Path, cluster: FakeCluster
) -> None:
    assert cluster.others is not None
    cluster.others += [pod("dns", namespace="kube-system", gpus="0"), pod("x", "elsewhere", namespace="team-b")]
    shrink()
    assert record(folder).state is NodesState.DONE


def test_a_run_that_did_not_succeed_keeps_its_nodes(
    shrink: Callable[[], None], folder: Path, tenancy: FakeTenancy
) -> None:
    (folder / "ledger.jsonl").unlink()
    ledger = Ledger.create(folder / "ledger.jsonl", ["train"])
    ledger.record_end("train", Outcome.of(ReasonCode.ERROR, "loss is not finite"), None)
    shrink()
    assert puts(tenancy) == 0
    assert record(folder).state is NodesState.PLANNED


@pytest.mark.parametrize(
    ("status", "code", "error", "text"),
    [
        (429, "TooManyRequests", RetryableError, "inv collect --run=r"),
        (503, "ServiceUnavailable", RetryableError, "inv collect --run=r"),
        (404, "NotAuthorizedOrNotFound", UsageError, "to manage cluster-node-pools in tenancy"),
        (403, "NotAuthorized", UsageError, "to manage cluster-node-pools in tenancy"),
    ],
)
def test_what_the_service_refuses_is_tried_again_by_the_command_in_the_message(
    shrink: Callable[[], None], folder: Path, tenancy: FakeTenancy, status: int, code: str, error: Any, text: str
) -> None:
    tenancy.fail("^PUT", status, code)
    with pytest.raises(error, match=text):
        shrink()
    assert record(folder).state is NodesState.REQUESTED
    tenancy.faults.clear()
    shrink()
    assert record(folder).state is NodesState.DONE
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 0}}]


def test_a_lost_response_is_not_a_second_request(
    shrink: Callable[[], None], folder: Path, tenancy: FakeTenancy
) -> None:
    tenancy.fail("^PUT", 0, times=1, drops_response=True)
    shrink()
    assert record(folder).state is NodesState.DONE
    assert len(tenancy.bodies) == 1


def test_a_change_that_stops_half_way_is_an_error_until_the_nodes_are_gone(
    shrink: Callable[[], None], folder: Path, tenancy: FakeTenancy
) -> None:
    tenancy.stuck = 1
    tenancy.resources.work_requests = [{"status": "FAILED"}]
    tenancy.resources.collections["/errors"] = [{"code": "x", "message": "the node could not be drained"}]
    with pytest.raises(TaskFailed, match="could not be drained"):
        shrink()
    tenancy.resources.work_requests = [{"status": "SUCCEEDED"}]
    tenancy.resources.objects[POOL]["nodes"][0]["nodeError"] = {"message": "not drained"}
    with pytest.raises(TaskFailed, match="n1: not drained"):
        shrink()
    tenancy.resources.objects[POOL]["nodes"] = []
    shrink()
    assert record(folder).state is NodesState.DONE
    assert len(tenancy.bodies) == 1


def test_a_pool_that_others_change_while_it_shrinks_is_left_alone(
    shrink: Callable[[], None], tenancy: FakeTenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown(*_: object) -> None:
        tenancy.resources.objects[POOL]["nodeConfigDetails"] = {"size": 5}

    monkeypatch.setattr(nodes, "wait_for_work_request", grown)
    for _ in range(2):
        with pytest.raises(ConfirmationRequired, match="changed meanwhile"):
            shrink()
    assert len(tenancy.bodies) == 1


STEPS = ("save REQUESTED", "delete", "request", "requested", "save id", "wait", "record size", "save DONE")


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_is_made_good_by_the_next_call(
    step: str,
    shrink: Callable[[], None],
    folder: Path,
    cluster: FakeCluster,
    tenancy: FakeTenancy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save, request = run_nodes.RunFolder.save, nodes.request_size

    def killed(*_: object, **__: object) -> None:
        raise Killed

    def killed_save(run_folder: Any, saved: NodesRecord) -> None:
        save(run_folder, saved)
        is_id = saved.work_request_id is not None and saved.state is NodesState.REQUESTED
        if step == ("save id" if is_id else f"save {saved.state.name}"):
            raise Killed

    def killed_request(*arguments: Any) -> None:
        request(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_nodes.RunFolder, "save", killed_save)
        if step == "delete":
            patch.setattr(cluster, "delete", killed)
        elif step in ("request", "requested"):
            patch.setattr(nodes, "request_size", killed if step == "request" else killed_request)
        elif step in ("wait", "record size"):
            patch.setattr(nodes, "wait_for_work_request" if step == "wait" else "record_size", killed)
        with pytest.raises(Killed):
            shrink()
    assert record(folder).state is (NodesState.DONE if step == "save DONE" else NodesState.REQUESTED)
    shrink()
    assert record(folder).state is NodesState.DONE
    assert tenancy.resources.objects[POOL]["nodeConfigDetails"] == {"size": 0}
    assert len(tenancy.bodies) == 1


def test_several_pools_are_told_apart_by_the_fleets_pods(
    settings: Settings, cluster: FakeCluster, tenancy: FakeTenancy
) -> None:
    second = {
        **tenancy.resources.objects[POOL],
        "id": ocid("nodepool", "second"),
        "name": "others",
        "nodes": [{"id": ocid("instance", "n2"), "lifecycleState": "ACTIVE"}],
    }
    tenancy.resources.objects[POOL]["nodes"] = [{"id": ocid("instance", "n1"), "lifecycleState": "ACTIVE"}]
    tenancy.resources.collections["/nodePools"].append(second)
    planned = run_nodes.plan(settings, "train", yes=True)
    assert planned is not None
    assert planned.pool == "gpus"
    cluster.fleet_pods.clear()
    with pytest.raises(UsageError, match="gpus, others"):
        run_nodes.plan(settings, "train", yes=True)


def test_the_module_is_what_its_provider_names(cluster: FakeCluster) -> None:
    assert cluster.provider.nodes == give_back.__name__
