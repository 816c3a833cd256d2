"""One cluster for tests that any cluster can pass: the tests' own, or the one that `--kubeconfig` names."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster, Kubectl, unavailable
from tests.cluster.cluster import Faults


@pytest.fixture(scope="module")
def kube(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """kubectl on the cluster of this run."""
    given = pytestconfig.getoption("kubeconfig")
    if given:
        yield Kubectl(Path(given).resolve(), tmp_path_factory.mktemp("kube-cache"))
        return
    if why := unavailable():
        pytest.skip(why)
    with Cluster(nodes=2) as made:
        yield made


@pytest.fixture
def namespace(kube: Kubectl) -> Iterator[str]:
    """A namespace of this test alone."""
    name = f"qlora-fleet-test-{secrets.token_hex(4)}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    assert kube.kubectl("delete", "namespace", name, "--wait=false").returncode == 0


@pytest.fixture
def faults(kube: Kubectl) -> Iterator[Faults]:
    """The switches; a real cluster has none."""
    if not isinstance(kube, Cluster):
        pytest.skip("a fault by switch needs the tests' own cluster, and --kubeconfig names another")
    yield kube.faults
    kube.faults.clear()
