"""One cluster for tests that any cluster can pass: the tests' own, or the one that `--kubeconfig` names."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.kubernetes import Cluster, unavailable
from tests.support.kubernetes.cluster import Faults
from tests.support.kubernetes.given import AnyCluster, given


@pytest.fixture(scope="module")
def kube(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyCluster]:
    """The cluster of this run."""
    other = given(pytestconfig, tmp_path_factory.mktemp("kube-cache"))
    if other is not None:
        yield other
        return
    if why := unavailable():
        pytest.skip(why)
    with Cluster(nodes=2) as made:
        yield made


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
