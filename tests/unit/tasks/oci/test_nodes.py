"""`inv tenancy.nodes`: the plan and its dollars, what is asked of the service, and what is refused before that."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from invoke import Context

from remote.cluster.kubeconfig import Target
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet.pending_results import PendingRun
from tasks.oci import node_readiness, nodes
from tasks.oci.discovery import pool_of
from tasks.oci.node_readiness import not_ready
from tasks.oci.nodes import gpus_of, resize
from tests.support.machines.fake_tenancy import FakeTenancy, ocid

Make = Callable[..., Context]
Said = pytest.CaptureFixture[str]
STATES = ["ACCEPTED", "IN_PROGRESS", "SUCCEEDED"]
IDS = [ocid("instance", name) for name in ("n1", "n2")]


def node(instance: str, *, is_ready: bool = True, gpus: str = "1") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    return {
        "spec": {"providerID": instance},
        "status": {"conditions": conditions, "allocatable": {"nvidia.com/gpu": gpus}},
    }


@pytest.fixture
def there() -> list[dict[str, Any]]:
    """The cluster's nodes, which a test may change."""
    return [node(one) for one in IDS]


@pytest.fixture(autouse=True)
def cluster(there: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tenancy: FakeTenancy) -> None:
    """A cluster that is asked for its nodes alone, no pauses, and a change that takes three looks."""

    @contextlib.contextmanager
    def of(_: object) -> Iterator[SimpleNamespace]:
        target = Target(context="one", cluster="c", user="u", namespace="n", server="https://s")
        yield SimpleNamespace(target=target, nodes=lambda: there)

    monkeypatch.setattr(node_readiness, "cluster_of", of)
    monkeypatch.setattr(node_readiness, "uncollected", lambda *_: [])
    monkeypatch.setattr(node_readiness, "others_at_work", lambda *_: [])
    monkeypatch.setattr(nodes, "POLL_SEC", 0.0)
    monkeypatch.setattr(node_readiness, "POLL_SEC", 0.0)
    tenancy.world.work = [{"status": state} for state in STATES]


def typed(**changed: Any) -> dict[str, Any]:
    return {"name": None, "grow": None, "shrink": None, "dry_run": False, "yes": True, **changed}


def test_a_pool_grows_with_its_price_said_and_its_nodes_awaited(
    tenancy: FakeTenancy, context: Make, capsys: Said
) -> None:
    resize(context(), **typed(grow="2"))
    said = capsys.readouterr().out
    assert "pool gpus (VM.GPU.A10.1): 2 -> 4 nodes" in said
    assert "$4.01 an hour more, then $8.01 an hour in all" in said
    assert "at $2.00 per GPU hour, on-demand (Oracle Cloud list price, part B95909" in said
    assert [line.split()[-1] for line in said.splitlines() if " s  " in line] == STATES
    assert "all 2 nodes are Ready; `inv nodes` says which qualify" in said
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 4}}]


def test_a_dry_run_and_a_missing_yes_change_nothing(tenancy: FakeTenancy, context: Make, capsys: Said) -> None:
    resize(context(), **typed(grow="1", dry_run=True))
    assert "dry run: nothing was changed" in capsys.readouterr().out
    with pytest.raises(ConfirmationRequired, match="nothing was changed; type the same with --yes"):
        resize(context(), **typed(grow="1", yes=False))
    assert tenancy.asked("^PUT") == 0


def test_a_pool_shrinks_by_some_or_to_none(tenancy: FakeTenancy, context: Make) -> None:
    resize(context(), **typed(shrink="1"))
    tenancy.world.work = [{"status": "SUCCEEDED"}]
    resize(context(), **typed(shrink=True))
    assert [body["nodeConfigDetails"]["size"] for body in tenancy.bodies] == [1, 0]


