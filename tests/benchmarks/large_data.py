"""Memory that a large data set takes: `python -m bench data`, as `inv data.check` and `inv train` start it on a worker.

`python -m tests.benchmarks.large_data [--gigabytes 10] [--line-bytes 1000] [--unread-bytes 0] [--memory-gb 4]
[--kind jsonl|parquet] [--folder DIR]`. Chats of the demo's texts at random, tokenized with its tokenizer. RLIMIT_DATA
limits what each process allocates, not the pages of files that the kernel caches and drops; a process that needs
more fails. The second process opens the examples, plans an epoch and reads the rows of its first steps.

Peaks are those of the kernel (ru_maxrss): at least what this process holds when it starts the other. Needs twice the
data's size on the disk.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from bench.data import dataset, packing
from bench.records import schema
from bench.records.training import DataReport, TrainingData
from tests.benchmarks import Figure, demo_inputs, print_figures
from tests.support.paths import ROOT

GB = 10**9
MAX_SEQ_LEN = 4096
ROWS_PER_STEP, READ_STEPS = 4, 200
BATCH_ROWS = 10_000
QUESTION_CHARACTERS, KEYS_BYTES = 100, 100


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.large_data")
    parser.add_argument("--gigabytes", type=float, default=0.02)
    parser.add_argument("--line-bytes", type=int, default=1000)
    parser.add_argument("--unread-bytes", type=int, default=0, help="of each line, in a column that is not read")
    parser.add_argument("--memory-gb", type=float, default=4.0)
    parser.add_argument("--kind", choices=("jsonl", "parquet"), default="jsonl")
    parser.add_argument("--folder", type=Path, help="keeps data and examples; default: a temporary folder")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)  # the second process
    arguments = parser.parse_args(argv)
    if arguments.read is not None:
        _read_steps(arguments.read)
        return []
    with nullcontext(arguments.folder) if arguments.folder else tempfile.TemporaryDirectory() as folder:
        return _measure(Path(folder), arguments)


def _measure(folder: Path, arguments: argparse.Namespace) -> list[Figure]:
    folder.mkdir(parents=True, exist_ok=True)
    model, demo_data = demo_inputs(folder)
    data = _write(Path(demo_data), folder, arguments)
    spec = TrainingData(files=[str(data)], weights=[1.0], max_seq_len=MAX_SEQ_LEN, validation_share=0.001)
    spec_file = folder / "spec.json"
    spec_file.write_text(json.dumps(schema.to_json(spec)))
    cache = folder / "cache"
    limit = int(arguments.memory_gb * GB)
    look = ("bench", "data", "--model", model, "--spec", str(spec_file), "--cache", str(cache))
    made, first = _run_limited((*look, "--row-tokens", str(MAX_SEQ_LEN)), limit)
    report = schema.from_json(DataReport, json.loads(made))
    _, second = _run_limited(("tests.benchmarks.large_data", "--read", str(cache)), limit)
    size = (
        f"{data.stat().st_size / GB:.3g} GB of {arguments.kind}, {report.examples:,} examples, {report.tokens:,} tokens"
    )
    goal = f"<= {arguments.memory_gb:g} GB"
    return [
        Figure(name=f"first read of {size}", value=first, goal=goal),
        Figure(name=f"plan of an epoch, {READ_STEPS} steps read", value=second, goal=goal),
    ]


def _write(demo_data: Path, folder: Path, arguments: argparse.Namespace) -> Path:
    """Write the data file, unless it is there, and return it."""
    data = folder / f"large.{arguments.kind}"
    messages = (turn for line in demo_data.read_text().splitlines() for turn in json.loads(line)["messages"])
    texts = [turn["content"] for turn in messages]
    if data.exists():
        return data
    lines = round(arguments.gigabytes * GB / arguments.line_bytes)
    sizes = (arguments.line_bytes - arguments.unread_bytes, arguments.unread_bytes)
    rows = (_row(random.Random(number), texts, *sizes) for number in range(lines))
    if arguments.kind == "jsonl":
        with data.open("w") as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
        return data
    text = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    columns = pyarrow.schema([("messages", pyarrow.list_(text)), ("source", pyarrow.string())])
    with pyarrow.parquet.ParquetWriter(data, columns) as writer:
        while batch := list(islice(rows, BATCH_ROWS)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=columns))
    return data


def _row(rng: random.Random, texts: Sequence[str], chat_bytes: int, unread_bytes: int) -> dict[str, Any]:
    """Return a question and an answer of about `chat_bytes`, and a text that is not read; drawn at random."""
    sizes = (QUESTION_CHARACTERS, chat_bytes - QUESTION_CHARACTERS - KEYS_BYTES, unread_bytes)
    question, answer, source = ("\n".join(rng.choices(texts, k=2 + size // 100))[:size] for size in sizes)
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **({"source": source} if unread_bytes else {})}


def _run_limited(arguments: Sequence[str], limit: int) -> tuple[str, str]:
    """Run a module that may allocate `limit` bytes; return its output, and its peak memory and time as text."""

    def set_limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    began = time.perf_counter()
    process = subprocess.Popen(
        (sys.executable, "-m", *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=set_limit
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    cpu_sec, wall_sec = usage.ru_utime + usage.ru_stime, time.perf_counter() - began
    return output, f"{usage.ru_maxrss * 1024 / GB:.3g} GB resident, {cpu_sec:.0f} s of CPU time in {wall_sec:.0f} s"


def _read_steps(cache: Path) -> None:
    (entry,) = cache.iterdir()
    examples = dataset.load_cached(cache, entry.name)
    assert examples is not None
    training = examples.training
    plan = packing.SamplingPlan(
        lengths=training.lengths,
        digests=training.digests,
        seed=0,
        row_tokens=MAX_SEQ_LEN,
        micro_batches=ROWS_PER_STEP,
    )
    for rows in islice(plan.batches(1.0), READ_STEPS):
        for row in rows:
            assert all(training[index].ids for index in row)


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
