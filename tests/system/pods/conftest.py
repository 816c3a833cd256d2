"""The cluster for tests that any cluster can pass: the tests' own, or the one of `--kubeconfig`."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.kubernetes.cluster import Faults
from tests.support.kubernetes.real_cluster import AnyCluster, real_or_fake_cluster


@pytest.fixture(scope="module")
def kube(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    """The cluster of this run."""
    with real_or_fake_cluster(pytestconfig, tmp_path_factory.mktemp("kube-cache"), nodes=2) as cluster:
        yield cluster


@pytest.fixture
def namespace(kube: AnyCluster) -> Iterator[str]:
    """A namespace for one test."""
    name = f"qlora-fleet-test-{secrets.token_hex(4)}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    assert kube.kubectl("delete", "namespace", name, "--wait=false").returncode == 0


@pytest.fixture
def faults(kube: AnyCluster) -> Iterator[Faults]:
    """The fault switches that the cluster has."""
    yield kube.faults
    kube.faults.clear()
