"""How fast a training reads its data: the first look, beside the tokenizer alone, and every look after it.

`python -m tests.benchmarks.train_data [--lines 60000] [--rounds 5]`. Chats of the demo's questions and answers, with
its tokenizer. What is measured is the work of `inv data.check` on a worker: from the file to examples and report,
or from the examples that are kept. Beside it the tokenizer alone: transformers' own call with
offsets, for the same texts, rendered before, as many at once and with as many threads. The ratio is one of CPU seconds
over all threads, round by round.

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

from bench.data.tokenizer import every_core, load_tokenizer
from bench.records.bootstrap import summarize
from bench.records.training_data import DataReport, TrainingData
from bench.train import check
from bench.train.masking import AT_ONCE
from tests.benchmarks import Figure, demo_inputs, say, spread

LONGEST = 4096  # tokens


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_data")
    parser.add_argument("--lines", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args(argv)
    first, later, ratios = list[float](), list[float](), list[float]()
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        model, data = map(Path, demo_inputs(here))
        chats = list(itertools.islice(_chats(data), arguments.lines))
        data.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
        tokenizer = load_tokenizer(model)
        texts = [str(tokenizer.apply_chat_template(chat, tokenize=False)) for chat in chats]
        spec = TrainingData(files=[str(data)], weights=[1.0], max_seq_len=LONGEST)

        def look(cache: Path) -> DataReport:
            return check.report(spec, model, lambda: tokenizer, row_tokens=LONGEST, keep_in=cache)

        def tokenize() -> None:
            with every_core():
                for start in range(0, len(texts), AT_ONCE):
                    piece = texts[start : start + AT_ONCE]
                    tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True)

        for number in range(arguments.rounds):
            cache = here / f"cache-{number}"
            works = (tokenize, partial(look, cache), partial(look, cache))
            (_, alone), (seconds, making), (again, _) = (_seconds(work) for work in works)
            first.append(len(chats) / seconds)
            ratios.append(alone / making)
            later.append(len(chats) / again)
        found = look(cache)
        assert found.was_cached
    size = f"{len(chats):,} lines of {found.tokens / found.examples:.0f} tokens"
    return [
        Figure(
            name=f"first look at {size}",
            value=spread(summarize(first), "lines/s"),
            ratio=spread(summarize(ratios), "x of the tokenizer alone"),
            goal=">= 0.9",
        ),
        Figure(name="each look after it", value=spread(summarize(later), "lines/s"), goal=">= 20,000 lines/s"),
    ]


def _chats(data: Path) -> Iterator[list[dict[str, str]]]:
    """Every question of the demo with every answer, so that no two are the same."""
    pairs = [json.loads(line)["messages"] for line in data.read_text().splitlines()]
    for step in range(len(pairs)):
        for place, (asked, _) in enumerate(pairs):
            yield [asked, pairs[(place + step) % len(pairs)][-1]]


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """(seconds that pass, CPU seconds of all threads)."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began, time.process_time() - spent


if __name__ == "__main__":
    say(main(sys.argv[1:]))
