"""Every unusable data file is rejected in one line that names the file and the line."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from bench.data.conversations import read_data
from bench.data.inputs import InputError

USER, ANSWER = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because."}


def line_of(*messages: object) -> bytes:
    return json.dumps({"messages": list(messages)}).encode() + b"\n"


GOOD = line_of(USER, ANSWER)


def error_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_data(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_good_file_is_read_and_described(data_file: Path):
    facts, conversations = read_data(data_file)
    assert (facts.samples, facts.skipped) == (20, 0)
    assert facts.sha256 == hashlib.sha256(data_file.read_bytes()).hexdigest()
    assert conversations[0].messages == [USER, ANSWER]
    assert [conversation.line for conversation in conversations] == list(range(1, 21))


def test_a_missing_file_a_folder_a_pipe_and_an_empty_file_are_refused(tmp_path: Path):
    assert error_of(tmp_path / "none.jsonl").startswith(f"{tmp_path / 'none.jsonl'}: ")
    assert "No such file" in error_of(tmp_path / "none.jsonl")
    assert "folder" in error_of(tmp_path)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "pipe," in error_of(tmp_path / "pipe.jsonl")
    for content in (b"", b"\n", b"\n  \n\n"):
        (tmp_path / "d.jsonl").write_bytes(content)
        assert error_of(tmp_path / "d.jsonl").startswith(f"{tmp_path / 'd.jsonl'}: empty")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"this is not JSON\n", "not JSON"),
        (b'{"messages": [\n', "not JSON"),
        (b"\xff\xfe\n", "UTF-8"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b"[]\n", '{"messages": [{"role": ..., "content": ...}]}, found an empty list; '),
        (b"17\n", "found a whole number"),
        (b'{"instruction": "a", "input": "", "output": "b"}\n', "found keys instruction, input, output; "),
        (b'{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}\n', "found keys a, b, c, d, e, f, ...; "),
        (b"{}\n", "found an empty object; "),
        (b'{"messages": []}\n', "found messages: an empty list; "),
        (b'{"messages": "hello"}\n', "found messages: text; "),
        (b'{"messages": ["hello"]}\n', "messages[0]: expected role and content, found text"),
        (line_of({"from": "human", "value": "x"}), "messages[0]: expected role and content, found keys from, value"),
        (line_of(USER, {"role": "assistant"}), "messages[1]: expected role and content, found keys role"),
        (line_of(USER, {"role": "assistant", "content": ["x"]}), "messages[1].content: expected text, found a list"),
        (line_of({"role": 3, "content": "x"}), "messages[0].role: expected text, found a whole number"),
    ],
)
def test_a_bad_line_17_is_rejected_by_its_number(tmp_path: Path, line, expected):
    (tmp_path / "d.jsonl").write_bytes(GOOD * 16 + line + GOOD)
    message = error_of(tmp_path / "d.jsonl")
    assert "d.jsonl: line 17: " in message
    assert expected in message


@pytest.mark.parametrize(
    "line",
    [
        line_of(USER),
        line_of(ANSWER),
        line_of(USER, {"role": "assistant", "content": "  "}),
        line_of({"role": "user", "content": ""}, ANSWER),
        line_of({"role": "system", "content": "Be kind."}, {"role": "tool", "content": "x"}),
    ],
)
def test_a_file_without_one_usable_pair_is_refused(tmp_path: Path, line):
    (tmp_path / "d.jsonl").write_bytes(line * 3)
    assert "none of 3 chats " in error_of(tmp_path / "d.jsonl")


def test_chats_without_a_pair_are_counted_and_skipped_and_a_last_line_without_its_newline_counts(tmp_path: Path):
    more = line_of({**USER, "name": "Ada"}, ANSWER)  # other keys of a message are ignored
    (tmp_path / "d.jsonl").write_bytes(line_of(USER) + b"\n" + more + GOOD.rstrip())
    facts, conversations = read_data(tmp_path / "d.jsonl")
    assert (facts.samples, facts.skipped, [conversation.line for conversation in conversations]) == (2, 1, [3, 4])
    assert [conversation.messages for conversation in conversations] == [[USER, ANSWER]] * 2
