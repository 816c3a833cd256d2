"""One cluster for tests that any cluster can pass: the tests' own, or the one that `--kubeconfig` names."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.kubernetes.cluster import Faults
from tests.support.kubernetes.real_cluster import AnyCluster, given_or_own


@pytest.fixture(scope="module")
def kube(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    """The cluster of this run."""
    with given_or_own(pytestconfig, tmp_path_factory.mktemp("kube-cache"), nodes=2) as found:
        yield found


@pytest.fixture
def namespace(kube: AnyCluster) -> Iterator[str]:
    """A namespace of this test alone."""
    name = f"qlora-fleet-test-{secrets.token_hex(4)}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    assert kube.kubectl("delete", "namespace", name, "--wait=false").returncode == 0


@pytest.fixture
def faults(kube: AnyCluster) -> Iterator[Faults]:
    """The switches; of another cluster, those that it has."""
    yield kube.faults
    kube.faults.clear()
