"""Size limit of the docker SDK's responses, and conversion of its errors."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import urllib3
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from remote.image import docker_client
from remote.image.engine import EngineError

REQUEST = requests.Request("GET", "http://engine/x").prepare()


def response_of(content: bytes) -> requests.Response:
    response = requests.Response()
    response.raw = urllib3.HTTPResponse(body=io.BytesIO(content), preload_content=False)
    response.status_code = 200
    return response


def test_a_response_is_read_completely_up_to_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_client, "MAX_RESPONSE_BYTES", 1000)
    short = docker_client._limit_response_size("vm", lambda *_, **__: response_of(b'{"Id": 1}'))(REQUEST, stream=False)
    assert short.json() == {"Id": 1}
    with pytest.raises(EngineError, match=r"^vm: .* 0 MiB"):
        docker_client._limit_response_size("vm", lambda *_, **__: response_of(bytes(2000)))(REQUEST)
    streamed = docker_client._limit_response_size("vm", lambda *_, **__: response_of(bytes(2000)))(REQUEST, stream=True)
    assert len(streamed.content) == 2000  # a streamed response has no limit


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (requests.ReadTimeout("read timeout=60.0"), EngineError),
        (requests.ConnectionError(ReadTimeoutError(Any, None, "read timeout=60.0")), EngineError),
        (requests.ConnectionError(ProtocolError("Connection aborted.", TimeoutError("slow"))), EngineError),
        (requests.ConnectionError("the connection timed out, says a proxy"), requests.ConnectionError),
    ],
)
def test_a_check_that_times_out_is_reported_for_each_error_class_of_the_sdk(
    error: Exception, raised: type[Exception]
) -> None:
    def wait(**_: object) -> None:
        raise error

    removed = []
    container = SimpleNamespace(start=lambda: None, wait=wait, remove=lambda **_: removed.append(1))
    client: Any = SimpleNamespace(containers=SimpleNamespace(create=lambda *_, **__: container))
    with pytest.raises(raised, match=r"^python check: .* 60 s in image" if raised is EngineError else "proxy"):
        docker_client.run_check(client, "image", ("python", "check"), timeout_sec=60)
    assert removed == [1]
