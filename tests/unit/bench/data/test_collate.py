"""Text to rows to batches: nothing is lost or counted twice, and the order is reproducible."""

import dataclasses
import itertools
import json

import pytest

from bench.data import dataset, masking, readers
from bench.data.collate import (
    IGNORE_INDEX,
    PaddedCollate,
    Unpacked,
    make_prompts,
    make_rows,
)
from bench.data.inputs import Conversation, InputError
from bench.data.packing import Row
from bench.records.training import DataOptions, TrainingData
from tests.support.cases import load_cases

TEXTS = (
    "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('unknown') }}{% endif %}{{ m.content }}"
    "{% endfor %}"
)
WITH_END = TEXTS + "{% if not add_generation_prompt %}</s>{% endif %}"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    """Tokenizer with one token per letter and one for the end."""
    return tokenizer_of(WITH_END)


def chats(*lengths: int) -> list[Conversation]:
    """Make one conversation for each length in tokens, end token included; sample n consists of letter n."""
    letters = [(chr(ord("a") + index % 26), length) for index, length in enumerate(lengths)]
    return [
        Conversation(
            file="d.jsonl",
            line=f"line {line}",
            turns=(("user", letter), ("assistant", letter * (length - 2))),
            digest=b"",
        )
        for line, (letter, length) in enumerate(letters, 1)
    ]


def test_unpacked_samples_have_separate_positions_edges_and_first_tokens():
    row = Row(ids=[5, 6, 7, 8, 9, 4], lengths=(3, 1, 2))
    tensors, counts = Unpacked(longest=4, positions=12, padding=0)([row])
    assert tensors["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4, 0, 0, 0, 0, 0, 0]]
    assert tensors["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 0, 1]]
    assert tensors["edges"].tolist() == [0, 3, 4, 6, 10, 12]
    assert tensors["labels"].tolist() == [[IGNORE_INDEX, 6, 7, IGNORE_INDEX, IGNORE_INDEX, 4, *[IGNORE_INDEX] * 6]]
    assert counts == (3, 12, 6)
    tensors, _ = Unpacked(longest=4, positions=12, padding=0, edges=8)([row])
    assert tensors["edges"].tolist() == [0, 3, 4, 6, 10, 12, 12, 12]
    tensors, _ = Unpacked(longest=4, positions=12, padding=0, short=3)([row])
    assert tensors["edges"].tolist() == [0, 3, 4, 6, 9, 12]  # padding is never longer than LongRoPE's short samples
    tensors, _ = Unpacked(longest=4, positions=12, padding=0)([dataclasses.replace(row, targets=b"\0\1\0\1\1\1")])
    assert tensors["labels"].tolist() == [[IGNORE_INDEX, 6, *[IGNORE_INDEX] * 3, 4, *[IGNORE_INDEX] * 6]]


@pytest.mark.parametrize("case", load_cases(__file__, "data_options.yaml"))
def test_a_benchmark_has_the_token_ids_of_a_training(case, make_trial, tokenizer_of, tmp_path):
    path, rows = tmp_path / "d.jsonl", case["rows"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"special_tokens": "text", **case.get("options", {})}
    spec = TrainingData(files=[str(path)], max_seq_len=64, **options)
    trial = make_trial(data=str(path), data_options=DataOptions(**options), max_seq_len=64, measured_steps=len(rows))
    tokenizer = tokenizer_of(options.get("chat_template") or case.get("template", "chatml"))

    def train():
        return [example.ids.tolist() for example in dataset.build(spec, *dataset.read(spec), tokenizer).training]

    def benchmark():
        return [row.ids for row in make_rows(trial, readers.read_data(path, trial.reading)[1], tokenizer)]

    if "error" in case:
        for read in (train, benchmark):
            with pytest.raises(InputError, match=case["error"]):
                read()
        return
    assert sorted(benchmark()) == sorted(train())
    assert len(train()) == case.get("examples", len(rows))


def test_prompts_are_full_lose_no_token_between_samples_and_repeat_the_data(make_trial, tokenizer):
    trial = make_trial(max_seq_len=8)
    prompts = make_prompts(trial, chats(3, 17, 4), tokenizer, 6)
    samples = [row.ids for row in make_rows(make_trial(max_seq_len=64), chats(3, 17, 4), tokenizer)]
    tokens = list(itertools.chain.from_iterable(samples)) * 2
    assert prompts == [tokens[start : start + 8] for start in range(0, 48, 8)]


@pytest.mark.parametrize(("limit", "value"), [("TOKENIZE_BATCH", 3), ("MAX_BATCH_CHARS", 50)])
def test_rows_are_all_samples_in_the_order_of_the_seed_cut_at_the_length(
    make_trial, tokenizer, monkeypatch, limit, value
):
    monkeypatch.setattr(masking, limit, value)
    trial = make_trial(max_seq_len=64, warmup_steps=0, measured_steps=100)
    rows = make_rows(trial, chats(*range(3, 23)), tokenizer)
    assert sorted(len(row.ids) for row in rows) == list(range(3, 23))
    again, other, cut = (
        make_rows(dataclasses.replace(trial, **changes), chats(*range(3, 23)), tokenizer)
        for changes in ({}, {"seed": 7}, {"max_seq_len": 10})
    )
    assert rows == again != other
    assert [row.ids for row in cut] == [row.ids[:10] for row in rows]
    assert {row.samples for row in rows} == {1}


def test_unusable_chats_are_refused_and_typed_control_tokens_are_text(make_trial, tokenizer, tokenizer_of):
    def chat(question: str) -> Conversation:
        return Conversation(file="d.jsonl", line="line 17", turns=(("user", question), ("assistant", "b")), digest=b"")

    (row,) = make_rows(make_trial(), [chat("a</s>")], tokenizer)
    assert (tokenizer.decode(row.ids), row.ids.count(tokenizer.eos_token_id)) == ("a</s>b</s>", 1)
    with pytest.raises(InputError, match=r"d\.jsonl: line 17: .*: unknown"):
        make_rows(make_trial(), [*chats(5, 5), chat("no")], tokenizer)
    endless = tokenizer_of(WITH_END)
    endless.eos_token = None
    with pytest.raises(InputError, match=r"tokenizer_config\.json: eos_token: "):
        make_rows(make_trial(), chats(5), endless)


def test_a_batch_carries_no_loss_and_no_attention_on_padding():
    rows = [Row(ids=[5, 6, 7]), Row(ids=[9, 1], lengths=(1, 1))]
    tensors, counts = PaddedCollate(max_seq_len=4, padding=9)(rows)
    assert tensors["input_ids"].tolist() == [[5, 6, 7, 9], [9, 1, 9, 9]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    # A text token equal to the padding token, e.g. if the end of a sequence is used as padding, keeps its loss.
    assert tensors["labels"].tolist() == [[5, 6, 7, IGNORE_INDEX], [9, 1, IGNORE_INDEX, IGNORE_INDEX]]
    assert counts == (3, 8, 5)
    assert PaddedCollate(max_seq_len=4, padding=0, to_longest=True)(rows)[0]["input_ids"].shape == (2, 3)
