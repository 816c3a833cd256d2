"""Held-out data is never trained on, cached examples are used only if intact, and the report shows the targets."""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.architectures.architecture import Separation
from bench.data import dataset, file_types, findings, masking
from bench.data.inputs import InputError
from bench.records.training import DataReport, TrainingData
from bench.records.trial import TrialError
from tests.support.cases import Case, load_cases
from tests.support.faults import full_disk


def write(path: Path, numbers: Sequence[int], *, answer: str = "yes") -> str:
    lines = [json.dumps({"prompt": f"Is {number} a number?", "completion": answer}) for number in numbers]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def spec_of(*files: str, **changes: Any) -> TrainingData:
    return TrainingData(**{"files": list(files), "max_seq_len": 200} | changes)


@pytest.fixture
def build(tokenizer_of: Callable[..., Any]) -> Callable[[TrainingData], dataset.Dataset]:
    return lambda spec: dataset.build(spec, *dataset.read(spec), tokenizer_of("chatml"))


def lines(examples: Sequence[masking.Example]) -> list[tuple[str, int]]:
    return [(Path(example.file).name, int(example.line.removeprefix("line "))) for example in examples]


def count(data: dataset.Dataset, kind: str) -> int:
    return sum(finding.count for finding in data.facts.findings if finding.what == kind)


def test_added_lines_move_no_line_between_training_and_validation(tmp_path: Path, build) -> None:
    parts = []
    for length in (200, 300):
        data = build(spec_of(write(tmp_path / "d.jsonl", range(length)), validation_share=0.2))
        assert not set(lines(data.training)) & set(lines(data.validation))
        parts.append({line for line in lines(data.validation) if line[1] <= 200})
    assert parts[0] == parts[1]
    assert 20 < len(parts[0]) < 60


def test_lines_of_the_validation_file_are_not_trained_on(tmp_path: Path, build) -> None:
    train, held = write(tmp_path / "t.jsonl", range(10)), write(tmp_path / "v.jsonl", [3, 4, 99])
    data = build(spec_of(train, validation_file=held))
    assert lines(data.validation) == [("v.jsonl", line) for line in (1, 2, 3)]
    assert [line for _, line in lines(data.training)] == [1, 2, 3, 6, 7, 8, 9, 10]
    assert count(data, dataset.IN_VALIDATION) == 2


def test_a_repeated_line_is_counted_and_held_out_once(tmp_path: Path, build) -> None:
    data = build(spec_of(write(tmp_path / "d.jsonl", [*range(100), *range(100)]), validation_share=0.2))
    assert count(data, dataset.DUPLICATE) == 100
    held = {(line - 1) % 100 for _, line in lines(data.validation)}
    assert len(held) == len(data.validation)
    assert not held & {(line - 1) % 100 for _, line in lines(data.training)}


def test_a_file_of_several_entries_is_refused(tmp_path: Path, build) -> None:
    path = write(tmp_path / "a.jsonl", range(3))
    with pytest.raises(InputError, match=r"a\.jsonl: .*train\.data"):
        build(spec_of(str(tmp_path / "*.jsonl"), path))


def test_lines_without_an_example_and_what_is_lost_are_counted(tmp_path: Path, build) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text("".join(f'{{"prompt": "{word}?", "completion": "{word * 300}"}}\n' for word in ("", "a")))
    path.write_text(path.read_text() + '{"prompt": "b?", "completion": "B."}\n')
    data = build(spec_of(str(path)))
    assert (len(data.training), data.facts.left_out) == (1, 2)
    assert data.facts.lost is not None
    assert (data.facts.lost.rows, data.facts.lost.all_rows) == (1, 2)


def test_the_lines_that_the_template_rejects_are_listed_at_once(tmp_path: Path, build) -> None:
    path = tmp_path / "d.jsonl"
    bad = json.dumps({"messages": [{"role": "assistant", "content": "no question"}]})
    good = bad.replace("[", '[{"role": "user", "content": "a?"}, ')
    path.write_text("\n".join([bad, *[good] * 99, bad]))
    with pytest.raises(InputError, match=r"2 lines .*line 1, 101: "):
        build(spec_of(str(path)))


def test_keys_that_are_not_read_are_findings(tmp_path: Path, build) -> None:
    lines = [{"prompt": f"{n}?", "completion": "x", "id": n} | ({f"k{n}": n} if n % 2 else {}) for n in range(200)]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = build(spec_of(str(tmp_path / "d.jsonl")))
    assert count(data, dataset.UNREAD_KEY.format("id")) == 200
    assert count(data, dataset.UNREAD_KEY.format("k1")) == 1
    assert count(data, dataset.OTHER_UNREAD_KEYS) == 100 - dataset.MAX_UNREAD_KEYS + 1
    assert len(data.facts.findings) == dataset.MAX_UNREAD_KEYS + 1


