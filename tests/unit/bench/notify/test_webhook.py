"""A webhook over TLS: signature, refused addresses and redirects, retries; and a receiver that fails."""

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.notify import sender, webhook
from bench.notify.events import EventKind, Notification
from bench.notify.sender import Sender, to_webhook
from bench.notify.webhook import SIGNATURE_HEADER, TIMESTAMP_HEADER, WebhookError, check_url, is_allowed, post
from bench.records.run import NotifyTarget
from tests.support.cases import Case, load_cases
from tests.support.machines.webhook import Webhook

BODY = b'{"event": "ended"}\n'
NOTIFICATION = Notification(event=EventKind.ENDED, run_id="r1", source="operator", time="now", text="run r1: SUCCEEDED")


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """Provide a webhook whose certificate authority is trusted."""
    with Webhook(tmp_path) as hook:
        monkeypatch.setenv("SSL_CERT_FILE", str(hook.authority))
        yield hook


@pytest.fixture
def target(hook: Webhook) -> Callable[..., NotifyTarget]:
    return lambda **fields: NotifyTarget(**{"url": hook.url, "allow_private": True, **fields})


def test_a_notification_arrives_signed(hook: Webhook, target: Callable[..., NotifyTarget]) -> None:
    post(target(), BODY, b"key", now=1_700_000_000.5)
    post(target(), BODY)
    signed, unsigned = hook.requests
    expected = hmac.new(b"key", b"1700000000." + BODY, hashlib.sha256).hexdigest()
    assert (signed.path, signed.body) == ("/hook", BODY)
    assert signed.headers[TIMESTAMP_HEADER] == "1700000000"
    assert signed.headers[SIGNATURE_HEADER] == f"sha256={expected}"
    assert SIGNATURE_HEADER not in unsigned.headers


@pytest.mark.parametrize(
    ("status", "is_transient"), [(400, False), (404, False), (408, True), (429, True), (500, True), (503, True)]
)
def test_a_refused_notification_may_be_retried_if_that_can_help(
    hook: Webhook, target: Callable[..., NotifyTarget], status: int, is_transient: bool
) -> None:
    hook.statuses = [status]
    with pytest.raises(WebhookError) as caught:
        post(target(), BODY)
    assert caught.value.is_transient == is_transient


def test_a_private_address_is_refused_when_it_connects(hook: Webhook, target: Callable[..., NotifyTarget]) -> None:
    for url in (hook.url, hook.url.replace("127.0.0.1", "localhost")):
        with pytest.raises(WebhookError, match="private address"):
            post(target(url=url, allow_private=False), BODY)
    assert hook.requests == []


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in ("93.184.216.34", "10.0.0.1")]
    monkeypatch.setattr(webhook.socket, "getaddrinfo", lambda *_, **__: entries)
    with pytest.raises(WebhookError, match=r"10\.0\.0\.1"):
        post(NotifyTarget(url="https://example.com/"), BODY)


def test_the_connection_goes_to_the_address_that_was_checked(
    hook: Webhook, target: Callable[..., NotifyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, names = socket.getaddrinfo, list[object]()

    def changed(host: object, *arguments: Any, **options: Any) -> Any:  # another answer for each question
        names.append(host)
        return resolve("127.0.0.1" if names.count("localhost") == 1 else "192.0.2.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", changed)
    post(target(url=hook.url.replace("127.0.0.1", "localhost")), BODY)
    assert names.count("localhost") == 1
    assert len(hook.requests) == 1


def test_an_untrusted_certificate_is_final(hook: Webhook, target: Callable[..., NotifyTarget], monkeypatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(WebhookError) as caught:
        post(target(), BODY)
    assert not caught.value.is_transient
    assert hook.requests == []


def test_redirects_are_refused_or_followed_to_https(hook: Webhook, target: Callable[..., NotifyTarget]) -> None:
    hook.statuses, hook.location = [307], "/elsewhere"
    with pytest.raises(WebhookError, match="allow_redirects"):
        post(target(), BODY)
    hook.statuses = [307]
    post(target(allow_redirects=True), BODY)
    assert [request.path for request in hook.requests] == ["/hook", "/hook", "/elsewhere"]
    for location, statuses in (("http://127.0.0.1/", [307]), ("/again", [302]), ("/hook", [308] * 9)):
        hook.statuses, hook.location = list(statuses), location
        with pytest.raises(WebhookError):
            post(target(allow_redirects=True), BODY)
    hook.statuses, hook.location = [307], hook.url.replace("127.0.0.1", "169.254.169.254")
    with pytest.raises(WebhookError, match="private address"):
        post(target(allow_redirects=True), BODY)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "https:///path", "ftp://example.com", "example.com", "https://user@example.com/",
        "https://user:secret@example.com/", "https://example.com/?token=1", "https://example.com:99999/",
        "https://exa mple.com/", "https://ex\u00e4mple.com/", "https://example.com/\x1b", "https://[::1/",
        f"https://example.com/{'a' * 2000}",
    ],
)  # fmt: skip
def test_an_address_that_cannot_or_must_not_be_used_is_refused(url: str) -> None:
    with pytest.raises(WebhookError):
        check_url(url)


@pytest.mark.parametrize("case", load_cases(__file__, "addresses.yaml"))
def test_an_address_is_public_private_or_never_used(case: Case) -> None:
    allowed = tuple(is_allowed(case["address"], allow_private=allow) for allow in (False, True))
    assert allowed == {"public": (True, True), "private": (False, True), "never": (False, False)}[case["expected"]]


def test_a_delivery_is_retried_and_a_failure_is_one_line(
    hook: Webhook, target: Callable[..., NotifyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "RETRY_DELAYS_SEC", (0.0, 0.0))
    lines = list[str]()

    def broken(_: bytes) -> None:
        raise RuntimeError("two\nlines")

    hook.statuses = [503, 500]
    with Sender({"notify.command": broken, "notify.url": to_webhook(target(), None)}, lines.append) as open_sender:
        open_sender.send(NOTIFICATION)
    assert [json.loads(request.body)["run_id"] for request in hook.requests] == ["r1"] * 3
    assert lines == ["notification not sent: ended: notify.command: two lines"]


def test_a_response_without_an_end_is_given_up(
    hook: Webhook, target: Callable[..., NotifyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "REQUEST_TIMEOUT_SEC", 0.5)
    hook.statuses = [100]
    with pytest.raises(WebhookError) as caught:
        post(target(), BODY)
    assert (caught.value.is_transient, len(hook.requests)) == (True, 1)


def test_a_receiver_that_never_answers_does_not_hold_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "CLOSE_TIMEOUT_SEC", 0.05)
    lines, held = list[str](), threading.Event()
    with Sender({"notify.url": lambda _: held.wait(60)}, lines.append) as open_sender:
        for _ in range(sender.MAX_QUEUED + 10):
            open_sender.send(NOTIFICATION)
    held.set()
    assert lines
