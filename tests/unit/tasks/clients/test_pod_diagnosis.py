"""Diagnosis of the fleet's pods while a run waits for a worker, from a fake cluster."""

from typing import Any

import pytest

from remote.cluster.kubeconfig import Target
from remote.hosts.pods.kubectl import Unreachable
from tasks.clients import workers

TARGET = Target(context="dev", cluster="c", user="u", namespace="n")
PULL_ERROR = {
    "name": "bench",
    "restartCount": 0,
    "state": {"waiting": {"reason": "ImagePullBackOff", "message": "fra.ocir.io/ns/fleet:2: not found"}},
}


class FakeCluster:
    """A Job of one index whose pod cannot pull its image."""

    answers = True
    reads = 0

    def __init__(self, _: object) -> None:
        type(self).reads += 1

    def list_fleet_objects(self, kind: str) -> list[dict[str, Any]]:
        if not self.answers:
            raise Unreachable("no route to host")
        job = {"metadata": {"name": "bench", "uid": "j"}, "spec": {"completions": 1}, "status": {"active": 1}}
        return [job] if kind == "Job" else []

    def pods(self) -> list[dict[str, Any]]:
        labels = {"batch.kubernetes.io/job-name": "bench", "batch.kubernetes.io/job-completion-index": "0"}
        container = {"name": "bench", "image": "fra.ocir.io/ns/fleet:2"}
        return [
            {
                "metadata": {"name": "bench-0-abc", "uid": "p", "labels": labels},
                "spec": {"nodeName": "n", "containers": [container]},
                "status": {"phase": "Pending", "containerStatuses": [PULL_ERROR]},
            }
        ]

    def events(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture
def diagnosis(monkeypatch: pytest.MonkeyPatch) -> workers.PodDiagnosis:
    monkeypatch.setattr(workers, "Cluster", FakeCluster)
    monkeypatch.setattr(workers, "resolve", lambda **_: TARGET)
    FakeCluster.answers, FakeCluster.reads = True, 0
    return workers.PodDiagnosis(TARGET)


def test_a_pod_that_cannot_start_is_named_and_read_once(diagnosis: workers.PodDiagnosis) -> None:
    assert [str(diagnosis.read()).partition(":")[0] for _ in range(3)] == ["pod bench-0-abc"] * 3
    assert FakeCluster.reads == 1


def test_a_silent_cluster_is_no_diagnosis(diagnosis: workers.PodDiagnosis) -> None:
    FakeCluster.answers = False
    assert diagnosis.read() is None
