"""Tests of the provider of the settings: named, found, and its defaults."""

from collections.abc import Callable
from typing import Any

import pytest
from invoke import Context

from remote.providers import GENERIC, PROVIDERS, Provider
from tasks.clients.target_cluster import known_provider, place_pods
from tasks.errors import UsageError
from tasks.fleet.pricing import worker_price
from tasks.settings.layers import load

Make = Callable[..., Context]
OCI = PROVIDERS["oci"]
DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", None),
        ("cluster: {provider: generic}", GENERIC),
        ("cluster: {provider: generic}\nregistry: {image: 'fra.ocir.io/ns/r:1'}", GENERIC),
        ("registry: {image: 'fra.ocir.io/ns/r:1'}", OCI),
        (f"cluster: {{image: 'fra.ocir.io/ns/r@{DIGEST}'}}", OCI),
        ("cluster: {volume: {handle: 'ocid1.filesystem:10.0.0.5:/x'}}", OCI),
        ("registry: {image: 'ghcr.io/me/r:1'}\ncluster: {volume: {handle: '10.0.0.5:/x'}}", None),
    ],
)
def test_the_provider_that_the_settings_determine(text: str, expected: Provider | None, context: Make) -> None:
    assert known_provider(load(context(text=text))) is expected


def resolved(context: Make, text: str, provider: Provider) -> Any:
    return place_pods(load(context(text=text)).cluster, provider)


def test_a_provider_fills_in_what_the_settings_leave_to_it(context: Make) -> None:
    cluster = resolved(context, "{}", OCI)
    assert (cluster.provider, cluster.instance_type, cluster.pull_secret) == (OCI, "VM.GPU.A10.1", "ocir-secret")
    cluster = resolved(context, "{}", GENERIC)
    assert (cluster.provider, cluster.instance_type, cluster.pull_secret) == (GENERIC, None, "registry-login")
    cluster = resolved(context, "cluster: {instance_type: g5.xlarge, pull_secret: null}", GENERIC)
    assert (cluster.instance_type, cluster.pull_secret) == ("g5.xlarge", None)


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("cluster: {preemptible: true}", "cluster.preemptible"),
        ("cluster: {volume: {handle: 'ocid1.filesystem:10.0.0.5:/x'}}", "cluster.volume.handle"),
    ],
)
def test_a_setting_that_the_provider_does_not_have_is_refused(text: str, setting: str, context: Make) -> None:
    assert resolved(context, text, OCI)
    with pytest.raises(UsageError, match=f"^{setting}: .*generic"):
        resolved(context, text, GENERIC)


def test_a_price_is_that_of_the_provider_and_of_all_gpus_that_a_training_holds(context: Make) -> None:
    def rate(text: str) -> float | None:
        price = worker_price(load(context(text=text)), "NVIDIA A10")
        return None if price is None else price.usd_per_gpu_hour

    assert rate("{}") == rate("cluster: {provider: oci}") == 2.0
    generic = "cluster: {provider: generic}"
    assert rate(generic) is None
    assert rate(generic + "\ncost: {price_usd_per_gpu_hour: 1.5, price_source: list}") == 1.5
    assert rate("fleet: {kind: pods}\ncluster: {gpus_per_pod: 4}") == 8.0
    assert rate("fleet: {kind: local}\ncluster: {gpus_per_pod: 4}") == 2.0
