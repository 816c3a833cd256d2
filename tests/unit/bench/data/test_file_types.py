"""Data files of every type: the same rows give the same conversations."""

import hashlib
import json
import shlex
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from bench.data import file_types, readers
from bench.data.inputs import InputError
from bench.records.training import DataOptions
from tests.support.data_files import CHATS, ROWS, WRITERS, as_array, as_jsonl, as_parquet, write

ALPACA = [{"instruction": "add", "input": "", "output": "x"}, {"instruction": "add", "input": "1, 1", "output": "2"}]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rows", [ROWS, CHATS, ALPACA], ids=["completion", "messages", "alpaca"])
def test_the_same_rows_give_the_same_conversations(name: str, rows: list[Any], tmp_path: Path) -> None:
    expected = readers.read(write(tmp_path / "d", as_jsonl(rows)))
    path = write(tmp_path / name, WRITERS[name](rows))
    data = readers.read(path)
    assert [chat.digest for chat in data] == [chat.digest for chat in expected]
    assert [chat.unread_keys for chat in data] == [chat.unread_keys for chat in expected]
    assert len({chat.line for chat in data}) == len(rows)
    stored = path.read_bytes()
    assert (data.kind, data.lines) == (expected.kind, len(rows))
    assert file_types.sha256_of(path) == data.sha256 == hashlib.sha256(stored).hexdigest()


def test_numbers_of_lines_and_rows_lead_to_the_row(tmp_path: Path) -> None:
    table = readers.read(write(tmp_path / "d.csv", b'prompt,completion\n"a\nb",c\n\nd,e\n'))
    assert [chat.location for chat in table] == [f"{tmp_path}/d.csv: line {number}" for number in (2, 5)]
    array = readers.read(write(tmp_path / "d.json", as_array(CHATS)))
    assert [chat.location for chat in array] == [f"{tmp_path}/d.json: row {n}" for n in (1, 2, 3)]


def test_a_pattern_is_read_as_one_file(tmp_path: Path) -> None:
    for name, rows in (("b.parquet", ROWS[:2]), ("a.parquet", ROWS[2:])):
        write(tmp_path / name, as_parquet(rows))
    write(tmp_path / ".hidden.parquet", b"")
    data = readers.read(f"{tmp_path}/*.parquet")
    assert [chat.location for chat in data][-1] == f"{tmp_path}/b.parquet: row 2"
    assert (data.lines, data.sha256) == (len(ROWS), readers.sha256_of(data.path))
    write(tmp_path / "b.parquet", as_parquet(ROWS[:1]))
    assert data.sha256 != readers.sha256_of(data.path)
    with pytest.raises(InputError, match="changed while it was read"):
        list(data)
    with pytest.raises(InputError, match=r"\*\.csv: 0 files match"):
        readers.read(f"{tmp_path}/*.csv")
    write(tmp_path / "c.parquet", as_parquet(CHATS))
    with pytest.raises(InputError, match=r"c\.parquet: row 1, 2, 3: has the keys of"):
        readers.read(f"{tmp_path}/*.parquet")


COLUMNS = DataOptions(columns={"prompt": "question", "completion": "answer"})
READ_APART = ("d.jsonl", "d.csv", "d.parquet")


@pytest.mark.parametrize("name", READ_APART)
def test_columns_of_other_names_are_those_of_the_setting(name: str, tmp_path: Path) -> None:
    renamed = [{"question": row["prompt"], "answer": row["completion"], "id": row["id"]} for row in ROWS]
    data = readers.read(write(tmp_path / name, WRITERS[name](renamed)), COLUMNS)
    assert [chat.digest for chat in data] == [
        chat.digest for chat in readers.read(write(tmp_path / "x", as_jsonl(ROWS)))
    ]
    assert {chat.unread_keys for chat in data} == {("id",)}


@pytest.mark.parametrize("name", READ_APART)
def test_of_two_formats_in_a_line_the_setting_leaves_one_out(name: str, tmp_path: Path) -> None:
    both = [{**chat, "prompt": "x?", "completion": "x"} for chat in CHATS]
    path = write(tmp_path / name, WRITERS[name](both))
    with pytest.raises(InputError) as caught:
        readers.read(path)
    assert """ --columns='{"prompt": null, "completion": null}'` reads messages""" in caught.value.remedy
    for left_out, expected in (
        (("prompt", "completion"), CHATS),
        (("messages",), [{"prompt": "x?", "completion": "x"}]),
    ):
        data = readers.read(path, DataOptions(columns=dict.fromkeys(left_out)))
        digests = [chat.digest for chat in readers.read(write(tmp_path / "x", as_jsonl(expected)))]
        assert {chat.digest for chat in data} == set(digests)
        assert {chat.unread_keys for chat in data} == {tuple(sorted(f"{column} (left out)" for column in left_out))}


@pytest.mark.parametrize("name", READ_APART)
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt": "question"}, "no column question"),
        ({"promt": None}, "train.columns: promt: not a column"),
        ({"prompt": "id"}, "prompt: two columns"),
    ],
)
def test_a_wrong_name_of_a_column_is_named(
    name: str, columns: dict[str, str | None], expected: str, tmp_path: Path
) -> None:
    path = write(tmp_path / name, WRITERS[name](ROWS))
    with pytest.raises(InputError, match=expected):
        readers.read(path, DataOptions(columns=columns))


@pytest.mark.parametrize("name", READ_APART)
@pytest.mark.parametrize("names", [("frage ü", "it's"), ("body",), ("reply", "prompt")])
def test_unknown_columns_are_named_in_a_command_that_reads_them(
    name: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    path = write(tmp_path / f"a b{name}", WRITERS[name]([dict.fromkeys(names, "x")] * 2))
    with pytest.raises(InputError) as caught:
        readers.read(path)
    command = shlex.split(caught.value.remedy.split("`")[1])
    assert command[:3] == ["inv", "data.check", str(path)]
    data = readers.read(path, DataOptions(columns=json.loads(command[3].removeprefix("--columns="))))
    assert (data.lines, data.kind) == (2, "text" if len(names) == 1 else "prompt and completion")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_reading_holds_a_small_part_of_the_data(name: str, tmp_path: Path) -> None:
    rows = [{"prompt": f"{number} {'x' * 40_000}", "completion": "y" * 40_000} for number in range(50)]
    path = write(tmp_path / name, WRITERS[name](rows))
    tracemalloc.start()
    data = readers.read(path)
    assert sum(len(chat.turns) for chat in data) == 2 * len(rows)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2 << 20  # the data have 4 MiB
