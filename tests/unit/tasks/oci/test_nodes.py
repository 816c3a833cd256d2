"""`inv tenancy.nodes`: the plan and its cost, the requests to the service, and refusals before the first change."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from invoke import Context

from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet import node_use
from tasks.fleet.pending_results import PendingRun
from tasks.fleet.pricing import price_table
from tasks.oci import nodes
from tasks.oci.discovery import parse_node_pool
from tasks.oci.nodes import describe_unready, gpus_per_node, resize
from tasks.settings.load import load
from tests.support.answers import print_answer
from tests.support.kubernetes.listed_cluster import FakeCluster
from tests.support.machines.fake_tenancy import FakeTenancy, ocid

Make = Callable[..., Context]
Capture = pytest.CaptureFixture[str]
STATES = ["ACCEPTED", "IN_PROGRESS", "SUCCEEDED"]
IDS = [ocid("instance", name) for name in ("n1", "n2")]


def node(instance: str, *, is_ready: bool = True, gpus: str = "1") -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(is_ready)}]
    return {
        "metadata": {"name": instance},
        "spec": {"providerID": instance},
        "status": {"conditions": conditions, "allocatable": {"nvidia.com/gpu": gpus}},
    }


@pytest.fixture
def cluster_nodes() -> list[dict[str, Any]]:
    """Provide the cluster's nodes, which a test may change."""
    return [node(instance) for instance in IDS]


@pytest.fixture(autouse=True)
def cluster(cluster_nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tenancy: FakeTenancy) -> None:
    """Provide a cluster that only lists its nodes, polling without pauses, and a change that takes three polls."""

    @contextlib.contextmanager
    def open_cluster(_: object) -> Iterator[FakeCluster]:
        yield FakeCluster(live_nodes=cluster_nodes)

    monkeypatch.setattr(nodes, "open_cluster", open_cluster)
    monkeypatch.setattr(node_use, "pending_runs", lambda *_: [])
    monkeypatch.setattr(node_use, "foreign_active_jobs", lambda *_, **__: [])
    monkeypatch.setattr(nodes, "POLL_INTERVAL_SEC", 0.0)
    tenancy.resources.work_requests = [{"status": state} for state in STATES]


def flags(**changed: Any) -> dict[str, Any]:
    return {"name": None, "add": None, "remove": None, "dry_run": False, "yes": True, **changed}


def test_growing_a_pool_prints_its_price_and_waits_for_its_nodes(
    tenancy: FakeTenancy, context: Make, capsys: Capture
) -> None:
    resize(context(), **flags(add="2"))
    output = capsys.readouterr().out
    assert "pool gpus (VM.GPU.A10.1): 2 -> 4 nodes" in output
    assert "$4.01 an hour more, then $8.01 an hour" in output
    assert "$2.00 per GPU hour" in output
    assert "B95909" in output
    assert [line.split()[-1] for line in output.splitlines() if " s  " in line] == STATES
    assert "all 2 nodes are Ready; `inv nodes`" in output
    assert tenancy.bodies == [{"nodeConfigDetails": {"size": 4}}]


def test_a_dry_run_and_a_missing_yes_change_nothing(tenancy: FakeTenancy, context: Make, capsys: Capture) -> None:
    print_answer(resize(context(), **flags(add="1", dry_run=True)))
    assert capsys.readouterr().out.splitlines()[-1].startswith("dry run: ")
    with pytest.raises(ConfirmationRequired, match=r"; .*--yes"):
        resize(context(), **flags(add="1", yes=False))
    assert tenancy.count_requests("^PUT") == 0


def test_a_pool_shrinks_by_some_or_to_none(tenancy: FakeTenancy, context: Make) -> None:
    resize(context(), **flags(remove="1"))
    tenancy.resources.work_requests = [{"status": "SUCCEEDED"}]
    resize(context(), **flags(remove=True))
    assert [body["nodeConfigDetails"]["size"] for body in tenancy.bodies] == [1, 0]


