"""`inv bench` over pods: real kubectl, the tests' own cluster; in the pods the trials of several ranks are real, the
others compute nothing.

Not covered: GPUs, an image, a network between the pods other than this machine's own.
"""

import json
from pathlib import Path

import pytest

from tests.support import inv_pods
from tests.support.hosts.fake_worker_training import hold_file, install_fake_training
from tests.support.kubernetes import Cluster
from tests.support.thorough import only_thorough

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS = 2


workspace, cluster = inv_pods.fixtures(PODS, install_fake_training)


@pytest.fixture
def pods(project, cluster: Cluster, workspace: Path, request: pytest.FixtureRequest):
    """A project whose fleet is the cluster's pods."""
    inv_pods.wait_for_pods(cluster, PODS)
    settings = inv_pods.settings_of(cluster, workspace, f"b{abs(hash(request.node.name))}")
    (project.folder / "pods.yaml").write_text(json.dumps(settings))
    project.options = ("-f", "pods.yaml")
    yield project
    cluster.faults.clear()


def assert_each_rank_measured(project, ranks: int) -> None:
    measured = {(m.name, m.context.get("rank")) for m in project.results()[f"ddp-{ranks}"].measurements}
    assert {("step_time_sec", rank) for rank in range(ranks)} <= measured


def test_an_operator_is_killed_a_pod_dies_and_every_result_comes_home(pods, cluster: Cluster, workspace: Path) -> None:
    hold = hold_file(workspace)
    hold.touch()
    first = pods.start("bench", "--quick", "--only=baseline")
    started = pods.wait_until(lambda: len(pods.events("started")) == 2 and pods.events("started"), "two trials")
    pods.kill(first)
    victim, other = started
    cluster.faults.delete_pod(inv_pods.pod_of(cluster, victim["worker"]), grace=0)
    hold.unlink()

    pods.inv("bench", "--resume")
    assert set(pods.statuses().values()) == {"SUCCEEDED"}
    assert len([event for event in pods.events("started") if event["trial_id"] == other["trial_id"]]) == 1

    cluster.faults.delete_pod(inv_pods.pod_of(cluster, other["worker"]), grace=0)  # it was done; only its pod is gone
    pods.inv("collect")
    for event in started:
        folder = pods.run_folder() / "trials" / event["trial_id"]
        assert (folder / "telemetry.csv").exists()
        assert pods.results()[event["trial_id"]].worker.startswith("worker-")

    (pods.folder / "pods.yaml").write_text((pods.folder / "pods.yaml").read_text().replace('"default"', '"other"'))
    assert "was started with cluster.namespace: default, found other" in pods.inv_error("bench", "--resume")


@only_thorough
def test_a_pod_lost_from_a_gang_stops_all_ranks_and_the_gang_starts_again(pods, cluster: Cluster) -> None:
    running = pods.start(
        *("bench", "--suite=distributed", "--only=ddp-2"),
        INVOKE_FLEET_SIZE="2",
        INVOKE_BENCH_MEASURED_STEPS="4",
        QLORA_FLEET_SILENCE_SEC="5",
    )

    def ranks(worker: str) -> list[int]:
        processes = cluster.processes(inv_pods.pod_of(cluster, worker))
        return [pid for pid, argv in processes.items() if "bench.workloads.distributed_rank" in argv]

    pods.wait_until(lambda: ranks("worker-0") and ranks("worker-1"), "ranks in both pods")
    cluster.faults.delete_pod(inv_pods.pod_of(cluster, "worker-1"), grace=0)
    pods.wait_for_exit(running, timeout_sec=300)
    assert pods.statuses() == {"ddp-2": "SUCCEEDED"}
    (retried,) = pods.events("retried")
    assert "rank 1" in retried["reason"]
    assert [event["attempt"] for event in pods.events("started")] == [1, 2]
    assert_each_rank_measured(pods, 2)


def test_a_credential_program_that_fails_is_an_error_of_bench_and_of_monitor(pods, cluster: Cluster) -> None:
    settings = pods.folder / "pods.yaml"
    kubeconfig = cluster.kubeconfig_with_program()
    settings.write_text(settings.read_text().replace(f'"{cluster.kubeconfig}"', f'"{kubeconfig}"'))
    cluster.break_program()
    try:
        bench_error = pods.inv_error("bench", "--quick")
        monitor_error = pods.inv_error("monitor", code=3)
    finally:
        cluster.repair_program()
    assert not pods.ledger()
    for line in (bench_error, monitor_error):
        assert "getting credentials: exec: executable" in line
        assert "credential program" in line
        assert "log in again" in line
    assert "2 of 2 workers" in monitor_error
