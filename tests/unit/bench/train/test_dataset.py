"""What is held out is never trained on, what is made is kept and trusted only whole, and a look shows the targets."""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.records import schema
from bench.records.training_data import DataReport, TrainingData
from bench.records.trial import TrialError
from bench.train import cache, check, dataset, masking, readers
from tests.support.faults import full_disk


def write(path: Path, numbers: Sequence[int], *, answer: str = "yes") -> str:
    lines = [json.dumps({"prompt": f"Is {number} a number?", "completion": answer}) for number in numbers]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def spec_of(*files: str, **changes: Any) -> TrainingData:
    return TrainingData(**{"files": list(files), "weights": [1.0] * len(files), "max_seq_len": 200} | changes)


@pytest.fixture
def made(tokenizer_of: Callable[..., Any]) -> Callable[[TrainingData], dataset.Dataset]:
    return lambda spec: dataset.make(spec, *dataset.read(spec), tokenizer_of("chatml"))


def lines(found: Sequence[masking.Example]) -> list[tuple[str, int]]:
    return [(Path(one.file).name, one.line) for one in found]


def count(made: dataset.Dataset, what: str) -> int:
    return sum(finding.count for finding in made.findings if finding.what == what)


def test_lines_that_are_added_move_no_line_between_training_and_validation(tmp_path: Path, made) -> None:
    parts = []
    for length in (200, 300):
        one = made(spec_of(write(tmp_path / "d.jsonl", range(length)), validation_share=0.2))
        assert not set(lines(one.training)) & set(lines(one.validation))
        parts.append({line for line in lines(one.validation) if line[1] <= 200})
    assert parts[0] == parts[1]
    assert 20 < len(parts[0]) < 60


def test_what_stands_in_the_validation_file_is_not_trained_on(tmp_path: Path, made) -> None:
    train, held = write(tmp_path / "t.jsonl", range(10)), write(tmp_path / "v.jsonl", [3, 4, 99])
    one = made(spec_of(train, validation_file=held))
    assert lines(one.validation) == [("v.jsonl", line) for line in (1, 2, 3)]
    assert [line for _, line in lines(one.training)] == [1, 2, 3, 6, 7, 8, 9, 10]
    assert count(one, dataset.REMOVED) == 2


def test_a_repeated_line_is_counted_and_held_out_once(tmp_path: Path, made) -> None:
    one = made(spec_of(write(tmp_path / "d.jsonl", [*range(100), *range(100)]), validation_share=0.2))
    assert count(one, dataset.REPEATED) == 100
    held = {(line - 1) % 100 for _, line in lines(one.validation)}
    assert len(held) == len(one.validation)
    assert not held & {(line - 1) % 100 for _, line in lines(one.training)}


def test_weights_say_how_often_a_files_lines_stand_in_an_epoch(tmp_path: Path, made) -> None:
    often, seldom = write(tmp_path / "a.jsonl", range(100)), write(tmp_path / "b.jsonl", range(100, 300))
    one = made(spec_of(often, seldom, weights=[2.0, 0.5]))
    names = [name for name, _ in lines(one.training)]
    assert names.count("a.jsonl") == 200
    assert 70 < names.count("b.jsonl") < 130
    assert len({example.digest for example in one.training}) == len(one.training)


def test_nothing_left_to_train_on_is_refused_with_the_first_reason(tmp_path: Path, made) -> None:
    path = write(tmp_path / "d.jsonl", range(3), answer=" ")
    with pytest.raises(InputError, match=r"no example is left to train on: .*line 1: has no answer to train on"):
        made(spec_of(path))
    with pytest.raises(InputError, match="no example is held out for validation"):
        made(spec_of(write(tmp_path / "e.jsonl", range(3)), validation_share=1e-9))


