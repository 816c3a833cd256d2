"""Instance principals: what we make of the SDK's signer and its errors. Not covered: Oracle's services."""

import json
import os
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from oci.auth.certificate_retriever import InvalidCertificateFromInstanceMetadataError
from oci.auth.signers import InstancePrincipalsSecurityTokenSigner, SecurityTokenSigner
from oci.exceptions import ServiceError

from tasks.errors import RetryableError, UsageError
from tasks.oci import __main__ as token
from tasks.oci import credentials
from tasks.oci.clients import connect, get_namespace
from tasks.settings.layers import Settings
from tests.support.machines.fake_tenancy import TENANCY, ApiKey, ocid, token_error

Make = Callable[..., Settings]
AS_INSTANCE = "tenancy: {auth: instance_principal}"


@pytest.fixture
def sdk(keys: ApiKey, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the SDK's signer of an instance by one of this run's key: its region, and the error that it raises."""
    state = SimpleNamespace(region="fra", error=None)

    class FakeSigner(SecurityTokenSigner):
        METADATA_URL_BASE_ENV_VAR = InstancePrincipalsSecurityTokenSigner.METADATA_URL_BASE_ENV_VAR
        IMDS_IPV4_HOST = InstancePrincipalsSecurityTokenSigner.IMDS_IPV4_HOST
        IMDS_IPV6_HOST_BRACKETED = InstancePrincipalsSecurityTokenSigner.IMDS_IPV6_HOST_BRACKETED

        def __init__(self, **_: Any) -> None:
            if state.error is not None:
                raise state.error
            super().__init__("token", keys.private)
            self.region, self.tenancy_id = state.region, TENANCY

    monkeypatch.setattr(credentials, "InstancePrincipalsSecurityTokenSigner", FakeSigner)
    return state


@pytest.mark.parametrize("before", ["", "other.example"])
@pytest.mark.usefixtures("sdk", "tenancy")
def test_an_instance_signs_and_its_key_is_not_sent_through_a_proxy(
    before: str, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", before)
    api = connect(settings(AS_INSTANCE))
    assert (api.credentials.name, api.region, api.tenancy) == ("this instance", "eu-frankfurt-1", TENANCY)
    assert get_namespace(api) == "axns"
    assert os.environ["no_proxy"].startswith(f"{before},169.254.169.254," if before else "169.254.169.254,")


def test_a_configured_region_overrides_the_instance_s_own(sdk: SimpleNamespace, settings: Make) -> None:
    sdk.region = "us-phoenix-1"
    assert connect(settings(AS_INSTANCE)).region == "us-phoenix-1"
    assert connect(settings("tenancy: {auth: instance_principal, region: uk-london-1}")).region == "uk-london-1"


@pytest.mark.usefixtures("sdk")
def test_kubectl_gets_its_token_from_the_instance(
    keys: ApiKey, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--cluster", ocid("cluster", "one"), "--host", "containerengine.eu-frankfurt-1.oraclecloud.com")
    monkeypatch.setattr(sys, "argv", ["tasks.oci", "instance-token", *arguments, "--region", "eu-frankfurt-1"])
    assert token.main() == 0
    text = json.loads(capsys.readouterr().out)["status"]["token"]
    assert token_error(keys.public_pem, "ST$token", text) is None


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (ServiceError(404, None, {}, "not found"), UsageError, ": 404"),
        (ServiceError(401, "NotAuthenticated", {}, "refused"), UsageError, "401 NotAuthenticated: refused; "),
        (ServiceError(503, "Busy", {}, "refused"), RetryableError, "503 Busy: refused; "),
        (
            InvalidCertificateFromInstanceMetadataError("PRIVATE KEY"),
            UsageError,
            "certificate; is a proxy intercepting the connection?",
        ),
        (ConnectionRefusedError(111, "refused"), UsageError, "set tenancy.auth: config"),
        (RuntimeError("Unexpected update of tenancy"), UsageError, "Unexpected update of tenancy"),
    ],
)
def test_a_failed_token_request_is_one_line_with_a_remedy(
    sdk: SimpleNamespace, settings: Make, error: Exception, kind: type[Exception], expected: str
) -> None:
    sdk.error = error
    with pytest.raises(kind, match=re.escape(expected)) as raised:
        connect(settings(AS_INSTANCE))
    assert "PRIVATE KEY" not in str(raised.value)
