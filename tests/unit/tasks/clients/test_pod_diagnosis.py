"""Diagnosis of the fleet's pods while a run waits for a worker, from a fake cluster."""

import pytest

from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.diagnosis.readiness import PodFleet, PodRow
from remote.cluster.kubeconfig import Target
from remote.hosts.pods.kubectl import Unreachable
from tasks.clients import workers

TARGET = Target(context="dev", cluster="c", user="u", namespace="n")


class FakeCluster:
    """A Job of one index whose pod cannot pull its image."""

    answers = True
    reads = 0

    def __init__(self, _: object) -> None:
        type(self).reads += 1

    def pod_fleet(self) -> PodFleet:
        if not self.answers:
            raise Unreachable("no route to host")
        problem = Diagnosis("not-found", "fra.ocir.io/ns/fleet:2: the registry has no such image", "push it")
        return PodFleet(rows=(PodRow(job="bench", index=0, findings=(problem.with_subject("pod bench-0-abc"),)),))

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
