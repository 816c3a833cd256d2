"""Data files of every type: the same rows give the same conversations, broken files one line with file and row."""

import csv
import gzip
import hashlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from bench.data import dataset, file_types, readers
from bench.data.inputs import InputError
from bench.records.training import TrainingData

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n} + {n}?\n\"really\", é", "completion": f"{2 * n},\r\nyes", "id": str(n)} for n in range(300)
]  # fmt: skip
CHATS = [{"messages": [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": f"{n}"}]} for n in "123"]
ALPACA = [{"instruction": "add", "input": "", "output": "x"}, {"instruction": "add", "input": "1, 1", "output": "2"}]


def as_jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_array(rows: list[Any]) -> bytes:
    return json.dumps(rows, indent=2, ensure_ascii=False).encode()


def as_csv(rows: list[Any]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(
        {key: value if type(value) is str else json.dumps(value) for key, value in row.items()} for row in rows
    )
    return text.getvalue().encode("utf-8-sig")


def as_parquet(rows: list[Any], **options: Any) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), content, **options)
    return content.getvalue()


def as_parquet_of(**columns: Any) -> bytes:
    content = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()


WRITERS: dict[str, Callable[[list[Any]], bytes]] = {
    "d.json": as_array,
    "no suffix": as_array,
    "d.csv": as_csv,
    "d.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "misnamed.jsonl": lambda rows: gzip.compress(as_jsonl(rows[:1])) + gzip.compress(as_jsonl(rows[1:])),
    "d.json.gz": lambda rows: gzip.compress(as_array(rows)),
    "d.parquet": as_parquet,
    "misnamed.csv": lambda rows: as_parquet(rows, row_group_size=2, compression="zstd"),
    "D.CSV.GZ": lambda rows: gzip.compress(as_csv(rows)),
}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rows", [ROWS, CHATS, ALPACA], ids=["completion", "messages", "alpaca"])
def test_the_same_rows_give_the_same_conversations(
    name: str, rows: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_types, "CHUNK_BYTES", 64)  # so that rows of an array end in later chunks
    expected = readers.read(write(tmp_path / "d", as_jsonl(rows)))
    path = write(tmp_path / name, WRITERS[name](rows))
    data = readers.read(path)
    assert [chat.digest for chat in data.conversations] == [chat.digest for chat in expected.conversations]
    assert [chat.unread_keys for chat in data.conversations] == [chat.unread_keys for chat in expected.conversations]
    assert len({chat.line for chat in data.conversations}) == len(rows)
    stored = path.read_bytes()
    assert (data.kind, data.bytes, data.sha256) == (expected.kind, len(stored), hashlib.sha256(stored).hexdigest())
    assert file_types.sha256_of(path) == data.sha256


@pytest.mark.parametrize("name", WRITERS)
def test_the_same_rows_give_the_same_examples(name: str, tmp_path: Path, tokenizer_of: Callable[..., Any]) -> None:
    def examples(path: Path) -> list[list[int]]:
        spec = TrainingData(files=[str(path)], weights=[1.0], max_seq_len=64)
        return [example.ids.tolist() for example in dataset.build(spec, *dataset.read(spec), tokenizer_of()).training]

    expected = examples(write(tmp_path / "d", as_jsonl(CHATS)))
    assert expected == examples(write(tmp_path / name, WRITERS[name](CHATS)))


def test_numbers_of_lines_and_rows_lead_to_the_row(tmp_path: Path) -> None:
    table = readers.read(write(tmp_path / "d.csv", b'prompt,completion\n"a\nb",c\n\nd,e\n'))
    assert [chat.location for chat in table.conversations] == [f"{tmp_path}/d.csv: line {number}" for number in (2, 5)]
    array = readers.read(write(tmp_path / "d.json", as_array(CHATS)))
    assert [chat.location for chat in array.conversations] == [f"{tmp_path}/d.json: row {n}" for n in (1, 2, 3)]


LINES = as_jsonl(ROWS)
HEADER = b"prompt,completion\n"
BROKEN = {
    "cut gzip": ("d.jsonl", gzip.compress(LINES)[:-20], "after line [0-9]+: "),
    "cut header of gzip": ("d.jsonl", gzip.compress(LINES)[:5], "after line 0: "),
    "damaged gzip": ("d.jsonl", gzip.compress(LINES)[:-8] + b"\0" * 8, "after line [0-9]+: "),
    "damaged stream": ("d.jsonl", gzip.compress(LINES)[:40] + b"\xff" * 99, "after line [0-9]+: "),
    "bytes after gzip": ("d.jsonl", gzip.compress(LINES) + b"more", "after line [0-9]+: "),
    "gzip of bytes": ("d.gz", gzip.compress(b"\x80\x81\n" * 9), r"9 lines .*line 1: not UTF-8"),
    "gzip of gzip": ("d.gz", gzip.compress(gzip.compress(LINES)), "gzip of gzip"),
    "zstd": ("d.zst", b"\x28\xb5\x2f\xfd123", "zstd"),
    "zip": ("d.csv", b"PK\x03\x04123", "zip"),
    "nothing": ("d.csv", b"", "empty"),
    "nothing in gzip": ("d.csv.gz", gzip.compress(b""), "empty"),
    "empty array": ("d.json", b" [ ] ", "empty"),
    "header only": ("d.csv", HEADER, "empty"),
    "no header": ("d.csv", b"What?,That.\nWho?,They.\n", "line 1: .*What"),
    "a column unknown": ("d.csv", b"prompt,answer\na,b\n", "line 1: .*answer"),
    "semicolons": ("d.csv", b"prompt;completion\na;b\n", "line 1: .*prompt;completion"),
    "a column twice": ("d.csv", b"prompt,completion,prompt\na,b,c\n", "line 1: "),
    "many columns": ("d.csv", b"a," * 300 + b"b\n", "line 1: .*256"),
    "a short row": ("d.csv", HEADER + b"a,b\nc\n", "line 3: .*2 .*1"),
    "a long row": ("d.csv", HEADER + b"a,b,c\nd,e\n", "line 2: .*2 .*3"),
    "an open quote": ("d.csv", HEADER + b'a,"b\nc,d\n', "line 2: not CSV"),
    "text after a quote": ("d.csv", HEADER + b'"a"b,c\n', "line 2: not CSV"),
    "not UTF-8 in CSV": ("d.csv", HEADER + b"a,b\n\xff,c\n", "line 3: not UTF-8"),
    "no JSON in a column": ("d.csv", b"messages\nhello\n", "line 2: messages: not JSON"),
    "text in a column": ("d.csv", b'messages\n"""hello"""\n', "line 2: messages: .*text"),
    "a label of no": ("d.csv", b"prompt,completion,label\na,b,False\n", "line 2: label: "),
    "a line not to train": ("d.csv", b"prompt,completion,train\na,b,0.0\n", "line 2: train: "),
    "a number in an array": ("d.json", as_array([ROWS[0], 12]), "row 2: .*a whole number"),
    "a text in an array": ("d.json", as_array(["x"]), "row 1: .*text"),
    "a key twice": ("d.json", b'[{"prompt": "a", "prompt": "b", "completion": "c"}]', "row 1: .*'prompt'"),
    "an open array": ("d.json", as_array(ROWS)[:-2], "row 300: "),
    "a cut array": ("d.json", as_array(ROWS)[:-40], "row 300: not JSON"),
    "no comma": ("d.json", as_array(ROWS[:1])[:-1] + as_array(ROWS[:1])[1:], "row 1: .*comma"),
    "a last comma": ("d.json", as_array(ROWS[:2])[:-1] + b",]", "row 3: not JSON"),
    "two arrays": ("d.json", as_array(ROWS[:1]) * 2, "row 1: .*nothing after"),
    "Parquet in gzip": ("d.gz", gzip.compress(as_parquet(ROWS)), "gzip of Parquet"),
    "not Parquet": ("d.parquet", LINES, "is not Parquet"),
    "nothing for Parquet": ("d.parquet", b"", "empty"),
    "cut Parquet": ("d.parquet", as_parquet(ROWS)[:-9], "after row 0: not Parquet"),
    "four bytes of Parquet": ("d.parquet", b"PAR1", "after row 0: not Parquet"),
    "damaged Parquet": ("d.parquet", b"PAR1" + b"\xff" * 900 + as_parquet(ROWS)[904:], "after row 0: not Parquet"),
    "a column's name not UTF-8": (
        "d.parquet",
        as_parquet(ROWS, store_schema=False).replace(b"completion", b"\xff" * 10),
        "after row 0: not Parquet",
    ),
    "other columns": ("d.parquet", as_parquet([{"text": "x"}]), "columns: .*found keys text"),
    "no rows": (
        "d.parquet",
        as_parquet_of(prompt=pyarrow.array([], "string"), completion=pyarrow.array([], "string")),
        "empty",
    ),
    "a list of texts": ("d.parquet", as_parquet([{"messages": ["x"]}]), r"row 1: messages\[0\]: .*text"),
    "turns in an object": (
        "d.parquet",
        as_parquet([{"messages": CHATS[0]["messages"][0]}]),
        "row 1: messages: .*an object",
    ),
    "turns in text": ("d.parquet", as_parquet([{"messages": "x"}]), "row 1: messages: .*text"),
    "other fields of turns": (
        "d.parquet",
        as_parquet([{"messages": [{"who": "user", "text": "x"}]}]),
        r"row 1: messages\[0\]: ",
    ),
    "numbers for text": ("d.parquet", as_parquet([{"prompt": 1, "completion": 2}]), "row 1: prompt: .*a whole number"),
    "bytes for text": ("d.parquet", as_parquet([{"prompt": b"1", "completion": b"2"}]), "row 1: a value is not JSON"),
    "not UTF-8 in Parquet": (
        "d.parquet",
        as_parquet(
            [{"prompt": "aXYb", "completion": "c"}], compression="none", use_dictionary=False, write_statistics=False
        ).replace(b"aXYb", b"a\xff\xffb"),
        "row 1: a value is not JSON",
    ),
    "a label of no in Parquet": ("d.parquet", as_parquet([{**ROWS[0], "label": 0.0}]), "row 1: label: "),
    "not UTF-8 in an array": ("d.json", b'[{"prompt": "\xff"}]', "row 1: not UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_file_and_row(case: str, tmp_path: Path) -> None:
    name, content, expected = BROKEN[case]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=rf"^{path}: .*{expected}|^{path}: {expected}") as caught:
        readers.read(path)
    assert len(str(caught.value).splitlines()) == 1


def test_bad_rows_of_a_table_or_an_array_are_skipped_like_lines(tmp_path: Path) -> None:
    table = write(tmp_path / "d.csv", HEADER + b"a,b\n" * 150 + b"a\n" + b"a,b\n" * 50)
    array = write(tmp_path / "d.json", as_array([*ROWS[:150], 7, *ROWS[150:]]))
    for path, location in ((table, "line 152"), (array, "row 151")):
        data = readers.read(path, "skip")
        assert data.bad_lines.count == 1
        assert data.bad_lines.places()[0].startswith(f"{path}: {location}: ")


@pytest.mark.parametrize(
    ("name", "start", "piece", "location"),
    [
        ("d.csv", HEADER + b'a,"', b"x\n", "line 2"),
        ("d.csv", HEADER, b"x", "line 2"),
        ("d.json", b'["', b"x\n", "row 1"),
        ("d.json", b'[{"a": [', b"1,", "row 1"),
    ],
)
def test_an_endless_row_is_refused_before_it_fills_the_memory(
    name: str, start: bytes, piece: bytes, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_types, "MAX_ROW_BYTES", 1 << 16)
    path = write(tmp_path / name, gzip.compress(start + piece * 1_000_000))
    with pytest.raises(InputError, match=rf"^{path}: {location}: .*longer"):
        readers.read(path)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_types, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    path = write(tmp_path / "d.jsonl.gz", gzip.compress(b"\n" * (4 << 20)))
    with pytest.raises(InputError, match=rf"^{path}: unpacks to more than 1 MiB"):
        readers.read(path)
    readers.read(write(path, gzip.compress(LINES + b"\n" * (1 << 19))))


def test_a_small_parquet_file_of_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_types, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    same, long = {"prompt": "x" * 9999, "completion": "y"}, {"prompt": "x" * (9 << 20), "completion": "y"}
    for rows in ([same] * 9999, [long]):  # one value in all rows, and one that is compressed
        path = write(tmp_path / "d.parquet", as_parquet(rows, compression="zstd"))
        with pytest.raises(InputError, match=rf"^{path}: unpacks to more than 1 MiB"):
            readers.read(path)
    monkeypatch.setattr(file_types, "ALWAYS_UNPACKED_BYTES", 1 << 30)
    monkeypatch.setattr(file_types, "MAX_ROW_BYTES", 1 << 20)
    with pytest.raises(InputError, match=rf"^{path}: row 1: longer"):
        readers.read(path)


def test_parquet_without_its_reader_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "d.parquet", as_parquet(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        readers.read(path)