def test_a_file_without_answers_is_rejected_for_that_and_not_for_its_repeated_lines(tmp_path: Path, build) -> None:
    with pytest.raises(InputError, match=rf"d\.jsonl: .*line 1: {findings.NO_TARGET}"):
        build(spec_of(write(tmp_path / "d.jsonl", [1, 1, 1, 2], answer=" ")))
    path = write(tmp_path / "t.jsonl", [1, 1, 1])
    with pytest.raises(InputError, match=dataset.IN_VALIDATION):
        build(spec_of(path, validation_file=write(tmp_path / "v.jsonl", [1, 2])))
    with pytest.raises(InputError, match=r"; raise train\.validation_fraction"):
        build(spec_of(path, validation_share=1e-9))


@pytest.mark.parametrize("case", load_cases(__file__, "invalid_specs.yaml"))
def test_invalid_settings_are_rejected_by_field(case: Case) -> None:
    with pytest.raises(TrialError, match=case["expected"]):
        spec_of("d.jsonl", **case["changes"])


def parts(data: dataset.Dataset | None) -> tuple[object, ...]:
    return () if data is None else (list(data.training), list(data.validation), data.facts)


def test_cached_examples_equal_the_built_ones_until_a_byte_changes(
    tmp_path: Path, build, tokenizer_of: Callable[..., Any]
) -> None:
    spec = spec_of(write(tmp_path / "d.jsonl", range(50)), validation_share=0.2)
    data, write_examples = build(spec), partial(dataset.write_examples, spec, *dataset.read(spec), tokenizer_of())
    part = data.training.select([3, 1])
    assert (list(part), list(part.lengths)) == ([data.training[3], data.training[1]], [len(each.ids) for each in part])
    assert dataset.load_cached(tmp_path, "k") is None
    assert parts(data) == parts(dataset.save_cached(tmp_path, "k", write_examples))
    assert parts(data) == parts(dataset.load_cached(tmp_path, "k"))
    content = (tmp_path / "k" / dataset.EXAMPLES_FILE).read_bytes()
    for damaged in (content[:-1], content + b"\0", bytes([content[0] ^ 1]) + content[1:], b""):
        (tmp_path / "k" / dataset.EXAMPLES_FILE).write_bytes(damaged)
        assert dataset.load_cached(tmp_path, "k") is None


def test_examples_that_cannot_be_cached_are_an_error_with_folder_and_reason(
    tmp_path: Path, model_folder: Path, tokenizer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", full_disk)
    spec, cache_dir = spec_of(write(tmp_path / "d.jsonl", range(5))), tmp_path / "cache"
    with pytest.raises(InputError, match=f"^{cache_dir}: .*: No space left on device; "):
        dataset.load_examples(spec, model_folder, lambda: tokenizer_of("chatml"), cache_dir)


def test_the_key_changes_with_whatever_changes_the_examples(tmp_path: Path) -> None:
    spec = spec_of(write(tmp_path / "d.jsonl", range(5)))
    before = [file.sha256 for file in dataset.read(spec)[0]]
    assert before == [file_types.sha256_of(Path(path)) for path in spec.files]
    keys = {dataset.cache_key(spec, before, "tokenizer"), dataset.cache_key(spec, before, "another")}
    keys |= {dataset.cache_key(spec_of(*spec.files, labels="all"), before, "tokenizer")}
    write(tmp_path / "d.jsonl", range(6))
    keys |= {dataset.cache_key(spec, [file_types.sha256_of(Path(path)) for path in spec.files], "tokenizer")}
    assert len(keys) == 4


def test_the_report_counts_what_trains_and_shows_it(
    tmp_path: Path, model_folder: Path, tokenizer_of: Callable[..., Any]
) -> None:
    spec = spec_of(write(tmp_path / "d.jsonl", range(40)), validation_share=0.2)

    def report(tokenizer: Callable[[], Any]) -> DataReport:
        examples, was_cached = dataset.load_examples(spec, model_folder, tokenizer, tmp_path / "cache")
        made = dataset.summarize(spec, examples, 100, Separation(), was_cached=was_cached, seconds=0.0)
        return dataclasses.replace(made, shown=examples.facts.shown)

    without_a_tokenizer = partial(pytest.fail, "cached examples need no tokenizer")
    reports = [report(lambda: tokenizer_of("chatml")), report(without_a_tokenizer)]
    assert [report.was_cached for report in reports] == [False, True]
    first, second = reports
    assert (first.examples, first.tokens, first.targets, first.shown) == (
        second.examples, second.tokens, second.targets, second.shown,
    )  # fmt: skip
    assert first.examples + first.validation_examples == 40
    assert sum(first.lengths) == first.examples
    assert first.targets == first.examples * len("yes.")  # three bytes and the token that ends the answer
    assert first.rows >= first.tokens / 100
    (shown, *_) = first.shown
    assert "".join(part.text for part in shown.parts if part.is_target) == "yes<|im_end|>"
    assert "a number?" in "".join(part.text for part in shown.parts if not part.is_target)
