"""Registries that require a token (Bearer): real HTTP on this machine, and errors of the login.

Not covered: TLS; tests/system covers it with Debian's registry.
"""

import base64
import json
import re
from collections.abc import Iterator

import pytest

from remote.agent.shared.registry_api import Registry
from tests.support.machines.failures import raises_agent_error
from tests.support.machines.registry_proxy import FixedResponse, RegistryProxy

LOGIN = base64.b64encode(b"ns/me:token of mine").decode()
MANIFEST = json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:c"}}).encode()


class Server(RegistryProxy):
    """A registry and its token service, which returns `login_status`; `realm` overrides the service's URL."""

    login_status = 200
    realm: str | None = None
    challenge: str | None = None
    token_body = b'{"token": "the token"}'

    def __init__(self) -> None:
        super().__init__(answer=self.respond)

    def respond(self, _method: str, path: str) -> FixedResponse:
        if path.startswith("/token"):
            return FixedResponse(status=self.login_status, body=self.token_body)
        if self.requests[-1][2] == "Bearer the token":
            return FixedResponse(status=200, body=MANIFEST)
        realm = f"http://{self.host}/token" if self.realm is None else self.realm
        challenge = self.challenge or f'Bearer realm="{realm}",service="registry"'
        return FixedResponse(status=401, headers={"WWW-Authenticate": challenge})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def registry(server: Server) -> Registry:
    return Registry(server.host, "ns/repo", LOGIN)


def test_the_login_is_exchanged_for_a_token_once(server: Server, registry: Registry) -> None:
    fetched = registry.manifest("1.0")
    assert fetched is not None
    assert fetched[1] == json.loads(MANIFEST)
    assert registry.manifest("1.1") is not None
    paths = [path.split("?")[0] for _, path, _ in server.requests]
    assert paths == ["/v2/ns/repo/manifests/1.0", "/token", "/v2/ns/repo/manifests/1.0", "/v2/ns/repo/manifests/1.1"]
    _, path, authorization = server.requests[1]
    assert authorization == f"Basic {LOGIN}"
    assert "scope=repository%3Ans%2Frepo%3Apull%2Cpush" in path


def test_a_token_service_that_is_down_is_transient(server: Server, registry: Registry) -> None:
    with Server() as gone:
        server.realm = f"http://{gone.host}/token"
    with raises_agent_error("transient", f"{server.realm}.*Connection refused"):
        registry.manifest("1.0")


TOKENS = ("hidden\nhidden", "hidden\u0456", {"hidden": 1})


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        *(("login_status", status, "unauthorized") for status in (401, 403)),
        ("login_status", 503, "transient"),
        *(("token_body", body, "transient") for body in (b"", b"{}", b"<html>", b"[]", b"[" * 100_000)),
        *(("token_body", json.dumps({"token": token}).encode(), "refused") for token in TOKENS),
        ("realm", "https://[::1/token", "refused"),
    ],
)
def test_each_fault_of_a_token_service_has_its_kind_and_no_token_is_shown(
    server: Server, registry: Registry, field: str, value: object, kind: str
) -> None:
    setattr(server, field, value)
    with raises_agent_error(kind, rf"{re.escape(server.host)}((?!hidden).)*$"):
        registry.manifest("1.0")


def test_requests_to_this_machine_bypass_the_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        assert Registry(server.host, "ns/repo", LOGIN).manifest("1.0") is not None
    assert proxy.requests == []


CHALLENGES = [
    'Bearer realm="http://other.example/token"',
    "bearer realm=https://other.example/token",
    'Bearer Realm="https://other.example/token",realm="http://127.0.0.1/token"',
    'Bearer service="x"',
]


@pytest.mark.parametrize("challenge", CHALLENGES)
def test_a_challenge_that_directs_a_login_elsewhere_is_refused_before_any_login(
    server: Server, registry: Registry, challenge: str
) -> None:
    server.challenge = challenge
    with raises_agent_error("refused"):
        registry.check_challenge()
    server.challenge = CHALLENGES[0]
    for act in (registry.check_push_access, lambda: registry.manifest("1.0")):
        with raises_agent_error("refused", r"other\.example"):
            act()
    assert [authorization for _, _, authorization in server.requests] == ["", "", ""]


@pytest.mark.parametrize("challenge", [None, 'Basic realm="anything"'])
def test_a_challenge_of_the_registry_itself_is_accepted_without_a_login(
    server: Server, registry: Registry, challenge: str | None
) -> None:
    server.challenge = challenge
    registry.check_challenge()
    assert server.requests == [("GET", "/v2/", "")]


def test_a_login_is_never_sent_without_tls() -> None:
    registry = Registry("fra.ocir.io", "ns/repo", LOGIN)
    for challenge in ('Bearer realm="http://fra.ocir.io/token"', 'Bearer service="x"', 'Bearer realm="ftp://x/y"'):
        with raises_agent_error("refused", r"^fra\.ocir\.io .*https"):
            registry._fetch_token(challenge)