def test_a_pool_with_results_in_its_pods_is_not_shrunk(
    tenancy: FakeTenancy, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [PendingRun(folder=Path(), line="run r1: never collected; `inv collect --run=r1` brings it")]
    monkeypatch.setattr(node_readiness, "uncollected", lambda *_: lost)
    with pytest.raises(
        ConfirmationRequired, match=r"results would be lost: nothing was changed; run r1: .*inv collect --run=r1"
    ):
        resize(context(), **typed(shrink=True))
    assert tenancy.asked("^PUT") == 0


def test_a_pool_of_another_cluster_is_not_shrunk(
    tenancy: FakeTenancy, context: Make, there: list[dict[str, Any]]
) -> None:
    there[:] = [node(ocid("instance", "elsewhere"))]
    with pytest.raises(UsageError, match="context one has none of pool gpus's nodes"):
        resize(context(), **typed(shrink=True))
    assert tenancy.asked("^PUT") == 0


def test_somebody_who_changes_the_pool_too_is_noticed_by_its_etag(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.fail("^PUT", 412, "NoEtagMatch", "The etag does not match.")
    with pytest.raises(ConfirmationRequired, match="resizing pool gpus: 412 NoEtagMatch"):
        resize(context(), **typed(grow="1"))


def test_a_change_that_fails_says_why(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.world.work = [{"status": "FAILED"}]
    tenancy.world.lists["/errors"] = [{"code": "x", "message": "Out of host capacity."}]
    with pytest.raises(TaskFailed, match=r"FAILED: Out of host capacity.; that kind of GPU is used up there"):
        resize(context(), **typed(grow="1"))


def test_a_change_that_takes_too_long_goes_on_by_itself(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.world.work = [{"status": "IN_PROGRESS"}]
    with pytest.raises(RetryableError, match=r"it goes on by itself: `inv tenancy.nodes` shows it"):
        resize(context(text="cluster: {ready_within_sec: 1.0}"), **typed(grow="1"))


def test_the_pools_are_shown_with_what_they_cost(context: Make, capsys: Said) -> None:
    resize(context(), **typed())
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:5] == ["gpus", "VM.GPU.A10.1", "2", "2", "4.01"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"grow": "1", "shrink": True}, "--grow or --shrink, not both"),
        ({"grow": "two"}, "--grow: expected a whole number from 1 to 1000, found 'two'"),
        ({"shrink": "0"}, "--shrink: expected a whole number from 1"),
        ({"shrink": "3"}, "pool gpus has 2 nodes; -1 is not from 0 to 1000"),
        ({"grow": "1", "name": "cpus"}, "no GPU pool cpus in this compartment; there are gpus"),
        ({"grow": "1", "name": ocid("cluster", "one")}, "that is the OCID of a cluster"),
        ({"grow": "4"}, r"4 more A10 GPUs are needed, and the limit leaves 3 \(1 of 4 in use\)"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_changes(
    tenancy: FakeTenancy, context: Make, words: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        resize(context(), **typed(**words))
    assert tenancy.asked("^PUT") == 0


def test_nodes_are_awaited_until_the_cluster_has_them_ready_with_gpus(tenancy: FakeTenancy) -> None:
    pool = pool_of(tenancy.world.lists["/nodePools"][0])
    assert not_ready(pool, [node(one) for one in IDS]) == []
    assert not_ready(pool, [node(IDS[0], is_ready=False)]) == [
        "n1: not Ready yet",
        "n2: active, not in the cluster yet",
    ]
    assert not_ready(pool, [node(IDS[0], gpus="0"), node(IDS[1])]) == [
        "n1: Ready, no GPU yet (the device plugin starts)"
    ]
    broken = {"id": "x", "name": "n3", "nodeError": {"message": "no capacity"}}
    assert not_ready(pool_of({"id": "p", "nodes": [broken]}), []) == ["n3: no capacity"]


ODD_POOLS: list[dict[str, Any]] = [
    {"id": None},
    {"id": " "},
    {"id": 7},
    {"nodeConfigDetails": "2"},
    {"nodeConfigDetails": {"size": "two"}},
    {"nodeConfigDetails": {"size": float("inf")}},
    {"nodeConfigDetails": {"size": 10**400}},
    {"nodeConfigDetails": {"size": -1}},
    {"nodes": 2},
    {"nodes": ["n1"]},
    {"nodes": [{"id": "x", "nodeError": "no capacity"}]},
]


@pytest.mark.parametrize("odd", ODD_POOLS)
def test_a_pool_that_is_not_as_the_api_has_them_is_one_line(
    tenancy: FakeTenancy, context: Make, odd: dict[str, Any]
) -> None:
    tenancy.world.lists["/nodePools"][0] |= odd
    with pytest.raises(
        RetryableError, match=r"^listing node pools: an object is not as the API has them: .*; is a proxy"
    ):
        resize(context(), **typed())


@pytest.mark.parametrize("odd", ODD_POOLS)
def test_a_pool_that_turns_odd_when_asked_for_alone_is_not_changed(
    tenancy: FakeTenancy, context: Make, odd: dict[str, Any]
) -> None:
    path = f"/nodePools/{ocid('nodepool', 'pool')}"
    tenancy.world.objects[path] = {**tenancy.world.objects[path], **odd}
    with pytest.raises(RetryableError, match=r"^asking for the node pool: an object is not as the API has them"):
        resize(context(), **typed(grow="1"))
    assert tenancy.asked("^PUT") == 0


@pytest.mark.parametrize(
    "status", [{"allocatable": "1"}, {"allocatable": {"nvidia.com/gpu": "one"}}, {"conditions": ["Ready"]}]
)
def test_a_node_whose_state_is_not_as_kubernetes_has_it_is_one_line(
    tenancy: FakeTenancy, status: dict[str, Any]
) -> None:
    pool = pool_of(tenancy.world.lists["/nodePools"][0])
    odd = node(IDS[0])
    odd["status"] |= status
    with pytest.raises(RetryableError, match=r"^n1: the cluster's answer is not as Kubernetes has it"):
        not_ready(pool, [odd])


@pytest.mark.parametrize(("shape", "gpus"), [("VM.GPU.A10.1", 1), ("VM.GPU.A10.2", 2), ("BM.GPU.H100.8", 8), ("X", 1)])
def test_the_gpus_of_a_shape_are_in_its_name(shape: str, gpus: int) -> None:
    assert gpus_of(shape) == gpus
