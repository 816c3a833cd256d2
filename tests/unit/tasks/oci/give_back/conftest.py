"""A successful run on a pool of two nodes, its confirmed plan, and a service that resizes the pool at once."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records.nodes import NodesRecord
from bench.records.run import RunRecord
from tasks.fleet import node_use
from tasks.fleet import nodes as run_nodes
from tasks.settings.load import Settings, load
from tests.support.kubernetes.listed_cluster import FakeCluster
from tests.support.machines.fake_tenancy import FakeTenancy, ocid
from tests.support.reports.training_run import write_successful_run

Make = Callable[..., Context]
POOL = f"/nodePools/{ocid('nodepool', 'pool')}"
TEXT = "fleet: {kind: pods, size: 2}\ntrain: {then: shrink, then_nodes: 0}\n"
OWNED = {"app.kubernetes.io/managed-by": "qlora-fleet", "app.kubernetes.io/part-of": "qlora-fleet"}


def pod(name: str, node: str = "n1", *, namespace: str = "n", component: str = "worker", gpus: str = "1") -> Any:
    labels = OWNED | {"app.kubernetes.io/component": component} if namespace == "n" else {}
    index = {"batch.kubernetes.io/job-completion-index": "0"}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels | index},
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]},
        "status": {"phase": "Running"},
    }


def job(component: str) -> Any:
    template = {"metadata": {"labels": {"app.kubernetes.io/component": component}}}
    metadata = {"name": component, "labels": OWNED}
    return {"kind": "Job", "metadata": metadata, "spec": {"template": template}, "status": {"active": 1}}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tenancy: FakeTenancy) -> FakeCluster:
    """Provide a cluster with the pool's two nodes and the fleet's workers, and a service that resizes at once."""
    from tasks.oci import nodes  # imports the SDK

    live = [
        {"metadata": {"name": name}, "spec": {"providerID": ocid("instance", name)}, "status": {}}
        for name in ("n1", "n2")
    ]
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "budget", "labels": OWNED}}
    objects = {"Job": [job("worker")], "PodDisruptionBudget": [budget]}
    fake = FakeCluster(live_nodes=live, fleet_pods=[pod("bench-0")], objects=objects)

    @contextlib.contextmanager
    def open_cluster(*_: object, **__: object) -> Iterator[FakeCluster]:
        yield fake

    monkeypatch.setattr(run_nodes, "open_cluster", open_cluster)
    monkeypatch.setattr(node_use, "pending_runs", lambda *_: [])
    monkeypatch.setattr(node_use, "foreign_active_jobs", lambda *_, **__: [])
    monkeypatch.setattr(nodes, "POLL_INTERVAL_SEC", 0.0)
    tenancy.resizes = True
    tenancy.resources.work_requests = [{"status": "SUCCEEDED"}]
    return fake


@pytest.fixture
def settings(context: Make) -> Settings:
    return load(context(text=TEXT))


@pytest.fixture
def folder(settings: Settings) -> Path:
    """Provide a collected, successful training with a confirmed plan for its nodes."""
    folder = write_successful_run(settings.results_folder / "r")
    run_nodes.save_plan(run_nodes.plan(settings, "train", yes=True), RunRecord.read(folder / "run.json"), folder)
    return folder


@pytest.fixture
def shrink(settings: Settings, folder: Path) -> Callable[[], None]:
    return lambda: run_nodes.give_back(settings, RunRecord.read(folder / "run.json"), folder)


def record(folder: Path) -> NodesRecord:
    return NodesRecord.read(folder / "nodes.json")


def puts(tenancy: FakeTenancy) -> int:
    return tenancy.count_requests("^PUT")
