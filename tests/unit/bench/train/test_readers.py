"""What a data file may hold, and the one line in which every other line is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.train import readers

TURNS = (("user", "2 + 2?"), ("assistant", "4"))
SAME_TURNS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
    "Alpaca": {"instruction": "2 + 2?", "input": "", "output": "4"},
    "prompt and completion": {"prompt": "2 + 2?", "completion": "4"},
}


def write(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", SAME_TURNS)
def test_each_kind_is_recognised_by_its_keys_and_says_the_same(kind: str, tmp_path: Path) -> None:
    read = readers.read(write(tmp_path / "d.jsonl", SAME_TURNS[kind], "", SAME_TURNS[kind]))
    assert read.kind == kind
    assert [(conversation.line, conversation.turns) for conversation in read.conversations] == [(1, TURNS), (3, TURNS)]
    messages = readers.read(write(tmp_path / "m.jsonl", SAME_TURNS["messages"]))
    assert read.conversations[0].digest == messages.conversations[0].digest


def test_what_an_alpaca_line_adds_to_its_instruction(tmp_path: Path) -> None:
    line = {"instruction": "Add", "input": "2 and 2", "output": "4", "system": "Be brief"}
    (read,) = readers.read(write(tmp_path / "d.jsonl", line)).conversations
    assert read.turns == (("system", "Be brief"), ("user", "Add\n\n2 and 2"), ("assistant", "4"))


def test_a_prompt_may_be_a_list_of_messages(tmp_path: Path) -> None:
    line = {
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "completion": [{"role": "assistant", "content": "a"}],
    }
    (read,) = readers.read(write(tmp_path / "d.jsonl", line)).conversations
    assert read.turns == (("system", "s"), ("user", "u"), ("assistant", "a"))


TOOL = {"role": "tool", "content": "{}"}
ASKS = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
REFUSED: dict[str, tuple[object, str]] = {
    "no JSON": ("{", "line 2: not JSON"),
    "mark": ("\ufeff{}", "line 2: begins with a byte order mark; save"),
    "deep": ("[" * 100_000, "line 2: not JSON"),
    "a list": ([1], "line 2: expected a JSON object with messages; or conversations; or instruction and output; or"),
    "no known keys": ({"text": "x", "id": 1}, "line 2: expected an object with messages;"),
    "keys named": ({"text": "x", "id": 1}, "found keys text, id"),
    "two kinds": ({**SAME_TURNS["messages"], **SAME_TURNS["Alpaca"]}, "found the keys of messages and Alpaca"),
    "another kind": (SAME_TURNS["Alpaca"], "has the keys of Alpaca, the lines before it those of messages"),
    "no turns": ({"messages": []}, "line 2: messages: expected a list of turns, found an empty list"),
    "text for turns": ({"messages": "hello"}, "line 2: messages: expected a list of turns, found text"),
    "a turn of text": ({"messages": ["hello"]}, "messages[0]: expected an object with role and content, found text"),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0]: role: expected text, found nothing"),
    "a strange role": ({"messages": [{"role": "bot2", "content": "x"}]}, "expected one of system, user, assistant"),
    "a number": ({"messages": [{"role": "user", "content": 4}]}, "messages[0]: content: expected text, found a whole"),
    "a tool's turn": ({"messages": [TOOL]}, "messages[0]: role tool: tool turns are not trained on; remove the line"),
    "a tool's call": ({"messages": [ASKS]}, "messages[0]: tool_calls: tool turns are not trained on"),
    "half a letter": ({"messages": [{"role": "user", "content": "\ud83d"}]}, "line 2: holds half of a surrogate pair"),
    "a late system": (
        {"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]},
        "messages[1]: role system: only the first turn may be the system's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_line_is_refused_by_file_line_and_key(name: str, tmp_path: Path) -> None:
    line, message = REFUSED[name]
    path = write(tmp_path / "d.jsonl", SAME_TURNS["messages"], line)
    with pytest.raises(InputError) as refused:
        readers.read(path)
    assert str(refused.value).startswith(f"{path}: line 2: ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_line_without_end_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MOST_LINE_BYTES", 1 << 20)
    path = tmp_path / "d.jsonl"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # holes, which take no room
    with pytest.raises(InputError, match="line 1: longer than 1 MiB"):
        readers.read(path)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputError, match=r"not a regular file|cannot be read"):
            readers.read(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        readers.read(tmp_path / "none")


def test_a_file_of_blank_lines_is_empty_and_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty"):
        readers.read(write(tmp_path / "d.jsonl", "", " "))
    (tmp_path / "l.jsonl").write_bytes(b'{"prompt": "\xff", "completion": "x"}\n')
    with pytest.raises(InputError, match="line 1: not UTF-8 text"):
        readers.read(tmp_path / "l.jsonl")
