"""Text to rows to batches: nothing lost, nothing counted twice, the same order every time."""

import itertools

import pytest

from bench.data.collate import IGNORED, ConversationStats, Unpacked, _Collate, _Cycle, make_rows, rows_needed
from bench.data.inputs import InputError
from bench.data.packing import Row

END = 1


class Letters:
    """A tokenizer of one token a letter, with a template that writes begin and end itself, as Mistral's does."""

    eos_token_id: int | None = END
    ends_samples = True

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt):
        assert (tokenize, add_generation_prompt) == (False, False)
        if any(message["role"] == "narrator" for message in messages):
            from jinja2.exceptions import TemplateError

            raise TemplateError("only user and assistant are known")
        return "".join(message["content"] for message in messages)

    def __call__(self, texts, *, add_special_tokens):
        assert add_special_tokens is False  # the template wrote them
        end = [END] if self.ends_samples else []
        return {"input_ids": [[ord(letter) for letter in text] + end for text in texts]}


def chats(*lengths: int) -> list[ConversationStats]:
    """One conversation for each length in tokens, its end included; sample n is written in letter n."""
    texts = [chr(ord("a") + place % 26) * (length - 1) for place, length in enumerate(lengths)]
    return [
        ConversationStats(line=place, messages=[{"role": "user", "content": text}])
        for place, text in enumerate(texts, 1)
    ]


