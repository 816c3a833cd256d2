"""What a registry, or whoever stands before it, may do to an answer: real HTTP on this machine, through a proxy with
switches (tests/support/machines/registry_proxy.py).

Not covered: TLS, and the engine's own requests, which tests/system has.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.image.vm_agent.registry import api as registries
from remote.image.vm_agent.registry.api import Registry
from tests.support.machines.failures import fails
from tests.support.machines.http_stubs import Answering, Serving
from tests.support.machines.registry_proxy import Answer, Change, Cut, Endless, Redirect, RegistryProxy, Stall, Switch

LOGIN = base64.b64encode(b"ns/me:token of mine").decode()
MANIFEST = json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:c", "size": 1}, "layers": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


class OneManifest(Answering):
    """A registry that has one manifest under every name, and takes uploads."""

    def do_GET(self) -> None:
        self.reply(200, MANIFEST)

    def do_POST(self) -> None:
        self.reply(202, headers={"Location": "/v2/ns/repo/blobs/uploads/one"})

    def do_DELETE(self) -> None:
        self.reply(204)


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with Serving(OneManifest) as running:
        yield f"http://{running.host}"


@pytest.fixture
def proxy(upstream: str) -> Iterator[RegistryProxy]:
    with RegistryProxy(upstream=upstream) as running:
        yield running


elsewhere = proxy  # another one, beside it


def registry(proxy: RegistryProxy) -> Registry:
    return Registry(proxy.host, "ns/repo", LOGIN)


def test_a_redirect_to_another_server_is_followed_without_the_login(
    proxy: RegistryProxy, elsewhere: RegistryProxy
) -> None:
    proxy.arm(Redirect(to=f"http://{elsewhere.host}"))
    found = registry(proxy).manifest("1.0")
    assert found is not None
    assert found[0] == DIGEST
    assert [authorization for _, _, authorization in proxy.asked] == [f"Basic {LOGIN}"]
    assert [authorization for _, _, authorization in elsewhere.asked] == [""]


def test_a_redirect_that_stays_with_its_server_keeps_the_login(proxy: RegistryProxy) -> None:
    proxy.arm(Redirect(to=f"http://{proxy.host}"), times=1)
    assert registry(proxy).manifest("1.0") is not None
    assert [authorization for _, _, authorization in proxy.asked] == [f"Basic {LOGIN}"] * 2


def test_a_certificate_of_the_registry_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "CERTIFICATES", tmp_path)
    file = tmp_path / "registry.example.com" / "ca.crt"
    file.parent.mkdir()
    file.write_text("none")
    with fails("usage", f"{file}: cannot be read: .*no certificate"):
        Registry("registry.example.com", "ns/repo", LOGIN)


def test_redirects_without_end_are_given_up(proxy: RegistryProxy) -> None:
    proxy.arm(Redirect(to=f"http://{proxy.host}"))
    with fails("failed"):
        registry(proxy).manifest("1.0")
    assert len(proxy.asked) <= 10


def test_the_login_goes_to_the_token_services_that_are_known_alone() -> None:
    asked = Registry("registry.example.com", "ns/repo", LOGIN)
    for realm in ("https://evil.example.com/token", "https://registry.example.com.evil.org/token"):
        with fails("refused", r"if that is its token service, add that name to registry\.token_hosts"):
            asked._check_realm(realm)
    asked._check_realm("https://registry.example.com/token")
    asked._check_realm("https://registry.example.com:8443/token")
    Registry("registry.example.com", "ns/repo", LOGIN, ["auth.example.com"])._check_realm("https://auth.example.com/x")
    Registry("registry.gitlab.com", "ns/repo", LOGIN)._check_realm("https://gitlab.com/jwt/auth")


def test_an_answer_without_end_is_given_up_and_named(proxy: RegistryProxy) -> None:
    proxy.arm(Endless())
    with fails("refused", "with more than 4 MiB; given up"):
        registry(proxy).manifest("1.0")


def test_an_answer_that_never_comes_may_come_later(proxy: RegistryProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "ASK_SEC", 0.2)
    proxy.arm(Stall())
    with fails("transient"):
        registry(proxy).manifest("1.0")


def test_an_answer_that_is_cut_may_come_whole_later(proxy: RegistryProxy) -> None:
    proxy.arm(Cut(after=10), times=1)
    with fails("transient"):
        registry(proxy).manifest("1.0")
    assert registry(proxy).manifest("1.0") is not None


def test_a_manifest_with_a_changed_byte_is_not_the_one_that_its_digest_names(proxy: RegistryProxy) -> None:
    assert registry(proxy).manifest(DIGEST) is not None
    proxy.arm(Change(at=len(MANIFEST) - 3))
    with fails("refused", f"answers with other bytes than {DIGEST}"):
        registry(proxy).manifest(DIGEST)


def page(body: bytes) -> Answer:
    return Answer(status=200, body=body)


INSTEAD = "instead of the manifest of ns/repo; correct registry.image"


@pytest.mark.parametrize(("answer", "kind", "words"), [
    (Redirect(to="http://other.example:8099"), "refused",
     "redirects to http://other.example:8099/v2/ns/repo/manifests/1.0, which is not https"),
    (page(b"<html>please log in to our network</html>"), "usage", f"answers with a web page {INSTEAD}"),
    (page(b"[]"), "usage", f"answers with 2 bytes of something else {INSTEAD}"),
    (page(b"{}"), "usage", f"answers with 2 bytes of something else {INSTEAD}"),
    (page(b"[" * 100_000), "usage", f"answers with 100000 bytes of something else {INSTEAD}"),
    (page(b""), "usage", f"answers with 0 bytes of something else {INSTEAD}"),
    (Answer(status=401), "unauthorized", "refuses user ns/me for ns/repo: 401"),
    (Answer(status=403), "forbidden",
     "user ns/me may not push to ns/repo: 403 Forbidden; give that user the right to push there"),
    (Answer(status=200, headers={"X": "x" * 70_000}), "transient", "LineTooLong: got more than 65536 bytes"),
    (Answer(status=500), "transient", "answers 500"),
    (Answer(status=400), "failed", "answers 400"),
])  # fmt: skip
def test_an_answer_that_is_no_manifest_is_named_with_its_registry_and_the_remedy(
    proxy: RegistryProxy, answer: Switch, kind: str, words: str
) -> None:
    proxy.arm(answer)
    with fails(kind, f"^{re.escape(proxy.host)}.* {re.escape(words)}"):
        registry(proxy).manifest("1.0")


@pytest.mark.parametrize("place", ["https://[::1/uploads", "http://127.0.0.1:port/uploads"])
def test_an_upload_to_no_address_is_refused(proxy: RegistryProxy, place: str) -> None:
    proxy.arm(Answer(status=202, headers={"Location": place}), method="POST")
    with fails("refused", f"names an address that is none: {re.escape(repr(place))}"):
        registry(proxy).send_blob(MANIFEST, DIGEST)
    registry(proxy).check_may_push()


def test_a_user_without_the_right_to_push_is_told_so_before_anything_is_sent(proxy: RegistryProxy) -> None:
    registry(proxy).check_may_push()
    assert [(method, path) for method, path, _ in proxy.asked] == [
        ("POST", "/v2/ns/repo/blobs/uploads/"),
        ("DELETE", "/v2/ns/repo/blobs/uploads/one"),
    ]
    proxy.arm(Answer(status=500), method="POST", times=1)
    registry(proxy).check_may_push()  # the push itself finds out
    proxy.arm(Answer(status=403), method="POST")
    with fails("forbidden", "may not push to ns/repo: 403"):
        registry(proxy).check_may_push()


def test_a_repository_that_must_be_made_first_is_named_before_anything_is_sent(proxy: RegistryProxy) -> None:
    proxy.arm(Answer(status=404), method="POST")
    with fails("absent", r"has no repository ns/repo; .* \(OCIR: `inv tenancy.repository`\)"):
        registry(proxy).check_may_push()
