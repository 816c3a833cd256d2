"""Tests of requests from inside the server's pod, by the output of the program there."""

import json

import pytest

from remote.hosts.base import Completed, HostUnreachable
from remote.hosts.command import Command
from remote.serving.client import BadServer, ServerUnavailable, connect_in_pod


class Pod:
    """Host that prints a fixed output."""

    name, workdir, python = "pod", "/w", ("python3",)

    def __init__(self, stdout: bytes, exit_code: int = 0) -> None:
        self.stdout, self.exit_code = stdout, exit_code
        self.ran: list[tuple[str, ...]] = []

    def run(self, command: Command, **_given: object) -> Completed:
        self.ran.append(command.argv)
        return Completed(exit_code=self.exit_code, stdout=self.stdout, stderr=b"Traceback\nKeyError: POD_IP\n")


def encode_response(status: int, body: bytes) -> bytes:
    return json.dumps({"status": status, "reason": "OK"}).encode() + b"\n" + body


def test_an_answer_comes_whole() -> None:
    pod = Pod(encode_response(200, b'{"data":\n[{"id": "tuned"}]}'))
    assert connect_in_pod(pod).models() == ["tuned"]
    ((*_, path, _timeout_sec, _max_bytes, _max_error_bytes),) = pod.ran
    assert path == "/v1/models"


@pytest.mark.parametrize(
    ("stdout", "code", "kind", "token"),
    [
        (encode_response(401, b"no"), 0, BadServer, "pod/v1/models: 401 OK: no"),
        (encode_response(503, b"loading"), 0, ServerUnavailable, "503 OK: loading"),
        (b'{"away": "refused"}\n', 0, ServerUnavailable, "refused"),
        (b"", 1, ServerUnavailable, "pod/v1/models: .*Traceback KeyError: POD_IP"),
        (b"[]\n", 0, ServerUnavailable, "pod/v1/models: "),
    ],
)
def test_what_is_no_answer_is_named(stdout: bytes, code: int, kind: type[Exception], token: str) -> None:
    with pytest.raises(kind, match=token):
        connect_in_pod(Pod(stdout, code)).models()


def test_a_pod_that_is_gone_is_worth_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_given: object, **_more: object) -> Completed:
        raise HostUnreachable("no pod has index 0")

    pod = Pod(b"")
    monkeypatch.setattr(pod, "run", gone)
    with pytest.raises(ServerUnavailable, match="no pod has index 0"):
        connect_in_pod(pod).models()
