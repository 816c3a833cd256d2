"""`train.then_command`: a provider without node pools; the command gets the plan, and a failure is tried again."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invoke import Context

from bench.records.nodes import NodesRecord, NodesState
from bench.records.run import RunRecord
from remote.providers import GENERIC
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError
from tasks.fleet import node_use, nodes
from tasks.settings.load import Settings, load
from tests.support.kubernetes.listed_cluster import FakeCluster
from tests.support.reports.training_run import write_successful_run

TEXT = "fleet: {{kind: pods, size: 2}}\ntrain: {{then: shrink, then_command: {argv}}}\n"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    node = {"metadata": {"name": "n1"}, "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "1"}}}
    fake = FakeCluster(live_nodes=[node], provider=GENERIC)

    @contextlib.contextmanager
    def open_cluster(*_: object, **__: object) -> Iterator[FakeCluster]:
        yield fake

    monkeypatch.setattr(nodes, "open_cluster", open_cluster)
    monkeypatch.setattr(node_use, "foreign_active_jobs", lambda *_, **__: [])
    return fake


def successful_run(settings: Settings) -> Path:
    folder = write_successful_run(settings.results_folder / "r")
    nodes.save_plan(nodes.plan(settings, "train", yes=True), RunRecord.read(folder / "run.json"), folder)
    return folder


def test_the_command_runs_once_with_the_plan(
    context: Callable[..., Context], cluster: FakeCluster, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="then_command"):
        nodes.plan(load(context(text=TEXT.format(argv=[]))), "train", yes=True)
    plans, allowed = tmp_path / "plans", tmp_path / "allowed"
    script = 'cat >> "$1"; echo >> "$1"; echo no right >&2; test -e "$2"'
    settings = load(context(text=TEXT.format(argv=json.dumps(["sh", "-c", script, "sh", str(plans), str(allowed)]))))
    folder = successful_run(settings)
    run = RunRecord.read(folder / "run.json")
    with pytest.raises(TaskFailed, match=r"exit code 1: no right; `inv collect --run=r`"):
        nodes.give_back(settings, run, folder)
    assert NodesRecord.read(folder / "nodes.json").state is NodesState.REQUESTED
    allowed.touch()
    cluster.live_nodes.clear()
    for _ in range(2):
        nodes.give_back(settings, run, folder)
    assert NodesRecord.read(folder / "nodes.json").state is NodesState.DONE
    assert [json.loads(line)["run_id"] for line in plans.read_text().splitlines()] == ["r", "r"]


def test_the_command_does_not_run_while_others_use_a_gpu_node(
    context: Callable[..., Context], cluster: FakeCluster, tmp_path: Path
) -> None:
    settings = load(context(text=TEXT.format(argv=json.dumps(["touch", str(tmp_path / "ran")]))))
    folder = successful_run(settings)
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    other = {"metadata": {"name": "x", "namespace": "b"}, "spec": {"nodeName": "n1", "containers": [limits]}}
    assert cluster.others is not None
    cluster.others.append(other)
    with pytest.raises(ConfirmationRequired, match="pod b/x"):
        nodes.give_back(settings, RunRecord.read(folder / "run.json"), folder)
    assert not (tmp_path / "ran").exists()
