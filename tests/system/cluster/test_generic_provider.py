"""Tests of provider generic: no output of a command on any Kubernetes names a cloud.

The nodes of the tests' cluster have the labels of OKE, so that the provider is the named one, not the found one.
"""

import pytest

from tests.support.cloud_words import CLOUD_WORDS
from tests.system.cluster.conftest import DIGEST, Operator


@pytest.fixture
def generic(operator: Operator) -> Operator:
    """Provide an operator with an image in a registry of no provider."""
    operator.settings["registry"] = {"user": "team+robot"}
    operator.set_cluster(provider="generic", image=f"registry.example.com/team/{operator.namespace}@{DIGEST}")
    return operator


def test_no_output_names_a_cloud(generic: Operator) -> None:
    password = f"{generic.password}\n"
    nfs, foreign = {"handle": "10.0.0.1:/export"}, {"handle": "ocid1.filesystem:10.0.0.1:/export"}
    outputs = [generic.inv("nodes"), generic.inv("deploy", code=2)]
    outputs += [generic.inv("deploy", stdin=password)]
    assert "2 of 2 pods are up" in outputs[-1]
    (job,) = generic.objects("jobs.batch")
    pod = job["spec"]["template"]["spec"]
    assert not pod.get("nodeSelector")
    assert pod["imagePullSecrets"] == [{"name": "registry-login"}]
    outputs += [generic.inv("doctor", "--only", "settings,cluster,nodes,pods"), generic.inv("train", code=2)]
    outputs += [generic.inv("teardown", "--yes")]

    generic.set_cluster(ready_timeout_sec=3.0)
    generic.set_cluster(image=f"registry.example.com/team/{generic.namespace}-x@{DIGEST}")
    generic.cluster.faults.fail_pulls(generic.image, "token-401-wrong-user-form")
    outputs += [generic.inv("deploy", stdin=password, code=3), generic.inv("teardown", "--yes")]

    generic.set_cluster(preemptible=True)
    outputs += [generic.inv("deploy", code=2)]
    generic.set_cluster(preemptible=False, volume=nfs, instance_type="missing")
    outputs += [generic.inv("deploy", "--dry-run"), generic.inv("deploy", stdin=password, code=1)]
    assert "persistentvolume/" in outputs[-2]
    assert [output for output in outputs if CLOUD_WORDS.search(output)] == []

    generic.set_cluster(volume=foreign)
    assert "SERVER:/EXPORT" in generic.inv("deploy", code=2)
    generic.set_cluster(provider="nowhere")
    assert "generic, oci, auto" in generic.inv("deploy", code=2)
