"""Data files of every type: the same rows give the same conversations, broken files one line with file and row."""

import csv
import gzip
import hashlib
import io
import json
import struct
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from bench.data import arrow_files, dataset, file_types, readers, row_limits
from bench.data.collate import make_rows
from bench.data.inputs import InputError
from bench.records import Trial
from bench.records.training import DataOptions, TrainingData

SAVED = Path(__file__).parent / "saved_by_datasets"
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


def as_zstd(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def as_stream(rows: list[Any], **options: Any) -> bytes:
    table, content = pyarrow.Table.from_pylist(rows), io.BytesIO()
    with ipc.new_stream(content, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=10)
    return content.getvalue()


def ipc_of(**columns: Any) -> bytes:
    content, table = io.BytesIO(), pyarrow.table(columns)
    with ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def as_folder(*streams: bytes, **state: Any) -> dict[str, bytes]:
    """The files that `datasets` saves, by name."""
    files = {f"data-{number:05}-of-{len(streams):05}.arrow": stream for number, stream in enumerate(streams)}
    listed = {"_data_files": [{"filename": name} for name in files], "_split": None} | state
    return {"state.json": json.dumps(listed).encode(), "dataset_info.json": b"{}", **files}


SKIPPED_FRAME = b"\x50\x2a\x4d\x18\4\0\0\0meta"
WRITERS: dict[str, Callable[[list[Any]], bytes | dict[str, bytes]]] = {
    "d.json": as_array,
    "no suffix": as_array,
    "d.csv": as_csv,
    "d.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "misnamed.jsonl": lambda rows: gzip.compress(as_jsonl(rows[:1])) + gzip.compress(as_jsonl(rows[1:])),
    "d.json.gz": lambda rows: gzip.compress(as_array(rows)),
    "d.parquet": as_parquet,
    "misnamed.csv": lambda rows: as_parquet(rows, row_group_size=2, compression="zstd"),
    "D.CSV.GZ": lambda rows: gzip.compress(as_csv(rows)),
    "d.jsonl.zst": lambda rows: as_zstd(as_jsonl(rows)),
    "two.zst": lambda rows: SKIPPED_FRAME + as_zstd(as_jsonl(rows[:1])) + as_zstd(as_jsonl(rows[1:])),
    "d.json.zst": lambda rows: as_zstd(as_array(rows)),
    "d.csv.zst": lambda rows: as_zstd(as_csv(rows)),
    "saved": lambda rows: as_folder(as_stream(rows[:1]), as_stream(rows[1:])),
}


def write(path: Path, content: bytes | dict[str, bytes]) -> Path:
    """Write a file, or a folder of files."""
    if isinstance(content, dict):
        path.mkdir()
        for name, part in content.items():
            (path / name).write_bytes(part)
    else:
        path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("rows", [ROWS, CHATS, ALPACA], ids=["completion", "messages", "alpaca"])
def test_the_same_rows_give_the_same_conversations(
    name: str, rows: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "CHUNK_BYTES", 64)  # so that rows of an array end in later chunks
    expected = readers.read(write(tmp_path / "d", as_jsonl(rows)))
    path = write(tmp_path / name, WRITERS[name](rows))
    data = readers.read(path)
    assert [chat.digest for chat in data] == [chat.digest for chat in expected]
    assert [chat.unread_keys for chat in data] == [chat.unread_keys for chat in expected]
    assert len({chat.line for chat in data}) == len(rows)
    stored = b"".join(part.read_bytes() for part in ([path] if path.is_file() else path.glob("*.arrow")))
    assert (data.kind, data.lines, data.bytes) == (expected.kind, len(rows), len(stored))
    assert file_types.sha256_of(path) == data.sha256
    assert path.is_dir() or data.sha256 == hashlib.sha256(stored).hexdigest()


@pytest.mark.parametrize("name", [*WRITERS, "d-*.jsonl"])
def test_a_benchmark_and_a_training_have_the_same_examples_of_any_file(
    name: str, tmp_path: Path, tokenizer_of: Callable[..., Any], make_trial: Callable[..., Trial]
) -> None:
    rows = [{"question": chat["messages"][0]["content"], "answer": chat["messages"][1]["content"]} for chat in CHATS]
    options = {"columns": {"prompt": "question", "completion": "answer"}}
    if name in WRITERS:
        write(tmp_path / name, WRITERS[name](rows))
    else:
        write(tmp_path / "d-1.jsonl", as_jsonl(rows[:1]))
        write(tmp_path / "d-2.jsonl", as_jsonl(rows[1:]))

    def ids(path: Path) -> list[list[int]]:
        spec = TrainingData(files=[str(path)], weights=[1.0], max_seq_len=64, **options)
        examples = [
            example.ids.tolist() for example in dataset.build(spec, *dataset.read(spec), tokenizer_of()).training
        ]
        trial = make_trial(data=str(path), data_options=DataOptions(**options), max_seq_len=64, measured_steps=3)
        rows = make_rows(trial, readers.read_data(path, trial.reading)[1], tokenizer_of())
        assert sorted(row.ids for row in rows) == sorted(examples)
        return examples

    assert ids(tmp_path / name) == ids(write(tmp_path / "plain", as_jsonl(rows)))


def test_numbers_of_lines_and_rows_lead_to_the_row(tmp_path: Path) -> None:
    table = readers.read(write(tmp_path / "d.csv", b'prompt,completion\n"a\nb",c\n\nd,e\n'))
    assert [chat.location for chat in table] == [f"{tmp_path}/d.csv: line {number}" for number in (2, 5)]
    array = readers.read(write(tmp_path / "d.json", as_array(CHATS)))
    assert [chat.location for chat in array] == [f"{tmp_path}/d.json: row {n}" for n in (1, 2, 3)]


LINES = as_jsonl(ROWS)
HEADER = b"prompt,completion\n"
PROMPT_BYTES = len(ROWS[0]["prompt"].encode())
BROKEN = {
    "cut gzip": ("d.jsonl", gzip.compress(LINES)[:-20], "after line [0-9]+: "),
    "cut header of gzip": ("d.jsonl", gzip.compress(LINES)[:5], "after line 0: "),
    "damaged gzip": ("d.jsonl", gzip.compress(LINES)[:-8] + b"\0" * 8, "after line [0-9]+: "),
    "damaged stream": ("d.jsonl", gzip.compress(LINES)[:40] + b"\xff" * 99, "after line [0-9]+: "),
    "bytes after gzip": ("d.jsonl", gzip.compress(LINES) + b"more", "after line [0-9]+: "),
    "gzip of bytes": ("d.gz", gzip.compress(b"\x80\x81\n" * 9), r"9 lines .*line 1, 2, 3, 4, 5 and 4 more: not UTF-8"),
    "gzip of gzip": ("d.gz", gzip.compress(gzip.compress(LINES)), "gzip of gzip"),
    "cut zstd": ("d.jsonl", as_zstd(LINES)[:-20], "after line [0-9]+: "),
    "cut header of zstd": ("d.jsonl", as_zstd(LINES)[:6], "after line 0: "),
    "damaged zstd": ("d.jsonl", as_zstd(LINES)[:40] + b"\xff" * 99, "after line [0-9]+: "),
    "bytes after zstd": ("d.csv", as_zstd(as_csv(ROWS)) + b"more", "after line [0-9]+: "),
    "zstd of gzip": ("d.zst", as_zstd(gzip.compress(LINES)), "zstd of gzip"),
    "Parquet in zstd": ("d.zst", as_zstd(as_parquet(ROWS)), "zstd of Parquet"),
    "nothing in zstd": ("d.zst", as_zstd(b""), "empty"),
    "zip": ("d.csv", b"PK\x03\x04123", "zip"),
    "nothing": ("d.csv", b"", "empty"),
    "nothing in gzip": ("d.csv.gz", gzip.compress(b""), "empty"),
    "empty array": ("d.json", b" [ ] ", "empty"),
    "header only": ("d.csv", HEADER, "empty"),
    "no header": ("d.csv", b"What?,That.\nWho?,They.\n", "line 1: .*What"),
    "a column unknown": ("d.csv", b"prompt,answer\na,b\n", "line 1: .*answer"),
    "semicolons": ("d.csv", b"prompt;completion\na;b\n", "line 1: .*commas, found prompt;completion"),
    "UTF-16": ("d.csv", HEADER.decode().encode("utf-16"), "found UTF-16"),
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
    "damaged Parquet": (
        "d.parquet",
        b"PAR1" + b"\xff" * 900 + as_parquet(ROWS)[904:],
        r"\(row group 1\): not",
    ),
    "a column's name not UTF-8": (
        "d.parquet",
        as_parquet(ROWS, store_schema=False).replace(b"completion", b"\xff" * 10),
        "after row 0: not Parquet",
    ),
    "other columns": ("d.parquet", as_parquet([{"body": "x"}]), "columns: .*found keys body"),
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
    "bytes for text": (
        "d.parquet",
        as_parquet([{"prompt": b"1", "completion": b"2"}]),
        "row 1: prompt: a value is not JSON",
    ),
    "not UTF-8 in Parquet": (
        "d.parquet",
        as_parquet(
            [{"prompt": "aXYb", "completion": "c"}], compression="none", use_dictionary=False, write_statistics=False
        ).replace(b"aXYb", b"a\xff\xffb"),
        "row 1: prompt: a value is not JSON",
    ),
    "a label of no in Parquet": ("d.parquet", as_parquet([{**ROWS[0], "label": 0.0}]), "row 1: label: "),
    "a date in Parquet": ("d.parquet", as_parquet([{**ROWS[0], "prompt": datetime.now(UTC)}]), "row 1: prompt: "),
    "a file of a saved folder": ("d.arrow", as_stream(ROWS), "name the folder"),
    "a folder": ("saved", {"a.txt": b""}, "is a folder without state.json"),
    "several splits": (
        "saved",
        {"dataset_dict.json": b'{"splits": ["train", "test"]}'},
        "train, test; name one: .*train",
    ),
    "splits of another kind": ("saved", {"dataset_dict.json": b"[]"}, "has several splits"),
    "no JSON in a state": ("saved", {"state.json": b"{"}, "state.json: not JSON"),
    "a list as state": ("saved", {"state.json": b"[]"}, "state.json: expected"),
    "no files in a folder": ("saved", as_folder(), "state.json: expected"),
    "indices in a folder": (
        "saved",
        as_folder(as_stream(ROWS), _indices_data_files=[{"filename": "indices.arrow"}]),
        "state.json: expected",
    ),
    "a path out of a folder": (
        "saved",
        as_folder(_data_files=[{"filename": "../d.arrow"}]),
        r"_data_files: .*'\.\./d\.arrow'",
    ),
    "a number as a file": ("saved", as_folder(_data_files=[{"filename": 1}]), "_data_files: "),
    "a file that is missing": ("saved", as_folder(_data_files=[{"filename": "d.arrow"}]), "cannot be read"),
    "a cut stream": ("saved", as_folder(as_stream(ROWS)[:-99]), "after row [0-9]+: not an Arrow stream"),
    "a cut schema": ("saved", as_folder(as_stream(ROWS)[:99]), "after row 0: not an Arrow stream"),
    "no stream": ("saved", as_folder(b"ARROW1" * 99), "after row 0: not an Arrow stream"),
    "an endless message": ("saved", as_folder(b"\xff\xff\xff\xff\xff\xff\xff\x7f"), "after row 0: not an Arrow"),
    "a compressed stream": ("saved", as_folder(as_stream(ROWS, compression="zstd")), "after row 0: .*uncompressed"),
    "other columns in a folder": ("saved", as_folder(as_stream([{"body": "x"}])), "columns: .*found keys body"),
    "numbers in a folder": (
        "saved",
        as_folder(as_stream(ROWS), as_stream([{"prompt": 1, "completion": 2}])),
        "row 301: prompt: .*a whole number",
    ),
    "offsets beyond a stream": (
        "saved",
        as_folder(as_stream([ROWS[0]]).replace(struct.pack("<ii", 0, PROMPT_BYTES), struct.pack("<ii", 0, 1 << 30))),
        "after row 0: not an Arrow stream",
    ),
    "offsets that go back in a stream": (
        "saved",
        as_folder(as_stream([ROWS[0]]).replace(struct.pack("<ii", 0, PROMPT_BYTES), struct.pack("<ii", 9, 3))),
        "after row 0: not an Arrow stream",
    ),
    "not UTF-8 in an array": ("d.json", b'[{"prompt": "\xff"}]', "row 1: not UTF-8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_file_and_row(case: str, tmp_path: Path) -> None:
    name, content, expected = BROKEN[case]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=rf"^{path}[:/].*{expected}") as caught:
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
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 1 << 16)
    path = write(tmp_path / name, gzip.compress(start + piece * 1_000_000))
    with pytest.raises(InputError, match=rf"^{path}: {location}: .*longer"):
        readers.read(path)


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_limits, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    for pack in (gzip.compress, as_zstd):
        path = write(tmp_path / "d.jsonl", pack(b"\n" * (4 << 20)))
        with pytest.raises(InputError, match=rf"^{path}: unpacks to more than 1 MiB"):
            readers.read(path)
        readers.read(write(path, pack(LINES + b"\n" * (1 << 19))))


def test_a_small_parquet_file_of_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_limits, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    same, long = {"prompt": "x" * 9999, "completion": "y"}, {"prompt": "x" * (9 << 20), "completion": "y"}
    for rows in ([same] * 9999, [long]):  # one value in all rows, and one that is compressed
        path = write(tmp_path / "d.parquet", as_parquet(rows, compression="zstd"))
        with pytest.raises(InputError, match=rf"^{path}: unpacks to more than 1 MiB"):
            readers.read(path)
    monkeypatch.setattr(row_limits, "ALWAYS_UNPACKED_BYTES", 1 << 30)
    monkeypatch.setattr(row_limits, "MAX_ROW_BYTES", 1 << 20)
    for rows, location in (([long], "row group 1: the mean row"), ([long, *ROWS], "row 1")):
        path = write(tmp_path / "d.parquet", as_parquet(rows, compression="zstd"))
        with pytest.raises(InputError, match=rf"^{path}: {location}: longer"):
            readers.read(path)


def test_a_small_file_of_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_limits, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    rows = [{"prompt": "a", "completion": "b"}] * 5000
    nothing = ipc_of(prompt=pyarrow.nulls(1 << 20), completion=pyarrow.nulls(1 << 20))
    many = {"d.parquet": as_parquet(rows), "d.jsonl.gz": gzip.compress(as_jsonl(rows)), "saved": as_folder(nothing)}
    for name, content in many.items():
        with pytest.raises(InputError, match="unpacks to more than 1 MiB"):
            readers.read(write(tmp_path / name, content), "skip")
    assert readers.read(write(tmp_path / "d.jsonl", as_jsonl(rows))).lines == 5000


def test_parquet_without_its_reader_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "d.parquet", as_parquet(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        readers.read(path)


def test_a_data_set_saved_by_datasets_is_read() -> None:
    """The files of `DatasetDict.save_to_disk`, datasets 5.2.0."""
    data = readers.read(SAVED / "train")
    assert [chat.turns[1] for chat in data] == [("assistant", str(2 * number)) for number in range(5)]
    assert (data.kind, data.lines) == ("messages", 5)
    with pytest.raises(InputError, match=f"{SAVED}: .*train, test.*; name one: {SAVED}/train"):
        readers.read(SAVED)


def test_a_link_in_a_saved_folder_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "saved", as_folder(as_stream(ROWS)))
    (path / "data-00000-of-00001.arrow").rename(tmp_path / "elsewhere")
    (path / "data-00000-of-00001.arrow").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="_data_files: "):
        readers.read(path)


