"""Faulty responses of a registry or of a proxy: real HTTP on this machine (tests/support/machines/registry_proxy.py).

Not covered: TLS, and the engine's own requests; tests/system covers them.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.agent.build_vm.__main__ import handle_request
from remote.agent.shared import registry_api as registries
from remote.agent.shared.registry_api import Registry
from tests.support.cases import Case, load_cases
from tests.support.machines.failures import raises_agent_error
from tests.support.machines.registry_proxy import (
    Change,
    Cut,
    Endless,
    FixedResponse,
    RegistryProxy,
    Stall,
    Switch,
)

LOGIN = base64.b64encode(b"ns/me:token of mine").decode()
MANIFEST = json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:c", "size": 1}, "layers": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


def one_manifest(method: str, _path: str) -> FixedResponse:
    """Answer as a registry that returns one manifest for every name, and accepts uploads."""
    return FixedResponse(status=202) if method == "POST" else FixedResponse(status=200, body=MANIFEST)


@pytest.fixture
def proxy() -> Iterator[RegistryProxy]:
    with RegistryProxy(answer=one_manifest) as running:
        yield running


def registry(proxy: RegistryProxy) -> Registry:
    return Registry(proxy.host, "ns/repo", LOGIN)


def test_an_invalid_certificate_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "CERTIFICATES_FOLDER", tmp_path)
    file = tmp_path / "registry.example.com" / "ca.crt"
    file.parent.mkdir()
    file.write_text("not a certificate")
    with raises_agent_error("usage", f"^{file}: .*no certificate"):
        Registry("registry.example.com", "ns/repo", LOGIN)


def test_the_login_is_sent_only_to_known_token_services() -> None:
    registry = Registry("registry.example.com", "ns/repo", LOGIN)
    for realm in ("https://evil.example.com/token", "https://registry.example.com.evil.org/token"):
        with raises_agent_error("refused", r"evil.*; .*registry\.token_hosts"):
            registry._check_realm(realm)
    registry._check_realm("https://registry.example.com/token")
    registry._check_realm("https://registry.example.com:8443/token")
    Registry("registry.example.com", "ns/repo", LOGIN, ["auth.example.com"])._check_realm("https://auth.example.com/x")
    Registry("registry.gitlab.com", "ns/repo", LOGIN)._check_realm("https://gitlab.com/jwt/auth")


def test_a_manifest_with_a_changed_byte_is_refused_by_its_digest(proxy: RegistryProxy) -> None:
    assert registry(proxy).manifest(DIGEST) is not None
    proxy.arm(Change(at=len(MANIFEST) - 3))
    with raises_agent_error("refused", DIGEST):
        registry(proxy).manifest(DIGEST)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Endless(), "refused", r"\b4 MiB"),
        (Stall(), "transient", "timed out"),
        (Cut(after=10), "transient", "early"),
        (FixedResponse(status=200, body=b"[" * 100_000), "usage", "127.0.0.1"),
        (FixedResponse(status=200, headers={"X": "x" * 70_000}), "transient", "127.0.0.1"),
    ],
)
def test_a_response_without_an_end_or_at_a_parsers_limit_is_an_error(
    proxy: RegistryProxy, monkeypatch: pytest.MonkeyPatch, fault: Switch, kind: str, message: str
) -> None:
    monkeypatch.setattr(registries, "REQUEST_TIMEOUT_SEC", 0.2 if isinstance(fault, Stall) else 60.0)
    proxy.arm(fault)
    with raises_agent_error(kind, message):
        registry(proxy).manifest("1.0")


@pytest.mark.parametrize("case", load_cases(__file__, "registry_answers.yaml"))
def test_a_response_that_is_not_a_manifest_is_reported_with_registry_and_remedy(
    proxy: RegistryProxy, case: Case
) -> None:
    answer, expected = case["input"], case["expected"]
    proxy.arm(FixedResponse(**{**answer, "body": answer.get("body", "").encode()}))
    with raises_agent_error(expected["kind"], f"^{re.escape(proxy.host)}.* {expected['says']}"):
        registry(proxy).manifest("1.0")


def test_a_missing_permission_or_repository_is_reported_before_anything_is_sent(proxy: RegistryProxy) -> None:
    registry(proxy).check_push_access()
    assert [(method, path) for method, path, _ in proxy.requests] == [("POST", "/v2/ns/repo/blobs/uploads/")]
    for status in (500, 403, 404):
        proxy.arm(FixedResponse(status=status), method="POST", times=1)
    registry(proxy).check_push_access()  # the push itself will report the error
    with raises_agent_error("forbidden", "ns/repo: 403"):
        registry(proxy).check_push_access()
    with raises_agent_error("absent", r" ns/repo; create the repository"):
        registry(proxy).check_push_access()


def test_a_question_without_a_job_gets_the_digest_or_the_failure(proxy: RegistryProxy) -> None:
    question = {"host": proxy.host, "path": "ns/repo", "tag": "1.0", "login": LOGIN, "token_hosts": []}
    assert handle_request(question) == {"digest": DIGEST}
    proxy.arm(FixedResponse(status=404), method="GET")
    assert handle_request(question) == {"digest": None}
    proxy.arm(FixedResponse(status=403), method="POST")
    assert handle_request(question)["kind"] == "forbidden"
