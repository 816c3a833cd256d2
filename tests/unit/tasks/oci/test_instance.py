"""Instance principals: the real SDK against a fake metadata service and a fake token service that verify requests.

Not covered: Oracle's own services, and whether an instance is in a dynamic group.
"""

import json
import os
import re
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from cryptography.hazmat.primitives import serialization
from oci.container_engine import ContainerEngineClient

from tasks.errors import RetryableError, UsageError
from tasks.oci import __main__ as token
from tasks.oci import credentials
from tasks.oci.clients import TenancyApi, connect, get_namespace
from tasks.settings.load import Settings
from tests.support.machines.fake_instance import FakeInstance
from tests.support.machines.fake_tenancy import TENANCY, FakeTenancy, ocid, signature_error, token_error
from tests.support.machines.http_stubs import StubHandler, StubServer

Make = Callable[..., Settings]
AS_INSTANCE = "tenancy: {auth: instance_principal}"


@pytest.fixture(scope="module")
def machine() -> FakeInstance:
    return FakeInstance(TENANCY, signature_error)


@pytest.fixture
def instance_host(tenancy: FakeTenancy, machine: FakeInstance, monkeypatch: pytest.MonkeyPatch) -> FakeInstance:
    """Make this machine an instance of the tenancy."""
    tenancy.instance = machine
    machine.rotate()
    machine.sessions.clear()
    machine.lifetime_sec, machine.region = 1200.0, "fra"
    monkeypatch.setenv("OCI_METADATA_BASE_URL", f"{tenancy.url}/opc/v2")
    monkeypatch.setattr(credentials, "FEDERATION_ENDPOINT", f"{tenancy.url}/v1/x509")
    return machine


def clusters(api: TenancyApi) -> int:
    method = api.client(ContainerEngineClient).list_clusters
    return len(api.list_all("listing clusters", "read clusters", method, TENANCY))


def test_an_instance_signs_with_the_token_for_its_certificate(instance_host: FakeInstance, settings: Make) -> None:
    api = connect(settings(AS_INSTANCE))
    assert (api.credentials.name, api.region) == ("this instance", "eu-frankfurt-1")
    assert get_namespace(api) == "axns"
    assert len(instance_host.sessions) == 1


class Proxy(StubHandler):
    def do_GET(self) -> None:
        self.server.heard.append(self.path)  # type: ignore[attr-defined]
        self.reply(502)


@pytest.mark.parametrize("before", ["", "other.example"])
def test_the_instance_s_key_is_not_sent_through_a_proxy(
    before: str, instance_host: FakeInstance, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", before)
    with StubServer(Proxy) as proxy:
        proxy.heard = proxied_paths = list[str]()  # type: ignore[attr-defined]
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        assert connect(settings(AS_INSTANCE)).tenancy == TENANCY
    assert (proxied_paths, len(instance_host.sessions)) == ([], 1)
    assert os.environ["no_proxy"].startswith(f"{before},169.254.169.254," if before else "169.254.169.254,")


def test_a_configured_region_overrides_the_instance_s_own(instance_host: FakeInstance, settings: Make) -> None:
    instance_host.region = "us-phoenix-1"
    assert connect(settings(AS_INSTANCE)).region == "us-phoenix-1"
    assert connect(settings("tenancy: {auth: instance_principal, region: uk-london-1}")).region == "uk-london-1"


def test_kubectl_gets_its_token_from_the_instance(
    instance_host: FakeInstance, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--cluster", ocid("cluster", "one"), "--host", "containerengine.eu-frankfurt-1.oraclecloud.com")
    monkeypatch.setattr(sys, "argv", ["tasks.oci", "instance-token", *arguments, "--region", "eu-frankfurt-1"])
    assert token.main() == 0
    token_text = json.loads(capsys.readouterr().out)["status"]["token"]
    ((key_id, (key, _)),) = instance_host.sessions.items()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    assert token_error(pem, key_id, token_text) is None


@pytest.mark.parametrize(
    ("pattern", "fault", "kind", "expected"),
    [
        ("/opc/", {"status": 404}, UsageError, ": 404"),
        ("/opc/", {"status": 200, "html": True}, UsageError, "certificate; is a proxy intercepting the connection?"),
        ("/v1/x509", {"status": 401, "code": "NotAuthenticated"}, UsageError, "401 NotAuthenticated: refused; "),
        ("/v1/x509", {"status": 503, "code": "Busy"}, RetryableError, "503 Busy: refused; "),
        ("/v1/x509", {"status": 200, "html": True}, UsageError, "Unable to parse response from auth service"),
    ],
)
@pytest.mark.usefixtures("instance_host")
def test_a_failed_token_request_is_one_line_with_a_remedy(
    tenancy: FakeTenancy, settings: Make, pattern: str, fault: dict[str, object], kind: type[Exception], expected: str
) -> None:
    tenancy.fail(pattern, **fault)
    with pytest.raises(kind, match=re.escape(expected)) as raised:
        connect(settings(AS_INSTANCE))
    assert "PRIVATE KEY" not in str(raised.value)


def test_a_certificate_of_another_tenancy_ends_a_renewal_in_one_line(
    instance_host: FakeInstance, settings: Make
) -> None:
    instance_host.lifetime_sec = 30.0
    api = connect(settings(AS_INSTANCE))
    instance_host.rotate("ocid1.tenancy.oc1..other")
    with pytest.raises(RetryableError, match=r"listing clusters: .* Unexpected update of tenancy"):
        clusters(api)


def test_a_machine_that_is_not_an_instance_is_reported(
    tenancy: FakeTenancy, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCI_METADATA_BASE_URL", "http://127.0.0.1:9/opc/v2")
    with pytest.raises(UsageError, match=r"refused.*set tenancy.auth: config"):
        connect(settings(AS_INSTANCE))
    assert tenancy.requests == []
