"""Tests of the tests' own API server where no other test would miss the effect: exact bytes, a full disk, its end."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubernetes import Cluster

SHELL = ("exec", "worker", "-i", "--", "sh", "-c")


def spec(*argv: str, **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.local/busybox:1", "command": list(argv)}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **more,
    }


def pod(*argv: str, **more: Any) -> dict[str, Any]:
    """A pod named worker."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec(*argv, **more)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=1, tainted=False) as made:
        yield made


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[str]:
    """A pod on node-0; its name."""
    cluster.apply(pod("sleep", "3600"))
    cluster.wait_for_pod("worker")
    yield "worker"
    cluster.faults.clear()
    if cluster.pod("worker") is not None:
        cluster.faults.delete_pod("worker", grace=0)
    cluster.wait_until(lambda: cluster.pod("worker") is None, "the worker to be gone")


@pytest.mark.parametrize("cut", [0, 150_000, 300_000])
def test_a_stream_is_cut_after_the_exact_number_of_bytes(cluster: Cluster, worker: str, cut: int) -> None:
    def read() -> tuple[int, int, bytes]:
        end = cluster.kubectl(*SHELL, "head -c 300000 /dev/zero")
        return end.returncode, len(end.stdout), end.stderr

    def read_again() -> tuple[int, int, bytes]:
        """Read without a fault; on a busy machine kubectl itself has once lost the whole output."""
        return next((end for end in (read() for _ in range(3)) if end[1]), (0, 0, b""))

    whole = (0, 300_000, b"")
    assert read_again() == whole
    cluster.faults.exec("close-1000-without-status", pod=worker, nth=2, after_stdout_bytes=cut)
    assert read()[0] == 0
    assert read() == (0, cut, b"")
    assert read_again() == whole
    assert cluster.faults.strike_counts()["execs"] == 1


def test_a_frozen_stream_sends_nothing_and_its_process_lives(cluster: Cluster, worker: str) -> None:
    cluster.faults.exec("freeze", pod=worker, after_stdout_bytes=3)
    frozen = cluster.start_kubectl(*SHELL, "echo said; exec sleep 1234")
    assert frozen.stdout is not None
    assert frozen.stdout.read(3) == b"sai"
    with pytest.raises(subprocess.TimeoutExpired):
        frozen.wait(2)
    frozen.kill()
    frozen.communicate()
    assert ["sleep", "1234"] in cluster.processes(worker).values()


def test_a_small_disk_can_be_filled() -> None:
    with Cluster(nodes=1, tainted=False, disk_bytes=2**20) as cluster:
        made = pod("sleep", "3600", volumes=[{"name": "w", "emptyDir": {}}])
        made["spec"]["containers"][0]["volumeMounts"] = [{"name": "w", "mountPath": "/workspace"}]
        cluster.apply(made)
        cluster.wait_for_pod("worker")
        completed = cluster.kubectl(*SHELL, "head -c 3000000 /dev/zero > /workspace/f")
        assert completed.returncode != 0
        assert b"No space left on device" in completed.stderr


def test_a_server_cleans_up_completely() -> None:
    with Cluster(nodes=1, tainted=False) as cluster:
        cluster.apply(pod("sleep", "4321"))
        cluster.wait_for_pod("worker")
        processes = cluster.processes("worker")
        folder = cluster.kubeconfig.parent
    assert ["sleep", "4321"] in processes.values()
    assert not folder.exists()
    alive = subprocess.run(("ps", "-o", "pid=", "-p", ",".join(map(str, processes))), capture_output=True, check=False)
    assert alive.stdout.strip() == b""
