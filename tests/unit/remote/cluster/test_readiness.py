"""Tests of the pod of each index of a Job, and of a fleet's readiness."""

from typing import Any

from remote.cluster.diagnosis.readiness import build_fleet


def job(name: str = "bench", completions: int = 2, **status: Any) -> dict[str, Any]:
    spec = {"completions": completions, "parallelism": completions}
    return {"metadata": {"name": name, "uid": name}, "spec": spec, "status": {"active": completions, **status}}


def pod(
    name: str, index: int, *, ready: bool = True, created: int = 0, job_name: str = "bench", **changes: Any
) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-name": job_name, "batch.kubernetes.io/job-completion-index": str(index)}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": labels | changes.pop("labels", {}),
            "creationTimestamp": f"2026-11-20T00:00:{created:02d}Z",
            **changes.pop("metadata", {}),
        },
        "spec": {"nodeName": "node-0", "containers": []},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "bench", "restartCount": 1, "state": {"running": {}}}],
            **changes,
        },
    }


def test_a_fleet_is_up_when_every_index_has_a_ready_pod() -> None:
    state = build_fleet([job()], [pod("a", 0), pod("b", 1)], [], [])
    assert state.is_up
    assert [(row.index, row.pod, row.state, row.restarts) for row in state.rows] == [
        (0, "a", "Ready", 1),
        (1, "b", "Ready", 1),
    ]


def test_an_index_without_a_pod_is_a_place_to_fill() -> None:
    state = build_fleet([job()], [pod("a", 0)], [], [])
    assert (state.up_count, state.is_up, state.rows[1].state) == (1, False, "no pod yet")


def test_two_pods_with_one_index_are_one_place_and_the_live_one_holds_it() -> None:
    going = pod("old", 0, metadata={"deletionTimestamp": "2026-11-20T00:01:00Z"})
    state = build_fleet([job(completions=1)], [going, pod("new", 0, created=5)], [], [])
    assert [(row.pod, row.is_up) for row in state.rows] == [("new", True)]


def test_a_ready_pod_is_taken_before_a_newer_one_that_is_not() -> None:
    state = build_fleet([job(completions=1)], [pod("old", 0), pod("new", 0, ready=False, created=5)], [], [])
    assert state.rows[0].pod == "old"


def test_a_pod_on_a_dead_node_says_running_and_is_not_up() -> None:
    event = {"involvedObject": {"uid": "a"}, "reason": "NodeNotReady", "message": "Node is not ready"}
    state = build_fleet([job(completions=1)], [pod("a", 0, ready=False)], [], [event])
    assert not state.is_up
    assert [finding.cause for finding in state.all_findings] == ["node-not-ready"]


def test_training_that_is_done_counts_as_up_and_a_worker_that_ended_does_not() -> None:
    done = {"phase": "Succeeded", "ready": False}
    assert build_fleet(
        [job(completions=1)], [pod("a", 0, labels={"app.kubernetes.io/component": "train"}, **done)], [], []
    ).is_up
    assert not build_fleet([job(completions=1)], [pod("a", 0, **done)], [], []).is_up


def test_an_index_that_is_completed_needs_no_pod() -> None:
    state = build_fleet([job(completions=4, completedIndexes="0,2-3")], [], [], [])
    assert [row.is_up for row in state.rows] == [True, False, True, True]


def test_what_keeps_a_job_from_its_pods_stands_before_the_pods() -> None:
    refused = {
        "involvedObject": {"uid": "bench"},
        "reason": "FailedCreate",
        "message": 'Error creating: pods "x" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=1',
    }
    claim = {"metadata": {"name": "shared", "uid": "c"}, "status": {"phase": "Lost"}}
    state = build_fleet([job(active=0)], [], [claim], [refused])
    assert [finding.cause for finding in state.all_findings] == ["quota", "volume-lost"]


def test_pods_of_others_and_nothing_at_all_are_no_fleet() -> None:
    assert not build_fleet([], [pod("a", 0)], [], []).is_up
    assert build_fleet([job("train", 1)], [pod("a", 0)], [], []).rows[0].pod is None
