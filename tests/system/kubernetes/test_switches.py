"""Every fault switch works as documented, so that other tests can rely on it."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubernetes import Cluster

SHELL = ("exec", "worker", "-i", "--", "sh", "-c")


def spec(*argv: str, **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.local/busybox:1", "command": list(argv)}
    tolerations = [
        {"operator": "Exists", "tolerationSeconds": 300, "effect": "NoExecute"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
    ]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "tolerations": tolerations,
        "containers": [container],
        **more,
    }


def pod(*argv: str, **more: Any) -> dict[str, Any]:
    """A pod named worker."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}, "spec": spec(*argv, **more)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, toleration_scale=0.001) as made:
        yield made


@pytest.fixture
def worker(cluster: Cluster) -> Iterator[str]:
    """A pod on node-0; its name."""
    cluster.apply(pod("sleep", "3600", nodeSelector={"kubernetes.io/hostname": "node-0"}))
    cluster.wait_for_pod("worker")
    yield "worker"
    cluster.faults.clear()
    if cluster.pod("worker") is not None:
        cluster.faults.delete_pod("worker", grace=0)
    cluster.wait_until(lambda: cluster.pod("worker") is None, "the worker to be gone")


@pytest.mark.parametrize("cut", [0, 1, 150_000, 299_999, 300_000])
def test_a_stream_is_cut_after_the_exact_number_of_bytes(cluster: Cluster, worker: str, cut: int) -> None:
    cluster.faults.exec("close-1000-without-status", pod=worker, nth=2, after_stdout_bytes=cut)
    ends = [cluster.kubectl(*SHELL, "head -c 300000 /dev/zero") for _ in range(3)]
    assert [(end.returncode, len(end.stdout), end.stderr) for end in ends] == [
        (0, 300_000, b""),
        (0, cut, b""),
        (0, 300_000, b""),
    ]
    assert cluster.faults.strike_counts()["execs"] == 1


def test_input_is_cut_and_the_command_succeeds(cluster: Cluster, worker: str) -> None:
    cluster.faults.exec("stdin-cut", pod=worker, after_stdin_bytes=70_000)
    completed = cluster.kubectl(*SHELL, "wc -c", stdin=bytes(200_000))
    assert (completed.returncode, completed.stdout.strip()) == (0, b"70000")


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


def test_a_stopped_server_refuses_and_restarts_with_the_same_pods(cluster: Cluster, worker: str) -> None:
    cluster.faults.stop_server()
    assert b"was refused" in cluster.kubectl("get", "pods").stderr
    cluster.faults.start_server()
    assert cluster.kubectl("get", "pods", "-o", "name").stdout == f"pod/{worker}\n".encode()


def test_a_restarted_kubelet_ends_streams_with_exit_0_and_keeps_its_pods(cluster: Cluster, worker: str) -> None:
    running = cluster.start_kubectl(*SHELL, "echo started; sleep 300; echo never")
    assert running.stdout is not None
    assert running.stdout.readline() == b"started\n"
    cluster.faults.restart_kubelet("node-0", seconds=0.5)
    assert running.communicate(timeout=60) == (b"", b"")
    assert running.returncode == 0
    cluster.wait_until(lambda: cluster.kubectl(*SHELL, "true").returncode == 0, "the kubelet to be back")
    assert ["sleep", "300"] in cluster.processes(worker).values()


@pytest.mark.parametrize(("fault", "reason"), [("oom_kill", "OOMKilled"), ("evict", "Error")])
def test_a_killed_pod_has_the_reason(cluster: Cluster, worker: str, fault: str, reason: str) -> None:
    getattr(cluster.faults, fault)(worker)
    status = cluster.wait_for_pod(worker, phase="Failed")["status"]
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == (reason, 137)
    assert status.get("reason") == ("Evicted" if fault == "evict" else None)


def test_an_index_on_a_lost_node_is_replaced_while_its_old_pod_stays_terminating(cluster: Cluster) -> None:
    template = {"metadata": {"labels": {"app": "bench"}}, "spec": spec("sleep", "3600")}
    job = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "backoffLimitPerIndex": 3,
        "template": template,
    }
    cluster.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bench"}, "spec": job})

    def pods() -> list[dict[str, Any]]:
        return [pod for pod in cluster.objects("pods", "default") if pod["metadata"]["name"].startswith("bench-0-")]

    def running() -> list[dict[str, Any]]:
        return [pod for pod in pods() if pod.get("status", {}).get("phase") == "Running"]

    (first,) = cluster.wait_until(running, "the pod")
    node = first["spec"]["nodeName"]
    cluster.faults.lose_node(node, processes_die=False)
    both = cluster.wait_until(lambda: pods() if len(pods()) == 2 else None, "the replacement")
    old, new = sorted(both, key=lambda pod: pod["metadata"]["name"] != first["metadata"]["name"])
    assert old["metadata"]["deletionTimestamp"]
    assert old["status"]["phase"] == "Running"
    new = cluster.wait_for_pod(new["metadata"]["name"])
    assert new["spec"]["nodeName"] != node
    assert new["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] == "0"
    cluster.faults.restore_node(node)
    cluster.wait_until(lambda: len(pods()) == 1, "the old pod to end with its node's return")
    assert cluster.kubectl("delete", "job", "bench").returncode == 0


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
