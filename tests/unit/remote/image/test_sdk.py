"""The docker SDK's answers have a longest size, whatever the engine sends."""

import io

import pytest
import requests
import urllib3

from remote.image import sdk
from remote.image.engine import EngineError

ASKED = requests.Request("GET", "http://engine/x").prepare()


def answering(content: bytes) -> requests.Response:
    response = requests.Response()
    response.raw = urllib3.HTTPResponse(body=io.BytesIO(content), preload_content=False)
    response.status_code = 200
    return response


def test_an_answer_is_read_whole_and_one_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "ANSWER_BYTES", 1000)
    short = sdk._bounded("vm", lambda *_, **__: answering(b'{"Id": 1}'))(ASKED, stream=False)
    assert short.json() == {"Id": 1}
    with pytest.raises(EngineError, match="vm: the engine's answer is longer than 0 MiB; given up"):
        sdk._bounded("vm", lambda *_, **__: answering(bytes(2000)))(ASKED)
    streamed = sdk._bounded("vm", lambda *_, **__: answering(bytes(2000)))(ASKED, stream=True)
    assert len(streamed.content) == 2000  # read piece by piece, by whoever asked for it so