def test_a_batch_larger_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_files, "MAX_BATCH_BYTES", 1 << 8)
    with pytest.raises(InputError, match="a batch of more than"):
        readers.read(write(tmp_path / "saved", as_folder(as_stream(ROWS))))


def test_a_pattern_is_read_as_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_HELD_BYTES", 0)  # read again, as much data is
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


COLUMNS = {"prompt": "question", "completion": "answer"}


@pytest.mark.parametrize("name", WRITERS)
def test_columns_of_other_names_are_those_of_the_setting(name: str, tmp_path: Path) -> None:
    renamed = [{"question": row["prompt"], "answer": row["completion"], "id": row["id"]} for row in ROWS]
    data = readers.read(write(tmp_path / name, WRITERS[name](renamed)), columns=COLUMNS)
    assert [chat.digest for chat in data] == [chat.digest for chat in readers.read(write(tmp_path / "x", LINES))]
    assert {chat.unread_keys for chat in data} == {("id",)}


@pytest.mark.parametrize("name", ["d.jsonl", "d.csv", "d.parquet", "saved"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"prompt": "question"}, "no column question"),
        ({"answer": "completion"}, "train.columns: answer: not a column"),
        ({"prompt": "id"}, "prompt: the file has this column as well as id"),
        ({"system": "context"}, "no column context"),
    ],
)
def test_a_wrong_name_of_a_column_is_named(name: str, columns: dict[str, str], expected: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, {**WRITERS, "d.jsonl": as_jsonl}[name](ROWS))
    with pytest.raises(InputError, match=expected):
        readers.read(path, columns=columns)


