"""What tests type `inv` against when the fleet is pods: the tests' own cluster, and the settings that lead to it."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubernetes import Cluster
from tests.support.paths import ROOT
from tests.support.pods import SELECTOR, SHARED, alive, job, skewed_clock, volume

# A rank's address is its pod's, and all pods of the tests' cluster are on this machine.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def fixtures(
    size: int, put_into: Callable[[Path], Path], *, grace_sec: int = 2, clock_offset_sec: int = 0, **options: Any
) -> tuple[Any, Any]:
    """Two fixtures for a module: `workspace`, the copy of bench/ that the pods run, changed by `put_into`; `cluster`, a
    pod on each of `size` nodes, whose clocks are wrong by `clock_offset_sec`. `options` are those of `Cluster`.
    """

    @pytest.fixture(scope="module")
    def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("workspace")
        shutil.copytree(ROOT / "bench", folder / "bench")
        put_into(folder)
        return folder

    @pytest.fixture(scope="module")
    def cluster(
        tiny_model: Path, tiny_data: Path, workspace: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Cluster]:
        seen, environment = [tiny_model, tiny_data.parent, workspace], LOOPBACK
        if clock_offset_sec:
            library = skewed_clock(tmp_path_factory.mktemp("clock"))
            seen.append(library.parent)
            environment = LOOPBACK | {"LD_PRELOAD": str(library), "CLOCK_OFFSET_SEC": str(clock_offset_sec)}
        with Cluster(nodes=size, image_paths=seen, image_environment=environment, **options) as cluster:
            cluster.apply(*volume(), job(size, grace_sec=grace_sec))
            await_pods(cluster, size)
            yield cluster

    return workspace, cluster


def await_pods(cluster: Cluster, size: int) -> None:
    """Until every index has a pod that is ready."""
    cluster.wait_until(lambda: len(live(cluster)) == size, "a pod for every index")
    ready = "--for=condition=Ready", "--selector", SELECTOR
    assert cluster.kubectl("wait", "pods", *ready, "--timeout=60s").returncode == 0


def settings_of(cluster: Cluster, workspace: Path, label: str) -> dict[str, Any]:
    """The sections `fleet` and `cluster`; what is `label`led is apart from what other tests leave in the same pods."""
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


def live(cluster: Cluster) -> list[str]:
    """The names of the pods that run and are not being deleted."""
    return [pod["metadata"]["name"] for pod in alive(cluster)]


def pod_of(cluster: Cluster, worker: str) -> str:
    """The pod of this worker that lives; "" while it is replaced."""
    index = worker.rpartition("-")[2]
    return next((name for name in live(cluster) if name.startswith(f"bench-{index}-")), "")
