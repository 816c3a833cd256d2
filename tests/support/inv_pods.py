"""Fixtures and settings for tests that run `inv` with a fleet of pods in the fake cluster."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.pods import SELECTOR, SHARED, alive, job, skewed_clock, volume

# A rank uses its pod's address, and all pods of the fake cluster are on this machine.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def make_workspace(factory: pytest.TempPathFactory, *changes: Callable[[Path], Any]) -> Path:
    """Copy bench/ for pods, which run as another user, and apply `changes` to the copy."""
    folder = factory.mktemp("workspace")
    shutil.copytree(ROOT / "bench", folder / "bench")
    for change in changes:
        change(folder)
    folder.chmod(0o755)
    return folder


def fixtures(
    size: int, install_fake: Callable[[Path], Path], *, grace_sec: int = 2, clock_offset_sec: int = 0, **options: Any
) -> tuple[Any, Any]:
    """Make two module fixtures, `workspace` and `cluster`.

    `workspace` is the copy of bench/ that the pods run, changed by `install_fake`. `cluster` has a pod on each of
    `size` nodes, with clocks wrong by `clock_offset_sec`. `options` are those of `Cluster`.
    """

    @pytest.fixture(scope="module")
    def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
        return make_workspace(tmp_path_factory, install_fake)

    @pytest.fixture(scope="module")
    def cluster(
        tiny_model: Path, tiny_data: Path, workspace: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Cluster]:
        image_paths, environment = [tiny_model, tiny_data.parent, workspace], LOOPBACK
        if clock_offset_sec:
            library = skewed_clock(tmp_path_factory.mktemp("clock"))
            image_paths.append(library.parent)
            environment = LOOPBACK | {"LD_PRELOAD": str(library), "CLOCK_OFFSET_SEC": str(clock_offset_sec)}
        with Cluster(nodes=size, image_paths=image_paths, image_environment=environment, **options) as cluster:
            cluster.apply(*volume(), job(size, grace_sec=grace_sec))
            wait_for_pods(cluster, size)
            yield cluster

    return workspace, cluster


def wait_for_pods(cluster: Cluster, size: int) -> None:
    """Wait until every index has a ready pod."""
    cluster.wait_until(lambda: len(live_pods(cluster)) == size, "a pod for every index")
    ready = "--for=condition=Ready", "--selector", SELECTOR
    assert cluster.kubectl("wait", "pods", *ready, "--timeout=60s").returncode == 0


def settings_of(cluster: Cluster, workspace: Path, label: str) -> dict[str, Any]:
    """Return the settings `fleet` and `cluster`; `label` separates this test's files from others in the same pods."""
    pods = {
        "selector": SELECTOR,
        "python": sys.executable,
        "scratch": f"/scratch/{label}",
        "shared": f"{SHARED}/{label}",
        "threads": 1,
    }
    return {
        "fleet": {"kind": "pods", "workspace": str(workspace), "pods": pods},
        "cluster": {"kubeconfig": str(cluster.kubeconfig), "namespace": "default"},
    }


def live_pods(cluster: Cluster) -> list[str]:
    """Return the names of the pods that run and are not being deleted."""
    return [pod["metadata"]["name"] for pod in alive(cluster)]


def pod_of(cluster: Cluster, worker: str) -> str:
    """Return the name of this worker's live pod; "" while it is being replaced."""
    index = worker.rpartition("-")[2]
    return next((name for name in live_pods(cluster) if name.startswith(f"bench-{index}-")), "")