def test_columns_may_change_places(tmp_path: Path) -> None:
    (chat,) = readers.read(
        write(tmp_path / "d.csv", HEADER + b"a,b\n"), columns={"prompt": "completion", "completion": "prompt"}
    )
    assert chat.turns == (("user", "b"), ("assistant", "a"))


def varint(value: int, size: int = 0) -> bytes:
    """The zigzag varint of Parquet's footer, padded to `size` bytes."""
    value, digits = 2 * value, []
    while value or len(digits) < size or not digits:
        digits.append(value & 0x7F)
        value >>= 7
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


def test_a_parquet_file_that_states_smaller_sizes_than_it_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_limits, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    row = {"prompt": "x" * (9 << 20), "completion": "y"}
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    content = as_parquet([row, *ROWS], **options)
    group = parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0)
    for size in (group.total_byte_size, group.column(0).total_uncompressed_size):
        stated = varint(size)
        assert stated in content
        content = content.replace(stated, varint(999, len(stated)))
    assert parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0).total_byte_size == 999
    path = write(tmp_path / "d.parquet", content)
    with pytest.raises(InputError, match=rf"^{path}: (unpacks to more than 1 MiB|after row 0)"):
        readers.read(path)


@pytest.mark.parametrize("name", ["d.jsonl", "d.json", "d.csv", "d.jsonl.gz", "d.jsonl.zst", "d.parquet", "saved"])
def test_reading_holds_a_small_part_of_the_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": f"{number} {'x' * 40_000}", "completion": "y" * 40_000} for number in range(100)]
    path = write(tmp_path / name, {**WRITERS, "d.jsonl": as_jsonl}[name](rows))
    monkeypatch.setattr(readers, "MAX_HELD_BYTES", 1 << 16)
    tracemalloc.start()
    data = readers.read(path)
    assert sum(len(chat.turns) for chat in data) == 2 * len(rows)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2 << 20  # the data have 8 MiB
