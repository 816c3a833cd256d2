"""An instance principal: the real SDK asks a metadata service and a token service that verify what it sends.

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
from tasks.oci.access import instance
from tasks.oci.access.clients import Access, access, namespace_of
from tasks.oci.access.errors import ServiceCall
from tasks.settings.load import Settings
from tests.support.machines.fake_instance import FakeInstance
from tests.support.machines.fake_tenancy import TENANCY, FakeTenancy, ocid, token_refused, verified
from tests.support.machines.http_stubs import Answering, Serving

Make = Callable[..., Settings]
AS_INSTANCE = "tenancy: {auth: instance_principal}"


@pytest.fixture(scope="module")
def machine() -> FakeInstance:
    return FakeInstance(TENANCY, verified)


@pytest.fixture
def here(tenancy: FakeTenancy, machine: FakeInstance, monkeypatch: pytest.MonkeyPatch) -> FakeInstance:
    """This machine is an instance of the tenancy."""
    tenancy.instance = machine
    machine.rotate()
    machine.sessions.clear()
    machine.lifetime_sec, machine.region = 1200.0, "fra"
    monkeypatch.setenv("OCI_METADATA_BASE_URL", f"{tenancy.url}/opc/v2")
    monkeypatch.setattr(instance, "FEDERATION", f"{tenancy.url}/v1/x509")
    monkeypatch.setattr(instance, "LONGEST_PAUSE_SEC", 0.0)
    return machine


def clusters(entry: Access) -> int:
    asked = ServiceCall(doing="listing clusters", right="read clusters")
    return len(entry.all(asked, entry.client(ContainerEngineClient).list_clusters, TENANCY))


def test_an_instance_signs_with_the_token_for_its_certificate(here: FakeInstance, settings: Make) -> None:
    entry = access(settings(AS_INSTANCE))
    assert (entry.asker.credentials, entry.region) == ("this instance", "eu-frankfurt-1")
    assert namespace_of(entry) == "axns"
    assert len(here.sessions) == 1


class Proxy(Answering):
    def do_GET(self) -> None:
        self.server.heard.append(self.path)  # type: ignore[attr-defined]
        self.reply(502)


@pytest.mark.parametrize("before", ["", "other.example"])
def test_no_proxy_is_shown_the_instances_key(
    before: str, here: FakeInstance, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", before)
    with Serving(Proxy) as proxy:
        proxy.heard = heard = list[str]()  # type: ignore[attr-defined]
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        assert access(settings(AS_INSTANCE)).tenancy == TENANCY
    assert (heard, len(here.sessions)) == ([], 1)
    assert os.environ["no_proxy"].startswith(f"{before},169.254.169.254," if before else "169.254.169.254,")


def test_a_token_that_ends_soon_is_renewed_also_with_a_new_certificate(here: FakeInstance, settings: Make) -> None:
    here.lifetime_sec = 30.0  # the SDK renews a minute before the end
    entry = access(settings(AS_INSTANCE))
    here.rotate()
    here.lifetime_sec = 1200.0
    assert [clusters(entry), clusters(entry)] == [1, 1]
    assert len(here.sessions) == 2


def test_a_region_that_is_set_comes_before_the_instances_own(here: FakeInstance, settings: Make) -> None:
    here.region = "us-phoenix-1"
    assert access(settings(AS_INSTANCE)).region == "us-phoenix-1"
    assert access(settings("tenancy: {auth: instance_principal, region: uk-london-1}")).region == "uk-london-1"


def test_kubectl_gets_its_token_from_the_instance(
    here: FakeInstance, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    which = ("--cluster", ocid("cluster", "one"), "--host", "containerengine.eu-frankfurt-1.oraclecloud.com")
    monkeypatch.setattr(sys, "argv", ["tasks.oci", "instance-token", *which, "--region", "eu-frankfurt-1"])
    assert token.main() == 0
    made = json.loads(capsys.readouterr().out)["status"]["token"]
    ((key_id, (key, _)),) = here.sessions.items()
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    assert token_refused(pem, key_id, made) is None


@pytest.mark.usefixtures("here")
def test_a_right_that_is_missing_is_one_of_a_dynamic_group(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.fail("/clusters", 404, "NotAuthorizedOrNotFound")
    with pytest.raises(UsageError, match="Allow dynamic-group DYNAMIC-GROUP to read clusters in tenancy"):
        clusters(access(settings(AS_INSTANCE)))


@pytest.mark.usefixtures("here")
def test_a_service_that_stumbles_is_asked_again(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.fail("/opc/v2/identity/key.pem|POST /v1/x509", 503, "Busy", times=1)
    assert namespace_of(access(settings(AS_INSTANCE))) == "axns"


@pytest.mark.parametrize(
    ("pattern", "fault", "kind", "words"),
    [
        ("/opc/", {"status": 404}, UsageError, "no token for this instance: 404"),
        ("/opc/", {"status": 200, "html": True}, UsageError, "(the metadata service gives no certificate; is a proxy"),
        (
            "/v1/x509",
            {"status": 401, "code": "NotAuthenticated"},
            UsageError,
            "401 NotAuthenticated: refused; elsewhere",
        ),
        ("/v1/x509", {"status": 503, "code": "Busy"}, RetryableError, "503 Busy: refused; asked several times"),
        ("/v1/x509", {"status": 200, "html": True}, UsageError, "Unable to parse response from auth service"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_gives_no_token_is_one_line_with_what_to_do(
    tenancy: FakeTenancy, settings: Make, pattern: str, fault: dict[str, object], kind: type[Exception], words: str
) -> None:
    tenancy.fail(pattern, **fault)
    with pytest.raises(kind, match=re.escape(words)) as raised:
        access(settings(AS_INSTANCE))
    assert "PRIVATE KEY" not in str(raised.value)


@pytest.mark.usefixtures("here")
def test_a_wrong_clock_is_named_before_the_certificate_is_doubted(tenancy: FakeTenancy, settings: Make) -> None:
    tenancy.skew_sec = 1020.0
    tenancy.fail("/v1/x509", 401, "NotAuthenticated")
    with pytest.raises(UsageError, match="this machine's clock is 17 min behind"):
        access(settings(AS_INSTANCE))


def test_a_certificate_of_another_tenancy_ends_a_renewal_in_one_line(here: FakeInstance, settings: Make) -> None:
    here.lifetime_sec = 30.0
    entry = access(settings(AS_INSTANCE))
    here.rotate("ocid1.tenancy.oc1..other")
    with pytest.raises(RetryableError, match=r"listing clusters: no whole answer .* Unexpected update of tenancy"):
        clusters(entry)


def test_a_machine_that_is_no_instance_says_so(
    tenancy: FakeTenancy, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCI_METADATA_BASE_URL", "http://127.0.0.1:9/opc/v2")
    monkeypatch.setattr(instance, "LONGEST_PAUSE_SEC", 0.0)
    with pytest.raises(UsageError, match=r"no instance's credentials here \(.*refused.*set tenancy.auth: config"):
        access(settings(AS_INSTANCE))
    assert tenancy.requests == []
