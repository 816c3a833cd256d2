"""What of this subject starts a process."""

from pathlib import Path

import pytest

from bench.records import suite
from remote.hosts.local import LocalHost
from tasks.fleet.runner import plan_of
from tasks.settings.load import Settings


def test_runs_over_pods_have_names_of_their_own_also_when_planned_in_the_same_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two operators' laptops know nothing of each other, and jobs in the pods go by the run's name."""
    monkeypatch.setattr("tasks.fleet.runner.where", lambda _: {"context": "dev"})
    settings = Settings(root=tmp_path)
    over_pods = settings.model_copy(update={"fleet": settings.fleet.model_copy(update={"kind": "pods"})})
    trials = suite("quick", "tiny", "models/m", "data/d.jsonl")
    hosts = [LocalHost(name=worker, workdir=str(tmp_path)) for worker in ("worker-0", "worker-1", "worker-2")]
    names = [plan_of(over_pods, "quick", trials, hosts, inputs={}).run_id for _ in range(8)]
    assert len(set(names)) == 8
    assert all("-quick-" in name for name in names)
    assert plan_of(settings, "quick", trials, hosts, inputs={}).run_id.endswith("-quick")
