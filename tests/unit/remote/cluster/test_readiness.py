"""Tests of the pod of each index of a Job, and of a fleet's readiness; readiness.yaml has the cases."""

from typing import Any

import pytest

from remote.cluster.diagnosis.readiness import build_fleet
from tests.support.cases import Case, load_cases


def make_job(completions: int = 2, active: int | None = None, completed: str = "") -> dict[str, Any]:
    status = {"active": completions if active is None else active, "completedIndexes": completed}
    spec = {"completions": completions, "parallelism": completions}
    return {"metadata": {"name": "bench", "uid": "bench"}, "spec": spec, "status": status}


def make_pod(case: Case) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": case.get("job", "bench")}
    labels |= {"batch.kubernetes.io/job-completion-index": str(case["index"])}
    state = {"terminated": {"exitCode": 0, "message": case["end"]}} if "end" in case else {"running": {}}
    created = f"2026-11-20T00:00:{case.get('created', 0):02d}Z"
    return {
        "metadata": {
            "name": case["name"],
            "uid": case["name"],
            "labels": labels | {"app.kubernetes.io/component": case.get("component", "worker")},
            "creationTimestamp": created,
            **({"deletionTimestamp": created} if case.get("deleting") else {}),
        },
        "spec": {"nodeName": "node-0", "containers": []},
        "status": {
            "phase": case.get("phase", "Running"),
            "conditions": [{"type": "Ready", "status": str(case.get("ready", True))}],
            "containerStatuses": [{"name": "bench", "restartCount": 1, "state": state}],
        },
    }


@pytest.mark.parametrize("case", load_cases(__file__, "readiness.yaml"))
def test_the_state_of_a_fleet(case: Case) -> None:
    pods, job = list(map(make_pod, case.get("pods", []))), make_job(**case.get("job", {}))
    state = build_fleet([job], pods, case.get("claims", []), case.get("events", []))
    expected = {"causes": [], **case["expected"]}
    assert [[row.pod, row.state] for row in state.rows] == expected["rows"]
    assert [finding.cause for finding in state.all_findings] == expected["causes"]
    assert (state.is_up, state.up_count) == (expected["is_up"], sum(row.is_up for row in state.rows))


def test_a_job_of_too_many_pods_is_shown_in_part() -> None:
    assert len(build_fleet([make_job(1 << 31)], [], [], []).rows) == 10_000


def test_no_job_is_no_fleet() -> None:
    assert not build_fleet([], [make_pod({"name": "a", "index": 0})], [], []).is_up
