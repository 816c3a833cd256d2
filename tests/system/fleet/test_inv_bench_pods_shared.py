"""Two operators with their own projects, at the same time, over the same two pods, whose clocks are wrong.

Real kubectl, the tests' own cluster, trials that compute nothing. One pod's clock is 7 h ahead of this machine's,
the other's 7 h behind; the kernel's, and so the times of files, cannot be changed by a test and are right.
"""

import contextlib
import datetime
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import inv_pods
from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.kubernetes import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS, OFFSET_SEC = 2, 7 * 3600


workspace, cluster = inv_pods.fixtures(PODS, install_fake_training, clock_offset_sec=OFFSET_SEC)


def use_pods(project: Any, cluster: Cluster, workspace: Path) -> Any:
    """Make the cluster's pods the project's fleet. Both operators see the same folders in the pods."""
    (project.folder / "pods.yaml").write_text(json.dumps(inv_pods.settings_of(cluster, workspace, "fleet")))
    project.options = ("-f", "pods.yaml")
    return project


@pytest.fixture
def operators(project, cluster: Cluster, workspace: Path, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Two laptops."""
    folder = tmp_path / "another laptop"
    shutil.copytree(project.folder, folder, symlinks=True)
    second = type(project)(folder, project.server)
    second.environment |= {name: project.environment[name] for name in ("INVOKE_MODEL_PATH", "INVOKE_DATA_PATH")}
    yield use_pods(project, cluster, workspace), use_pods(second, cluster, workspace)
    second.clean_up()
    cluster.faults.clear()


def running_trials(cluster: Cluster, pod: str) -> set[str]:
    """Return the ids of the trials that currently run in a pod."""
    with contextlib.suppress(RuntimeError):
        processes = cluster.processes(pod).values()
        return {argv[argv.index("--trial-id") + 1] for argv in processes if "--trial-id" in argv and "-c" not in argv}
    return set()


def assert_exactly_its_own_trials(project: Any) -> None:
    assert set(project.statuses().values()) == {"SUCCEEDED"}
    assert {result.run_id for result in project.results().values()} == {project.run_folder().name}
    assert project.events("retried") == []


def test_two_benches_started_at_the_same_time_never_share_a_gpu(operators: tuple[Any, Any], cluster: Cluster) -> None:
    names = [pod["metadata"]["name"] for pod in cluster.objects("pods", "default")]
    began = time.monotonic()
    processes = [operator.start("bench", "--quick", "--only=baseline") for operator in operators]
    shared: list[set[str]] = []
    while any(process.poll() is None for process in processes):
        shared += [trial_ids for name in names if len(trial_ids := running_trials(cluster, name)) > 1]
        time.sleep(0.2)
    took_sec = time.monotonic() - began
    assert shared == [], "two trials in one pod"
    outputs = [process.communicate(timeout=10) for process in processes]
    codes = [process.returncode for process in processes]
    assert 0 in codes, outputs
    # Jobs in pods are found by run id: with equal ids, each operator would take the other's jobs for its own.
    assert codes != [0, 0] or operators[0].run_folder().name != operators[1].run_folder().name
    for operator, code, (out, err) in zip(operators, codes, outputs, strict=True):
        if code == 0:
            assert_exactly_its_own_trials(operator)
        else:  # the other's trials had started before this one checked the workers
            assert code == 3, out + err
            (line,) = err.splitlines()
            assert "busy" in line
            assert operator.ledger() == []

    # The clocks are 14 h apart, and no reported figure depends on them.
    project = operators[codes.index(0)]
    cluster.faults.expire_credentials()
    assert "renew the kubeconfig" in project.inv_error("collect")
    cluster.faults.clear()
    project.inv("collect")
    results = list(project.results().values())
    started = {result.worker: datetime.datetime.fromisoformat(result.started_at or "") for result in results}
    apart = started["worker-0"] - started["worker-1"]
    assert abs(apart.total_seconds() - 2 * OFFSET_SEC) < took_sec + 1
    for result in results:
        assert sum(result.phases.values()) <= (result.wall_time_sec or 0) + 1
        assert 0 < sum(result.steps.step_time_sec) < (result.wall_time_sec or 0) < took_sec
        telemetry = (project.run_folder() / "trials" / result.trial_id / "telemetry.csv").read_text().splitlines()
        at = [float(line.split(",")[telemetry[0].split(",").index("elapsed_sec")]) for line in telemetry[1:]]
        assert at == sorted(at)
        assert at[-1] < took_sec
