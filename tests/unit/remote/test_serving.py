"""Tests of the client with a server of its protocol, and with broken servers."""

import contextlib
import re
import time

import pytest

from remote import serving
from remote.hosts.command import Secret
from remote.serving import BadServer, Completion, ServerClient, ServerUnavailable
from tests.support.machines.fake_openai import FakeOpenAI
from tests.support.machines.http_stubs import StubHandler, StubServer


def test_chats_and_completions_are_greedy_and_say_whether_they_ended() -> None:
    with FakeOpenAI({"Hello": " Hi \n"}, key="k") as served:
        server = ServerClient(f"{served.url}/v1/", Secret("k"))
        assert server.models() == ["tuned"]
        assert server.chat("tuned", [{"role": "user", "content": "Hello"}], 9) == Completion(text="Hi", has_ended=True)
        served.reason = "length"
        assert server.complete("tuned", "<s>Hello", 9) == Completion(text="?", has_ended=False)
    assert [request["temperature"] for request in served.requests] == [0.0, 0.0]
    assert served.requests[1]["add_special_tokens"] is False, "the prompt has them already"


@pytest.mark.parametrize(
    ("broken", "kind", "token"),
    [
        ((503, b"loading", {}), ServerUnavailable, "503 Service Unavailable: loading"),
        ((404, b"no\n\x1b[2Jsuch", {}), BadServer, "404 Not Found"),
        ((302, b"", {"Location": "http://127.0.0.1:9/"}), BadServer, "302 Found"),
        ((200, b"<html>a captive portal</html>", {}), BadServer, "/v1/completions: "),
        ((200, b'{"choices": []}', {}), BadServer, "choice"),
        (
            (200, b'{"choices": [{"text": 7, "finish_reason": "stop"}]}', {}),
            BadServer,
            "choice",
        ),
        ((200, b"x" * 2000, {}), BadServer, "0 MiB"),
        ((200, b"{}", {"Content-Length": "9"}), ServerUnavailable, "7 bytes"),
        (
            (200, b"ff\r\n{}", {"Content-Length": "9", "Transfer-Encoding": "chunked"}),
            ServerUnavailable,
            "IncompleteRead",
        ),
        ((200, b"{}", {"X": "x" * 70_000}), ServerUnavailable, "LineTooLong"),
    ],
)
def test_what_is_no_answer_is_named(
    broken: tuple[int, bytes, dict[str, str]], kind: type[Exception], token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_RESPONSE_BYTES", 1000)
    with FakeOpenAI({}, broken=broken) as served, pytest.raises(kind, match=token):
        ServerClient(served.url, None).complete("tuned", "?", 9)


def test_a_list_of_models_of_another_form_is_named() -> None:
    with FakeOpenAI({}, models=(7,)) as served, pytest.raises(BadServer, match="/v1/models: "):
        ServerClient(served.url, None).models()
    with FakeOpenAI({}, broken=(200, b'{"data": 5}', {})) as served, pytest.raises(BadServer, match="/v1/models: "):
        ServerClient(served.url, None).models()


def test_an_answer_that_trickles_in_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(StubHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):  # the client hangs up
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n")
                for _ in range(60):
                    self.wfile.write(b" ")
                    time.sleep(0.05)

    monkeypatch.setattr(serving, "REQUEST_TIMEOUT_SEC", 0.2)
    with StubServer(Slow) as served, pytest.raises(ServerUnavailable, match="0 s"):
        ServerClient(f"http://{served.host}", None).models()


def test_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI({}, key="k") as served, FakeOpenAI({}) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        proxy.models = ("of the proxy",)
        assert ServerClient(served.url, Secret("k")).models() == ["tuned"]
        assert ServerClient("http://10.0.0.7", None).models() == ["of the proxy"]


def test_the_key_is_asked_for_and_goes_over_plain_http_to_this_machine_alone() -> None:
    with FakeOpenAI({}, key="k") as served, pytest.raises(BadServer, match=r"401 Unauthorized.*--key-file"):
        ServerClient(served.url, None).models()
    with pytest.raises(BadServer, match="https"):
        ServerClient("http://10.0.0.7:8000", Secret("k"))
    wrongs = ("127.0.0.1:8000", "ftp://here", "http://user:pw@here", "http:///v1", "http://[::1", "http://h:port")
    for wrong in (*wrongs, "http://h:99999", "http://h/ x", "http://h/#x", "http://h?x", "http://\x1b[2J"):
        with pytest.raises(BadServer, match=re.escape(repr(wrong))):
            ServerClient(wrong, None)
    with pytest.raises(ServerUnavailable, match="refused"):
        ServerClient("http://127.0.0.1:9", None).models()
