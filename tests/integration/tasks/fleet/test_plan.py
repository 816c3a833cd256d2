"""Ids of planned runs; planning runs git as a process."""

from pathlib import Path

import pytest

from bench.records import suite
from remote.hosts.local import LocalHost
from tasks.fleet.runner import plan_run
from tasks.settings.load import Settings


def test_runs_over_pods_have_unique_ids_also_when_planned_in_the_same_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Operators do not coordinate, and jobs in the pods are found by the run's id."""
    monkeypatch.setattr("tasks.fleet.runner.cluster_location", lambda _: {"context": "dev"})
    settings = Settings(root=tmp_path)
    over_pods = settings.model_copy(update={"fleet": settings.fleet.model_copy(update={"kind": "pods"})})
    trials = suite("quick", "tiny", "models/m", "data/d.jsonl")
    hosts = [LocalHost(name=worker, workdir=str(tmp_path)) for worker in ("worker-0", "worker-1", "worker-2")]
    names = [plan_run(over_pods, "quick", trials, hosts, inputs={}).run_id for _ in range(8)]
    assert len(set(names)) == 8
    assert all("-quick-" in name for name in names)
    assert plan_run(settings, "quick", trials, hosts, inputs={}).run_id.endswith("-quick")
