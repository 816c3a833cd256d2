"""Data files of every type, written from rows."""

import codecs
import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

ROWS: list[dict[str, Any]] = [
    {"prompt": f"{n} + {n}?\n\"really\", é", "completion": f"{2 * n},\r\nyes", "id": str(n)} for n in range(120)
]  # fmt: skip
CHATS = [{"messages": [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": f"{n}"}]} for n in "123"]
HEADER = b"prompt,completion\n"


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


SKIPPED_FRAME = b"\x50\x2a\x4d\x18\4\0\0\0meta"
WRITERS: dict[str, Callable[[list[Any]], bytes]] = {
    "d.jsonl": as_jsonl,
    "d.json": as_array,
    "marked.jsonl": lambda rows: codecs.BOM_UTF8 + as_jsonl(rows),
    "marked.json.gz": lambda rows: gzip.compress(codecs.BOM_UTF8 + as_array(rows)),
    "d.csv": as_csv,
    "d.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "misnamed.jsonl": lambda rows: gzip.compress(as_jsonl(rows[:1])) + gzip.compress(as_jsonl(rows[1:])),
    "d.parquet": as_parquet,
    "misnamed.csv": lambda rows: as_parquet(rows, row_group_size=2, compression="zstd"),
    "D.CSV.GZ": lambda rows: gzip.compress(as_csv(rows)),
    "two.zst": lambda rows: SKIPPED_FRAME + as_zstd(as_jsonl(rows[:1])) + as_zstd(as_jsonl(rows[1:])),
    "d.json.zst": lambda rows: as_zstd(as_array(rows)),
}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
