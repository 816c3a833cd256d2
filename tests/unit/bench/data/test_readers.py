"""Supported kinds of data files, and the one-line error for any other content."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bench.data import conversations, file_types, readers
from bench.data.inputs import Conversation, InputError
from tests.support.cases import Case, load_cases

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
def test_each_kind_is_recognised_by_its_keys_and_gives_equal_turns(kind: str, tmp_path: Path) -> None:
    data = readers.read(write(tmp_path / "d.jsonl", SAME_TURNS[kind], "", SAME_TURNS[kind]))
    assert data.kind == kind
    assert [(chat.line, chat.turns) for chat in data] == [("line 1", TURNS), ("line 3", TURNS)]
    messages = readers.read(write(tmp_path / "m.jsonl", SAME_TURNS["messages"]))
    assert next(iter(data)).digest == next(iter(messages)).digest


def read_one(tmp_path: Path, line: object) -> Conversation:
    (conversation,) = readers.read(write(tmp_path / "d.jsonl", line))
    return conversation


@pytest.mark.parametrize("case", load_cases(__file__, "valid_lines.yaml"))
def test_a_line_gives_its_turns_answers_and_unread_keys(case: Case, tmp_path: Path) -> None:
    conversation = read_one(tmp_path, case["line"])
    turns = [f"{role}: {content}" for role, content in conversation.turns]
    assert {"turns": turns, "answers": conversation.answers, "unread": list(conversation.unread_keys)} == {
        "answers": [len(turns) - 1],
        "unread": [],
        **case["expected"],
    }


def test_bad_lines_are_listed_at_once(tmp_path: Path) -> None:
    good, bad = SAME_TURNS["Alpaca"], ["{", {"body": "x"}, {**SAME_TURNS["Alpaca"], "weight": 0}]
    path = write(tmp_path / "d.jsonl", good, *bad, *[good] * 200)
    with pytest.raises(InputError) as caught:
        readers.read(path)
    assert [f"line {number}: " in str(caught.value) for number in range(1, 6)] == [False, True, True, True, False]
    assert str(caught.value).startswith(f"{path}: 3 lines ")
    with pytest.raises(InputError) as caught:
        readers.read(write(path, good, *["{"] * 50))
    assert "lines cannot be used: line 2, 3, 4, 5, 6 and 15 more: not JSON; write one complete" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", load_cases(__file__, "invalid_lines.yaml"))
def test_every_other_line_is_rejected_by_file_line_and_key(case: Case, tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", SAME_TURNS["messages"], case["line"])
    with pytest.raises(InputError) as caught:
        readers.read(path)
    assert str(caught.value).startswith(f"{path}: line 2: ")
    assert case["expected"] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_endless_line_is_rejected_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_types, "MAX_ROW_BYTES", 1 << 20)
    path = tmp_path / "d.jsonl"
    with path.open("wb") as file:
        file.truncate(20 << 20)
    with pytest.raises(InputError, match=r"line 1: .* 1 MiB"):
        readers.read(path)
    with pytest.raises(InputError, match="not a JSON array"):
        readers.read(write(path, "[" * 100_000))


def test_a_line_of_too_many_turns_is_unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MAX_TURNS", 4)
    turns = SAME_TURNS["messages"]["messages"]
    assert readers.read(write(tmp_path / "d.jsonl", {"messages": turns * 2})).lines == 1
    with pytest.raises(InputError, match="line 1: 6 turns, more than 4"):
        readers.read(write(tmp_path / "d.jsonl", {"messages": turns * 3}))


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(InputError, match=f"^{path}: "):
            readers.read(path)
    for path, problem in ((tmp_path / "none", "No such file"), (tmp_path, "is a folder; .*to_parquet")):
        with pytest.raises(InputError, match=problem):
            readers.read(path)


NO_ANSWER = {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "  "}]}


def test_a_benchmark_skips_chats_without_an_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", NO_ANSWER, "", SAME_TURNS["messages"], SAME_TURNS["messages"] | {"id": 7})
    facts, conversations = readers.read_data(path)
    assert (facts.samples, facts.skipped, [chat.line for chat in conversations]) == (2, 1, ["line 3", "line 4"])
    assert [conversation.turns for conversation in conversations] == [TURNS, TURNS]
    assert facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() == file_types.sha256_of(path)
    with pytest.raises(InputError, match=r"none of 3 "):
        readers.read_data(write(path, *[NO_ANSWER] * 3))


def test_a_benchmark_holds_a_part_of_much_data_chosen_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"prompt": str(number), "completion": "x"} for number in range(60)]
    facts, whole = readers.read_data(write(tmp_path / "d.jsonl", *lines))
    monkeypatch.setattr(readers, "MAX_SAMPLES", 20)
    (_, part), (_, moved) = (readers.read_data(write(tmp_path / "d.jsonl", *rows)) for rows in (lines, lines[::-1]))
    assert (facts.samples, len(part)) == (60, 20)
    assert part == sorted(sorted(whole, key=lambda chat: chat.digest)[:20], key=whole.index)
    assert {chat.digest for chat in part} == {chat.digest for chat in moved}
