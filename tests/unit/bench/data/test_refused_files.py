"""Broken data files, and those that would fill the memory, are refused in one line with file and row."""

import gzip
from pathlib import Path

import pyarrow
import pytest

from bench.data import file_types, readers
from bench.data.inputs import InputError
from tests.support.data_files import (
    HEADER,
    ROWS,
    as_array,
    as_jsonl,
    as_parquet,
    as_parquet_of,
    as_zstd,
    write,
)

LINES = as_jsonl(ROWS)
BROKEN = {
    "cut gzip": ("d.jsonl", gzip.compress(LINES)[:-20], "after line [0-9]+: "),
    "damaged gzip": ("d.jsonl", gzip.compress(LINES)[:-8] + b"\0" * 8, "after line [0-9]+: "),
    "gzip of bytes": ("d.gz", gzip.compress(b"\x80\x81\n" * 9), r"9 lines .*line 1, 2, 3, 4, 5 and 4 more: not UTF-8"),
    "gzip of gzip": ("d.gz", gzip.compress(gzip.compress(LINES)), "gzip of gzip"),
    "blank lines": ("d.jsonl", b"\n \n", "empty"),
    "empty array": ("d.json", b" [ ] ", "empty"),
    "header only": ("d.csv", HEADER, "empty"),
    "no header": ("d.csv", b"What?,That.\nWho?,They.\n", "line 1: .*What"),
    "semicolons": ("d.csv", b"prompt;completion\na;b\n", "line 1: .*commas, found prompt;completion"),
    "UTF-16": ("d.csv", HEADER.decode().encode("utf-16"), "UTF-16 is not read"),
    "a column twice": ("d.csv", b"prompt,completion,prompt\na,b,c\n", "line 1: "),
    "a short row": ("d.csv", HEADER + b"a,b\nc\n", "line 3: .*2 .*1"),
    "a long row": ("d.csv", HEADER + b"a,b,c\nd,e\n", "line 2: .*2 .*3"),
    "an open quote": ("d.csv", HEADER + b'a,"b\nc,d\n', "line 2: not CSV"),
    "not UTF-8 in CSV": ("d.csv", HEADER + b"a,b\n\xff,c\n", "after line 2: "),
    "no JSON in a column": ("d.csv", b"messages\nhello\n", "line 2: messages: not JSON"),
    "a label of no": ("d.csv", b"prompt,completion,label\na,b,False\n", "line 2: label: "),
    "a line not to train": ("d.csv", b"prompt,completion,train\na,b,0.0\n", "line 2: train: "),
    "a number in an array": ("d.json", as_array([ROWS[0], 12]), "row 2: .*a whole number"),
    "a key twice": ("d.json", b'[{"prompt": "a", "prompt": "b", "completion": "c"}]', "array: .*'prompt'"),
    "a cut array": ("d.json", as_array(ROWS)[:-40], "not a JSON array: .*column"),
    "cut Parquet": ("d.parquet", as_parquet(ROWS)[:-9], "after row 0: "),
    "damaged Parquet": ("d.parquet", b"PAR1" + b"\xff" * 900 + as_parquet(ROWS)[904:], "after row 0: "),
    "a column's name not UTF-8": (
        "d.parquet",
        as_parquet(ROWS, store_schema=False).replace(b"completion", b"\xff" * 10),
        "after row 0: ",
    ),
    "other columns": ("d.parquet", as_parquet([{"body": "x"}]), "columns: .*found keys body"),
    "no rows": (
        "d.parquet",
        as_parquet_of(prompt=pyarrow.array([], "string"), completion=pyarrow.array([], "string")),
        "empty",
    ),
    "bytes for text": (
        "d.parquet",
        as_parquet([{"prompt": b"1", "completion": b"2"}]),
        "row 1: prompt: content: .*bytes",
    ),
    "not UTF-8 in Parquet": (
        "d.parquet",
        as_parquet(
            [{"prompt": "aXYb", "completion": "c"}], compression="none", use_dictionary=False, write_statistics=False
        ).replace(b"aXYb", b"a\xff\xffb"),
        "row 1: not UTF-8",
    ),
    "a stream of Arrow": ("d.arrow", b"\xff\xff\xff\xff\0\0", "Arrow is not read"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_file_and_row(case: str, tmp_path: Path) -> None:
    name, content, expected = BROKEN[case]
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=rf"^{path}[:/].*{expected}") as caught:
        readers.read(path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("start", [b'a,"', b""])
def test_an_endless_field_is_refused_before_it_fills_the_memory(
    start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_types, "MAX_ROW_BYTES", 1 << 16)
    path = write(tmp_path / "d.csv", gzip.compress(HEADER + start + b"x\n" * 100_000 if start else b"x" * 100_000))
    with pytest.raises(InputError, match=rf"^{path}: line .*{1 << 16}"):
        readers.read(path)


SAME, LONG = {"prompt": "x" * 9999, "completion": "y"}, {"prompt": "x" * (9 << 20), "completion": "y"}
GROWING = {
    "gzip of blank lines": gzip.compress((b" " * 4095 + b"\n") * 1024),
    "zstd of a blank line": as_zstd(b" " * (4 << 20)),
    "gzip of an array": gzip.compress(b"[" + b" " * (4 << 20)),
    "one value in all rows": as_parquet([SAME] * 9999, compression="zstd"),
    "a value that is compressed": as_parquet([LONG], compression="zstd"),
}


@pytest.mark.parametrize("case", GROWING)
def test_a_small_file_that_unpacks_to_much_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_types, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    path = write(tmp_path / "d", GROWING[case])
    with pytest.raises(InputError, match=rf"^{path}: unpacks to more than 1 MiB"):
        readers.read(path)


def test_a_file_may_grow_as_text_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_types, "ALWAYS_UNPACKED_BYTES", 1 << 20)
    for pack in (gzip.compress, as_zstd):
        assert readers.read(write(tmp_path / "d.jsonl", pack(LINES + b" " * (1 << 19)))).lines == len(ROWS)


def test_a_long_row_of_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_types, "MAX_ROW_BYTES", 1 << 20)
    path = write(tmp_path / "d.parquet", as_parquet([*ROWS, LONG], compression="zstd"))
    with pytest.raises(InputError, match=rf"^{path}: row 121: longer"):
        readers.read(path)