def test_a_pool_with_results_in_its_pods_is_not_shrunk(
    tenancy: FakeTenancy, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = [PendingRun(folder=Path(), description="run r1: never collected; `inv collect --run=r1` fetches it")]
    monkeypatch.setattr(node_use, "pending_runs", lambda *_: pending)
    with pytest.raises(ConfirmationRequired, match=r"; run r1: .*inv collect --run=r1"):
        resize(context(), **flags(remove=True))
    assert tenancy.count_requests("^PUT") == 0


def test_work_that_begins_while_the_question_waits_keeps_the_nodes(
    tenancy: FakeTenancy, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm(_: str) -> bool:
        monkeypatch.setattr(node_use, "foreign_active_jobs", lambda *_, **__: ["worker-1 runs t of run r3"])
        return True

    monkeypatch.setattr(nodes, "confirm", confirm)
    with pytest.raises(ConfirmationRequired, match="run r3"):
        resize(context(), **flags(remove=True, yes=False))
    assert tenancy.count_requests("^PUT") == 0


def test_the_size_before_nodes_were_added_is_recorded_until_they_are_removed(
    tenancy: FakeTenancy, context: Make
) -> None:
    tenancy.resizes = True
    settings, pool = load(context()), ocid("nodepool", "pool")
    tenancy.resources.objects[f"/nodePools/{pool}"]["nodeConfigDetails"]["size"] = 1
    for change, expected in (({"add": "1"}, 1), ({"remove": "1"}, None)):
        tenancy.resources.work_requests = [{"status": "SUCCEEDED"}]
        resize(context(), **flags(**change))
        assert nodes.size_before_growth(settings, pool) == expected
    (settings.results_folder / nodes.SIZES_FILE).write_text("[")
    with pytest.raises(UsageError, match="then_nodes"):
        nodes.size_before_growth(settings, pool)


def test_a_pool_of_another_cluster_is_not_shrunk(
    tenancy: FakeTenancy, context: Make, cluster_nodes: list[dict[str, Any]]
) -> None:
    cluster_nodes[:] = [node(ocid("instance", "elsewhere"))]
    with pytest.raises(UsageError, match=r"context one .*pool gpus.*; set cluster.context"):
        resize(context(), **flags(remove=True))
    assert tenancy.count_requests("^PUT") == 0


def test_a_concurrent_change_of_the_pool_is_detected_by_its_etag(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.fail("^PUT", 412, "NoEtagMatch", "The etag does not match.")
    with pytest.raises(ConfirmationRequired, match="resizing pool gpus: 412 NoEtagMatch"):
        resize(context(), **flags(add="1"))


def test_a_change_that_fails_says_why(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.resources.work_requests = [{"status": "FAILED"}]
    tenancy.resources.collections["/errors"] = [{"code": "x", "message": "Out of host capacity."}]
    with pytest.raises(TaskFailed, match=r"pool gpus: FAILED: Out of host capacity\.; .*availability domain"):
        resize(context(), **flags(add="1"))


def test_a_change_that_takes_too_long_is_retryable(tenancy: FakeTenancy, context: Make) -> None:
    tenancy.resources.work_requests = [{"status": "IN_PROGRESS"}]
    with pytest.raises(RetryableError, match=r"IN_PROGRESS .*cluster.ready_timeout_sec.*; .*`inv tenancy.nodes`"):
        resize(context(text="cluster: {ready_timeout_sec: 1.0}"), **flags(add="1"))


def test_the_pools_are_shown_with_what_they_cost(context: Make, capsys: Capture) -> None:
    print_answer(resize(context(), **flags()))
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[:5] == ["gpus", "VM.GPU.A10.1", "2", "2", "4.01"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"add": "1", "remove": True}, "--add or --remove, not both"),
        ({"add": "two"}, "--add: expected a whole number from 1 to 1000, found 'two'"),
        ({"remove": "0"}, "--remove: expected a whole number from 1"),
        ({"remove": "3"}, "pool gpus has 2 nodes; -1 "),
        ({"add": "1", "name": "cpus"}, "cpus .*; .*gpus"),
        ({"add": "1", "name": ocid("cluster", "one")}, "--pool: expected an OCID like ocid1.nodepool"),
        ({"add": "4"}, r"4 more A10 GPUs .* 3 \(1 of 4 in use\)"),
    ],
)
def test_an_invalid_request_is_refused_before_anything_changes(
    tenancy: FakeTenancy, context: Make, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        resize(context(), **flags(**arguments))
    assert tenancy.count_requests("^PUT") == 0


def test_nodes_are_unready_until_the_cluster_has_them_ready_with_gpus(tenancy: FakeTenancy) -> None:
    pool = parse_node_pool(tenancy.resources.collections["/nodePools"][0])
    assert describe_unready(pool, [node(instance) for instance in IDS]) == []
    assert describe_unready(pool, [node(IDS[0], is_ready=False)]) == [
        "n1: not Ready yet",
        "n2: active, not in the cluster yet",
    ]
    assert describe_unready(pool, [node(IDS[0], gpus="0"), node(IDS[1])]) == [
        "n1: Ready, no GPU yet (the device plugin starts)"
    ]
    broken = {"id": "x", "name": "n3", "nodeError": {"message": "no capacity"}}
    assert describe_unready(parse_node_pool({"id": "p", "nodes": [broken]}), []) == ["n3: no capacity"]


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
def test_a_malformed_pool_is_not_parsed(tenancy: FakeTenancy, odd: dict[str, Any]) -> None:
    pool = tenancy.resources.collections["/nodePools"][0]
    assert parse_node_pool(pool).size == 2
    with pytest.raises((ValueError, TypeError, AttributeError, OverflowError)):
        parse_node_pool(pool | odd)


def test_a_malformed_pool_is_one_line_and_is_not_changed(tenancy: FakeTenancy, context: Make) -> None:
    path, odd = f"/nodePools/{ocid('nodepool', 'pool')}", {"nodes": 2}
    tenancy.resources.objects[path] = {**tenancy.resources.objects[path], **odd}
    with pytest.raises(RetryableError, match=r"^reading the node pool: "):
        resize(context(), **flags(add="1"))
    tenancy.resources.collections["/nodePools"][0] |= odd
    with pytest.raises(RetryableError, match=r"^listing node pools: "):
        resize(context(), **flags())
    assert tenancy.count_requests("^PUT") == 0


@pytest.mark.parametrize(
    "status", [{"allocatable": "1"}, {"allocatable": {"nvidia.com/gpu": "one"}}, {"conditions": ["Ready"]}]
)
def test_a_malformed_node_status_is_one_line(tenancy: FakeTenancy, status: dict[str, Any]) -> None:
    pool = parse_node_pool(tenancy.resources.collections["/nodePools"][0])
    odd = node(IDS[0])
    odd["status"] |= status
    with pytest.raises(RetryableError, match=r"^n1: "):
        describe_unready(pool, [odd])


def test_the_price_is_that_of_the_pools_shape(
    tenancy: FakeTenancy, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INVOKE_COST_SHAPE", "VM.GPU.A10.1")
    item, settings = tenancy.resources.collections["/nodePools"][0], load(context())
    pools = [parse_node_pool({**item, "nodeShape": shape}) for shape in ("VM.GPU.A10.1", "BM.GPU.H100.8", "VM.GPU9.1")]
    table = price_table(settings)
    assert table is not None
    hourly = [nodes.usd_per_node_hour(settings, pool) for pool in pools]
    assert [price is None for price in hourly] == [False, False, True]
    assert hourly[1][0] >= 8 * table.shapes["BM.GPU.H100.8"].on_demand.amount > hourly[0][0]


@pytest.mark.parametrize(("shape", "gpus"), [("VM.GPU.A10.1", 1), ("VM.GPU.A10.2", 2), ("BM.GPU.H100.8", 8), ("X", 1)])
def test_the_gpus_of_a_shape_are_in_its_name(shape: str, gpus: int) -> None:
    assert gpus_per_node(shape) == gpus
