"""Speed of reading training data: the first read, against the plain tokenizer, and later reads.

`python -m tests.benchmarks.train_data [--lines 60000] [--rounds 5]`. Chats of the demo's questions and answers, with
its tokenizer. It measures the work of `inv data.check` on a worker: from the file to examples and report, or from
cached examples. The plain tokenizer is transformers' own call with offsets, for the same rendered texts, in equal
batches and with as many threads. The ratio is one of CPU seconds over all threads, round by round.

Not covered: the start of the worker's process.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.data import dataset as example_cache
from bench.data.masking import TOKENIZE_BATCH
from bench.data.tokenizer import load_tokenizer, use_all_cores
from bench.records.bootstrap import summarize
from bench.records.training import DataReport, TrainingData
from tests.benchmarks import Figure, demo_inputs, print_figures, spread

LONGEST = 4096  # tokens


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_data")
    parser.add_argument("--lines", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    first, later, ratios = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        model, data = map(Path, demo_inputs(here))
        chats = list(itertools.islice(_chats(data), arguments.lines))
        data.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        tokenizer = load_tokenizer(model)
        texts = [str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats]
        spec = TrainingData(files=[str(data)], weights=[1.0], max_seq_len=LONGEST)

        def read_data(cache: Path) -> DataReport:
            return example_cache.build_report(spec, model, lambda: tokenizer, row_tokens=LONGEST, cache_dir=cache)

        def tokenize() -> None:
            with use_all_cores():
                for start in range(0, len(texts), TOKENIZE_BATCH):
                    piece = texts[start : start + TOKENIZE_BATCH]
                    tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True)

        for number in range(arguments.rounds):
            cache = here / f"cache-{number}"
            works = (tokenize, partial(read_data, cache), partial(read_data, cache))
            (_, tokenizer_cpu_sec), (seconds, making), (again, _) = (_seconds(work) for work in works)
            first.append(len(chats) / seconds)
            ratios.append(tokenizer_cpu_sec / making)
            later.append(len(chats) / again)
        report = read_data(cache)
        assert report.was_cached
    size = f"{len(chats):,} lines of {report.tokens / report.examples:.0f} tokens"
    return [
        Figure(
            name=f"first read of {size}",
            value=spread(summarize(first), "lines/s"),
            ratio=spread(summarize(ratios), "x of the plain tokenizer"),
            goal=">= 0.9",
        ),
        Figure(name="each later read", value=spread(summarize(later), "lines/s"), goal=">= 20,000 lines/s"),
    ]


def _chats(data: Path) -> Iterator[list[dict[str, str]]]:
    """Return every question of the demo with every answer, so that no two are equal."""
    pairs = [json.loads(line)["messages"] for line in data.read_text().splitlines()]
    for step in range(len(pairs)):
        for index, (asked, _) in enumerate(pairs):
            yield [asked, pairs[(index + step) % len(pairs)][-1]]


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Measure wall seconds and CPU seconds of all threads."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