REFUSED = [
    ({"files": []}, "files: expected at least one data file"),
    ({"weights": [1.0, 2.0]}, "weights: expected one for each of 1 files, found 2"),
    ({"weights": [0.0]}, "weights: expected numbers above 0"),
    ({"weights": [float("nan")]}, "weights: expected numbers above 0"),
    ({"max_seq_len": 1}, "max_seq_len: expected at least 2 tokens"),
    ({"validation_share": 1.0}, "validation_share: expected from 0 to below 1"),
    ({"validation_share": 0.1, "validation_file": "v"}, "choose one of the two"),
    ({"labels": "some"}, "labels: expected one of assistant, all, found 'some'"),
    ({"too_long": "split"}, "too_long: expected one of drop, cut"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_settings_that_cannot_be_are_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrialError) as refused:
        spec_of("d.jsonl", **changes)
    assert message in str(refused.value)


def same(one: dataset.Dataset, other: dataset.Dataset) -> bool:
    return (list(one.training), list(one.validation), one.findings, one.files, one.left_out) == (
        list(other.training), list(other.validation), other.findings, other.files, other.left_out,
    )  # fmt: skip


def test_kept_examples_are_the_made_ones_until_a_byte_of_them_changes(
    tmp_path: Path, made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(spec_of(write(tmp_path / "d.jsonl", range(50)), weights=[1.5], validation_share=0.2))
    assert cache.load(tmp_path, "k") is None
    cache.keep(tmp_path, "k", one)
    kept = cache.load(tmp_path, "k")
    assert kept is not None
    assert same(one, kept)
    content = (tmp_path / "k" / cache.EXAMPLES_FILE).read_bytes()
    for damaged in (content[:-1], content + b"\0", bytes([content[0] ^ 1]) + content[1:], b""):
        (tmp_path / "k" / cache.EXAMPLES_FILE).write_bytes(damaged)
        assert cache.load(tmp_path, "k") is None
    monkeypatch.setattr(schema, "MOST_VALUES", 100)  # there may be more examples than a record may hold values
    cache.keep(tmp_path, "k", one)
    kept = cache.load(tmp_path, "k")
    assert kept is not None
    assert same(one, kept)


def test_examples_that_cannot_be_kept_are_refused_where_and_why(
    tmp_path: Path, model_folder: Path, tokenizer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    spec, cached = spec_of(write(tmp_path / "d.jsonl", range(5))), tmp_path / "cache"
    with pytest.raises(InputError, match=f"{cached}: examples cannot be kept: No space left on device; free some"):
        check.examples_of(spec, model_folder, lambda: tokenizer_of("chatml"), cached)


def test_the_key_changes_with_whatever_changes_the_examples(tmp_path: Path) -> None:
    spec = spec_of(write(tmp_path / "d.jsonl", range(5)))
    before = [file.sha256 for file in dataset.read(spec)[0]]
    assert before == [readers.sha256_of(Path(path)) for path in spec.files]
    keys = {dataset.key_of(spec, before, "tokenizer"), dataset.key_of(spec, before, "another")}
    keys |= {dataset.key_of(spec_of(*spec.files, labels="all"), before, "tokenizer")}
    write(tmp_path / "d.jsonl", range(6))
    keys |= {dataset.key_of(spec, [readers.sha256_of(Path(path)) for path in spec.files], "tokenizer")}
    assert len(keys) == 4


def test_the_report_counts_what_trains_and_shows_it(
    tmp_path: Path, model_folder: Path, tokenizer_of: Callable[..., Any]
) -> None:
    spec = spec_of(write(tmp_path / "d.jsonl", range(40)), validation_share=0.2)

    def report(tokenizer: Callable[[], Any]) -> DataReport:
        return check.report(spec, model_folder, tokenizer, row_tokens=800, keep_in=tmp_path / "cache")

    without_a_tokenizer = partial(pytest.fail, "what is kept needs none")
    reports = [report(lambda: tokenizer_of("chatml")), report(without_a_tokenizer)]
    assert [report.was_cached for report in reports] == [False, True]
    first, second = reports
    assert (first.examples, first.tokens, first.targets, first.shown) == (
        second.examples, second.tokens, second.targets, second.shown,
    )  # fmt: skip
    assert first.examples + first.validation_examples == 40
    assert sum(first.lengths) == first.examples
    assert first.targets == first.examples * len("yes.")  # three bytes and the token that ends the answer
    assert first.rows >= first.tokens / 800
    (shown, *_) = first.shown
    assert "".join(part.text for part in shown.parts if part.is_target) == "yes<|im_end|>"
    assert "a number?" in "".join(part.text for part in shown.parts if not part.is_target)