def test_samples_kept_apart_have_positions_edges_and_first_tokens_of_their_own():
    row = Row(ids=[5, 6, 7, 8, 9, 4], samples=3, lengths=(3, 1, 2))
    tensors, counts = Unpacked(longest=4, positions=12, padding=0)([row])
    assert tensors["input_ids"].tolist() == [[5, 6, 7, 8, 9, 4, 0, 0, 0, 0, 0, 0]]
    assert tensors["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 1, 2, 3, 0, 1]]
    assert tensors["edges"].tolist() == [0, 3, 4, 6, 10, 12]
    assert tensors["labels"].tolist() == [[IGNORED, 6, 7, IGNORED, IGNORED, 4, *[IGNORED] * 6]]
    assert counts == (3, 12, 6)


def test_a_bucketed_batch_is_padded_only_to_the_next_multiple():
    rows = [Row(ids=[5] * 9, samples=1), Row(ids=[5] * 3, samples=1)]
    assert _Collate(max_seq_len=64, padding=0, multiple=4)(rows)[0]["input_ids"].shape == (2, 12)
    assert _Collate(max_seq_len=10, padding=0, multiple=4)(rows)[0]["input_ids"].shape == (2, 10)


def test_padded_rows_are_one_sample_each_cut_at_the_length(make_trial):
    trial = make_trial(max_seq_len=10, micro_batch_size=2, warmup_steps=1, measured_steps=2)
    rows = make_rows(trial, chats(3, 10, 11, 40, 5, 8), Letters())
    assert sorted(len(row.ids) for row in rows) == [3, 5, 8, 10, 10, 10]
    assert {row.samples for row in rows} == {1}


@pytest.fixture
def packed(make_trial):
    """Rows of the layout pack, from chats of these lengths, as many as the steps need."""

    def make(*lengths, steps=3, block=8, tokenizer=None):
        sizes = {"max_seq_len": block, "micro_batch_size": 1, "warmup_steps": 0, "measured_steps": steps}
        return make_rows(make_trial(layout="pack", **sizes), chats(*lengths), tokenizer or Letters())

    return make


def test_packed_rows_are_full_lose_no_token_between_samples_and_count_their_parts(packed):
    lengths = [3, 9, 17, 2, 30, 8, 8, 5]
    rows = packed(*lengths, steps=100)
    assert {len(row.ids) for row in rows} == {8}
    assert len(rows) == sum(lengths) // 8  # the last, unfilled block is left out
    tokens = list(itertools.chain.from_iterable(row.ids for row in rows))
    samples = [list(group) for ended, group in itertools.groupby(tokens, lambda token: token == END) if not ended]
    for sample in samples[:-1]:  # the last one may be cut by the end of the last block
        assert len(sample) + 1 == lengths[sample[0] - ord("a")]
    assert all(row.samples > 0 for row in rows)
    left_out = sum(lengths) - 8 * len(rows)  # tokens of the last sample, whichever the seed put there
    assert any(sum(row.samples for row in rows) == pytest.approx(len(lengths) - left_out / last) for last in lengths)


def test_a_sample_longer_than_a_block_is_worth_something_in_each_of_its_blocks(packed):
    assert [row.samples for row in packed(*[16] * 10)] == pytest.approx([0.5, 0.5, 0.5])


def test_packing_adds_the_end_that_a_template_leaves_out(packed):
    tokenizer = Letters()
    tokenizer.ends_samples = False
    rows = packed(*[5] * 10, tokenizer=tokenizer)
    assert sum(row.ids.count(END) for row in rows) == 24 // 5
    assert sum(row.samples for row in rows) == pytest.approx(24 / 5)


def test_data_shorter_than_one_block_goes_round_until_one_is_full(packed):
    assert [len(row.ids) for row in packed(5, 6, steps=2, block=64)] == [64]


def test_data_that_fills_fewer_blocks_than_a_batch_is_refused(make_trial):
    trial = make_trial(layout="pack", max_seq_len=8, micro_batch_size=4)
    with pytest.raises(InputError, match=r"none\.jsonl: fills 3 blocks of 8 tokens, fewer than a batch of 4 "):
        make_rows(trial, chats(10, 16), Letters())


def test_no_sample_is_lost_between_the_pieces_that_are_tokenized_at_once(make_trial, monkeypatch):
    monkeypatch.setattr("bench.data.collate.TOKENIZED_AT_ONCE", 3)
    trial = make_trial(max_seq_len=64, warmup_steps=0, measured_steps=100)
    rows = make_rows(trial, chats(*range(2, 22)), Letters())
    assert sorted(len(row.ids) for row in rows) == list(range(2, 22))


@pytest.mark.parametrize("layout", ["pad", "pack"])
def test_the_order_is_the_seeds(make_trial, layout):
    def ids(seed: int) -> list[list[int]]:
        trial = make_trial(layout=layout, max_seq_len=8, seed=seed)
        return [row.ids for row in make_rows(trial, chats(*range(3, 40)), Letters())]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_no_more_is_tokenized_than_the_steps_need(make_trial, monkeypatch):
    trial = make_trial(micro_batch_size=2, gradient_accumulation_steps=3, warmup_steps=1, measured_steps=2)
    assert rows_needed(trial) == 18
    tokenized = []

    class Counting(Letters):
        def __call__(self, texts, *, add_special_tokens):
            tokenized.extend(texts)
            return super().__call__(texts, add_special_tokens=add_special_tokens)

    monkeypatch.setattr("bench.data.collate.TOKENIZED_AT_ONCE", 6)
    assert len(make_rows(trial, chats(*[5] * 1000), Counting())) == 18
    assert len(tokenized) <= 24


def test_a_chat_the_template_refuses_is_named_by_file_and_line(make_trial):
    conversations = chats(5, 5)
    conversations.append(ConversationStats(line=17, messages=[{"role": "narrator", "content": "x"}]))
    with pytest.raises(InputError, match=r"none\.jsonl: line 17: the model's chat template refuses it: only user"):
        make_rows(make_trial(), conversations, Letters())


def test_a_tokenizer_without_an_end_is_refused(make_trial):
    tokenizer = Letters()
    tokenizer.eos_token_id = None
    with pytest.raises(InputError, match=r"tokenizer_config\.json: eos_token: missing"):
        make_rows(make_trial(), chats(5), tokenizer)


def test_a_batch_carries_no_loss_and_no_attention_on_padding():
    tensors, counts = _Collate(max_seq_len=4, padding=9)([Row(ids=[5, 6, 7], samples=1), Row(ids=[9, 1], samples=2)])
    assert tensors["input_ids"].tolist() == [[5, 6, 7, 9], [9, 1, 9, 9]]
    assert tensors["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    # A token that looks like padding but is text, as where padding is the end of a sequence, keeps its loss.
    assert tensors["labels"].tolist() == [[5, 6, 7, IGNORED], [9, 1, IGNORED, IGNORED]]
    assert counts == (3, 8, 5)


def test_rows_go_round_until_there_are_enough():
    rows = [Row(ids=[number], samples=1) for number in range(3)]
    assert [row.ids for row in _Cycle(rows, 7)] == [[0], [1], [2], [0], [1], [2], [0]]
