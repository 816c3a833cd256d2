"""Tests of the providers: what registration refuses, detection, and the volumes and remedies of each."""

from typing import Any

import pytest

from remote.providers import GENERIC, PROVIDERS, REMEDIES, Provider, detect, register
from tests.support.cloud_words import CLOUD_WORDS

OCI = PROVIDERS["oci"]


class Misspelt(Provider):
    name = "misspelt"
    remedies = {"node-pools": "grow it"}  # noqa: RUF012


@pytest.mark.parametrize(("provider", "names"), [(Provider(), "generic.*twice"), (Misspelt(), "misspelt.*node-pools")])
def test_a_wrong_provider_is_refused_by_name(provider: Provider, names: str) -> None:
    before = dict(PROVIDERS)
    with pytest.raises(ValueError, match=names):
        register(provider)
    assert before == PROVIDERS


def test_no_text_of_any_kubernetes_names_a_cloud() -> None:
    texts = [*GENERIC.texts.values(), GENERIC.image_form, GENERIC.volume_form, GENERIC.pull_secret]
    assert [text for text in texts if CLOUD_WORDS.search(text)] == []
    assert set(OCI.texts) == {*REMEDIES, "password"}


def node(provider_id: str = "", **labels: str) -> dict[str, Any]:
    names = {name.replace("__", "/").replace("_", "."): value for name, value in labels.items()}
    return {"metadata": {"name": "n", "labels": names}, "spec": {"providerID": provider_id}}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"registries": ["docker.io", "fra.ocir.io"]}, OCI),
        ({"registries": ["OCIR.eu-frankfurt-1.oci.oraclecloud.com"]}, OCI),
        ({"registries": ["docker.io", "notocir.io", "fra.ocir.io.example.com"]}, None),
        ({"volume": "ocid1.filesystem.x:10.0.0.5:/export"}, OCI),
        ({"volume": "10.0.0.5:/export"}, None),
        ({"nodes": [node("ocid1.instance.oc1.x")]}, OCI),
        ({"nodes": [node(), node(oci_oraclecloud_com__fault="1")]}, OCI),
        ({"nodes": [node("aws:///eu-west-1a/i-1"), {"metadata": {"name": "bare"}}]}, None),
        ({}, None),
    ],
)
def test_a_provider_is_found_by_registry_volume_or_nodes(facts: dict[str, Any], expected: Provider | None) -> None:
    assert detect(**facts) is expected


@pytest.mark.parametrize(
    ("handle", "generic", "oci"),
    [
        ("10.0.0.5:/export", "nfs", "nfs"),
        ("files.example.com:/a/b", "nfs", "nfs"),
        ("ocid1.filesystem.x:10.0.0.5:/export", None, "csi"),
        ("-o:/export", None, None),
        ("server:export", None, None),
    ],
)
def test_the_source_of_a_volume(handle: str, generic: str | None, oci: str | None) -> None:
    for provider, kind in ((GENERIC, generic), (OCI, oci)):
        assert [*(provider.volume_source(handle) or [None])] == [kind]
