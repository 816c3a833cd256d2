"""Tests of a provider that is only registered: a deploy plan is rendered and its doctor checks run."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from invoke import Context

from remote.cluster.manifests import Image, render
from remote.cluster.plan import Verb, plan
from remote.providers import PROVIDERS, Provider, register, registry_provider
from tasks.clients.target_cluster import manifest_values, place_pods
from tasks.doctor.check import CheckContext, Checks, run_check
from tasks.doctor.doctor import all_checks
from tasks.faults import CheckResult, CheckStatus, passed
from tasks.settings.layers import load
from tests.support.paths import ROOT

CHECKS = Checks("dummy")


@CHECKS.register("account", "Is there an account?")
def account(context: CheckContext) -> CheckResult:
    return passed(f"account for {context.settings.cluster.provider}")


class Dummy(Provider):
    name = "dummy"
    pull_secret = "dummy-secret"
    instance_type = "gpu.large"
    preemptible_label = "dummy.example/spot"
    checks = (__name__,)
    remedies: ClassVar[dict[str, str]] = {"device-plugin": "tick the box of the dummy cloud"}

    def owns_registry(self, host: str) -> bool:
        return host.endswith(".dummy.example")

    def volume_source(self, handle: str) -> dict[str, Any] | None:
        return {"csi": {"driver": "disk.dummy.example", "volumeHandle": handle}}


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(Dummy())
    yield
    del PROVIDERS["dummy"]


TEXT = """\
fleet: {kind: pods, size: 2}
registry: {image: 'r.dummy.example/team/bench:1'}
cluster: {preemptible: true, volume: {handle: 'disk-1:/'}}
"""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_a_registered_provider_renders_a_deploy_plan(context: Callable[..., Context]) -> None:
    provider = registry_provider("r.dummy.example")
    settings = load(context(text=TEXT))
    placement = place_pods(settings.cluster, provider)
    image = Image.parse("r.dummy.example/team/bench@sha256:" + "ab" * 32)
    desired = render(manifest_values(settings, placement, image), ROOT / "manifests")
    objects = {item["kind"]: item for item in desired}
    assert objects["PersistentVolume"]["spec"]["csi"] == {"driver": "disk.dummy.example", "volumeHandle": "disk-1:/"}
    pod = objects["Job"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"node.kubernetes.io/instance-type": "gpu.large", "dummy.example/spot": "true"}
    assert pod["imagePullSecrets"] == [{"name": "dummy-secret"}]
    assert all(toleration in pod["tolerations"] for toleration in placement.tolerations)
    assert placement.provider.texts["device-plugin"] == "tick the box of the dummy cloud"
    actions = plan(desired, [], [], makes_secret=True).with_verb(Verb.CREATE)
    assert {action.kind for action in actions} >= {"Job", "PersistentVolume", "PersistentVolumeClaim"}


def test_the_doctor_runs_the_checks_of_a_registered_provider(context: Callable[..., Context]) -> None:
    invoke_context = context(text="cluster: {provider: dummy}")
    (check,) = (check for check in all_checks((PROVIDERS["dummy"],)) if check.subject == "dummy")
    (result,) = run_check(check, CheckContext(load(invoke_context)))
    assert (result.status, result.message) == (CheckStatus.OK, "account for dummy")
    assert check not in all_checks((PROVIDERS["generic"],))
