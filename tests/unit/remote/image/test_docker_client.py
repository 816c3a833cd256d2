"""The docker SDK's answers have a longest size, whatever the engine sends; and no error of its own gets out."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import urllib3

from remote.image import docker_client
from remote.image.engine import EngineError

ASKED = requests.Request("GET", "http://engine/x").prepare()


def answering(content: bytes) -> requests.Response:
    response = requests.Response()
    response.raw = urllib3.HTTPResponse(body=io.BytesIO(content), preload_content=False)
    response.status_code = 200
    return response


def test_an_answer_is_read_whole_and_one_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_client, "ANSWER_BYTES", 1000)
    short = docker_client._bounded("vm", lambda *_, **__: answering(b'{"Id": 1}'))(ASKED, stream=False)
    assert short.json() == {"Id": 1}
    with pytest.raises(EngineError, match="vm: the engine's answer is longer than 0 MiB; given up"):
        docker_client._bounded("vm", lambda *_, **__: answering(bytes(2000)))(ASKED)
    streamed = docker_client._bounded("vm", lambda *_, **__: answering(bytes(2000)))(ASKED, stream=True)
    assert len(streamed.content) == 2000  # read piece by piece, by whoever asked for it so


@pytest.mark.parametrize("kind", [requests.ReadTimeout, requests.ConnectionError])
def test_a_check_that_takes_too_long_is_named_whatever_the_sdk_calls_it(kind: type[Exception]) -> None:
    def wait(**_: object) -> None:
        raise kind("UnixHTTPConnectionPool(host='localhost', port=None): Read timed out. (read timeout=60.0)")

    removed = []
    container = SimpleNamespace(start=lambda: None, wait=wait, remove=lambda **_: removed.append(1))
    client: Any = SimpleNamespace(containers=SimpleNamespace(create=lambda *_, **__: container))
    with pytest.raises(EngineError, match="python check: not done after 60 s in image"):
        docker_client.run_check(client, "image", ("python", "check"), timeout_sec=60)
    assert removed == [1]
