"""Ids of planned runs; planning runs git as a process."""

import dataclasses
from pathlib import Path

import pytest

from tasks.fleet.plan import new_record
from tasks.settings.layers import Settings


def test_runs_over_pods_have_unique_ids_also_when_planned_in_the_same_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Operators do not coordinate, and jobs in the pods are found by the run's id."""
    monkeypatch.setattr("tasks.fleet.plan.cluster_location", lambda _: {"context": "dev"})
    settings = Settings(root=tmp_path)
    over_pods = dataclasses.replace(settings, fleet=dataclasses.replace(settings.fleet, kind="pods"))
    names = [new_record(over_pods, "quick", [], [], inputs={}).run_id for _ in range(8)]
    assert len(set(names)) == 8
    assert all("-quick-" in name for name in names)
    assert new_record(settings, "quick", [], [], inputs={}).run_id.endswith("-quick")
