"""A line's tools, calls, results and parts of text become messages, or an error by line and key."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from bench.data import readers
from bench.data.inputs import InputError
from tests.support.cases import Case, load_cases
from tests.unit.bench.data.conftest import parsed


@pytest.mark.parametrize("case", load_cases(__file__, "conversation_lines.yaml"))
def test_a_line_gives_its_messages_or_an_error_that_names_its_place(case: Case) -> None:
    line = json.loads(json.dumps(case["line"]))
    if "error" in case:
        with pytest.raises(InputError) as caught:
            parsed(**line)
        assert case["error"] in str(caught.value).replace("d.jsonl: ", "")
        assert str(caught.value).startswith("d.jsonl: line 1: ")
        assert "\n" not in str(caught.value)
        return
    conversation = parsed(**line)
    assert conversation.messages == case["expected"]
    assert conversation.answers == case["answers"]
    assert conversation.unread_keys == ()


def tool_line(arguments: object) -> dict[str, Any]:
    call = {"function": {"name": "f", "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]}


def test_deep_nesting_is_rejected_by_its_place() -> None:
    deep: Any = {}
    for _ in range(500):
        deep = {"a": deep}
    for arguments in (deep, json.dumps(deep), '{"a":' * 500_000):
        with pytest.raises(InputError, match=r"messages\[1\]: tool_calls"):
            parsed(**tool_line(arguments))
    with pytest.raises(InputError, match=r"line 1: tools"):
        parsed(prompt="a", completion="A", tools="[" * (1 << 20))


def test_the_digest_follows_tools_and_calls_and_is_older_versions_without_them() -> None:
    turns = [["user", "a"], ["assistant", "A"]]
    plain = parsed(prompt="a", completion="A")
    assert plain.digest == hashlib.sha256(json.dumps(turns, separators=(",", ":")).encode()).digest()
    tool = {"type": "function", "function": {"name": "f"}}
    lines = [
        {"prompt": "a", "completion": "A", "tools": [tool]},
        tool_line({"x": 1}),
        tool_line({"x": 2}),
    ]
    assert len({plain.digest, *(parsed(**line).digest for line in lines)}) == 1 + len(lines)


def test_a_system_text_for_all_lines_moves_the_turns_and_keeps_a_lines_own() -> None:
    prompt = [*tool_line({})["messages"], {"role": "tool", "content": "r"}]
    marked = [{"role": "assistant", "content": "A", "train": False}, {"role": "assistant", "content": "B"}]
    conversation = parsed(prompt=prompt, completion=marked)
    moved = conversation.with_system("s")
    assert moved.messages == [{"role": "system", "content": "s"}, *conversation.messages]
    assert moved.answers == [index + 1 for index in conversation.answers] == [5]
    assert conversation.with_system(None) is conversation
    assert moved.with_system("t") is moved
    assert moved.first_turns(3).messages == moved.messages[:3]


def test_tool_turns_of_a_table_are_those_of_its_lines(tmp_path: Path) -> None:
    """Two tools with other parameters: in a table each has the keys of both, the other's as null."""
    functions = [{"name": name, "parameters": {"properties": {name: {"type": "string"}}}} for name in "fg"]
    calls = [{"id": name, "function": {"name": name, "arguments": {name: "1"}}} for name in "fg"]
    results = [{"role": "tool", "content": "r", "tool_call_id": name} for name in "fg"]
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    line = {"tools": [{"function": function} for function in functions], "messages": turns}
    parquet.write_table(pyarrow.Table.from_pylist([line]), tmp_path / "d.parquet")
    (read,), expected = readers.read(tmp_path / "d.parquet"), parsed(**line)
    assert (read.messages, read.tools, read.digest) == (expected.messages, expected.tools, expected.digest)
    assert read.unread_keys == ()
