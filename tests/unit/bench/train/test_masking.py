"""The targets are the answers and the token that ends each of them, as the template writes them, and nothing else."""

import hashlib
import signal
from bisect import bisect_left
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data.inputs import InputError
from bench.data.tokenizer import ChatTemplate
from bench.train import masking
from bench.train.masking import Example, Examples
from bench.train.readers import RawConversation

Turns = Sequence[tuple[str, str]]
TWO = (("user", "a?"), ("assistant", "A."), ("user", "b?"), ("assistant", "B."))
WITH_SYSTEM = (("system", "be good"), *TWO)


def conversation(turns: Turns) -> RawConversation:
    return RawConversation(
        file="d.jsonl", line=1, turns=tuple(turns), digest=hashlib.sha256(repr(turns).encode()).digest()
    )


def made(tokenizer: Any, turns: Turns, **options: Any) -> tuple[list[Example], masking.DataFindings]:
    maker = Examples(tokenizer, **{"max_seq_len": 4096} | options)
    return list(maker.of([conversation(turns)])), maker.findings


def targets(tokenizer: Any, example: Example) -> str:
    """The text of the targets alone."""
    kept = [token for token, target in zip(example.ids, example.targets, strict=True) if target]
    return str(tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def test_the_targets_are_the_answers_and_what_ends_them(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    (example,), findings = made(tokenizer, WITH_SYSTEM)
    assert targets(tokenizer, example) == "A.<|im_end|>B.<|im_end|>"
    assert len(example.targets) == len(example.ids)
    assert not findings.counts


texts = st.text(st.characters(codec="utf-8", exclude_characters="<[|"), min_size=1, max_size=20).filter(str.strip)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.none() | texts)
def test_whatever_the_turns_say(
    tokenizer_of: Callable[..., Any], pairs: list[tuple[str, str]], system: str | None
) -> None:
    tokenizer = tokenizer_of("chatml")
    turns = [turn for asked, answered in pairs for turn in (("user", asked), ("assistant", answered))]
    (example,), _ = made(tokenizer, [*([("system", system)] if system else []), *turns])
    assert targets(tokenizer, example) == "".join(f"{answered}<|im_end|>" for _, answered in pairs)


def test_a_template_that_changes_earlier_turns_gives_an_example_for_each_answer(
    tokenizer_of: Callable[..., Any],
) -> None:
    tokenizer = tokenizer_of("mistral")
    (whole,), findings = made(tokenizer, TWO)
    assert (targets(tokenizer, whole), findings.counts) == (" A.</s> B.</s>", {})
    both, findings = made(tokenizer, WITH_SYSTEM)
    assert [targets(tokenizer, one) for one in both] == [" A.</s>", " B.</s>"]
    assert findings.counts == {masking.ANSWER_BY_ANSWER: 1}
    for example, turns in zip(both, (WITH_SYSTEM[:3], WITH_SYSTEM), strict=True):
        given_at_inference = tokenizer.apply_chat_template(conversation(turns[:-1]).messages, tokenize=False)
        assert tokenizer.decode(example.ids).startswith(given_at_inference)


def test_an_answer_that_nothing_ends_is_ended(tokenizer_of: Callable[..., Any]) -> None:
    prompted = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }} A:{% else %} {{ m.content }}"
    prompted += "{% endif %}{% endfor %}"
    tokenizer = tokenizer_of(prompted)
    (example,), findings = made(tokenizer, TWO[:2])
    assert targets(tokenizer, example) == " A.</s>"
    assert findings.counts == {masking.END_ADDED: 1}


def test_an_end_that_is_not_the_tokenizers_and_a_doubled_start_are_noticed(tokenizer_of: Callable[..., Any]) -> None:
    (_,), findings = made(tokenizer_of("chatml", end="</s>"), TWO)
    assert findings.counts == {masking.OTHER_END: 1}
    doubled = "<s><s>{{ messages[0].content }}{% if messages | length > 1 %}{{ messages[1].content }}</s>{% endif %}"
    (_,), findings = made(tokenizer_of(doubled), TWO[:2])
    assert findings.counts == {masking.DOUBLED_START: 1}


def test_an_answer_to_nothing_is_refused_by_its_turn(tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="line 1: turn 1: the assistant's, an answer to nothing; remove that turn"):
        made(tokenizer_of("chatml"), TWO[1:])
    for turns in (TWO, TWO[1:]):  # with all labels every token but the first is a target
        (example,), _ = made(tokenizer_of("chatml"), turns, labels="all")
        assert example.targets == b"\0" + b"\1" * (len(example.ids) - 1)


@given(st.text(st.sampled_from("aé漢🙂 \n<"), max_size=12), st.sampled_from(["", "<|im_end|>", "<s>"]))
def test_a_token_is_found_where_the_list_of_offsets_has_it(
    tokenizer_of: Callable[..., Any], text: str, special: str
) -> None:
    whole = f"{text}{special}{text}"
    encoding = tokenizer_of("chatml").backend_tokenizer.encode(whole, add_special_tokens=False)
    starts = [start for start, _ in encoding.offsets]
    for character in range(len(whole) + 1):
        assert masking._token_at(encoding, len(starts), character) == bisect_left(starts, character)


@pytest.mark.parametrize("template", ["chatml", "mistral"])
def test_a_conversation_is_written_as_the_tokenizer_itself_writes_it(
    template: str, tokenizer_of: Callable[..., Any]
) -> None:
    tokenizer, messages = tokenizer_of(template), conversation(WITH_SYSTEM).messages
    written = ChatTemplate(tokenizer)
    assert written._write == written._bare
    for prompt in (False, True):
        own = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert written.text("d.jsonl: line 1", messages, prompt=prompt) == own
    other_version = SimpleNamespace(apply_chat_template=lambda _messages, **_: "its own")
    assert ChatTemplate(other_version).text("d.jsonl: line 1", messages) == "its own"


@pytest.mark.parametrize("says", ["", "a"])
@pytest.mark.parametrize("when", ["", "{% if messages | length > 2 %}"])
def test_a_template_that_does_not_end_is_given_up_with_the_line_it_loops_over(
    says: str, when: str, tokenizer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.data.tokenizer.LONGEST_SEC", 0.05)
    loops = "".join(f"{{% for _{depth} in range(99999) %}}" for depth in range(4)) + says + "{% endfor %}" * 4
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = f"{when}{loops}{'{% endif %}' if when else ''}"
    with pytest.raises(InputError, match=r"^d\.jsonl: line 7: the model's chat template has not ended"):
        ChatTemplate(tokenizer).text("d.jsonl: line 7", conversation(WITH_SYSTEM).messages)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0), "it counts only while a template writes"


@pytest.mark.parametrize("is_bare", [True, False])
def test_a_template_that_writes_the_day_makes_the_same_examples_on_each_day(
    is_bare: bool, tokenizer_of: Callable[..., Any]
) -> None:
    written = ChatTemplate(
        tokenizer_of("{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    assert written._write == written._bare
    if not is_bare:
        written._write = written._whole
    assert written.text("d.jsonl: line 1", [{"role": "user", "content": "!"}]) == "01 Jan 2026!"


def test_without_an_answer_there_is_nothing_to_train_on(tokenizer_of: Callable[..., Any]) -> None:
    for turns in ((("user", "a?"),), (("user", "a?"), ("assistant", " \n"))):
        none, findings = made(tokenizer_of("chatml"), turns)
        assert (none, findings.counts) == ([], {masking.WITHOUT_TARGET: 1})
    assert findings.places == {masking.WITHOUT_TARGET: ["d.jsonl: line 1"]}


@pytest.mark.parametrize("template", ["chatml", "mistral"])
def test_cut_keeps_whole_answers_and_the_token_that_ends_them(template: str, tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of(template)
    turns = [*TWO, ("user", "c?"), ("assistant", "C" * 100)]
    whole = len(made(tokenizer, turns)[0][0].ids)
    two = len(made(tokenizer, TWO)[0][0].ids)
    for most in (two, two + 5, whole - 1):
        (example,), findings = made(tokenizer, turns, max_seq_len=most, too_long="cut")
        assert example.ids == made(tokenizer, TWO)[0][0].ids
        assert findings.counts == {masking.CUT: 1}
    assert made(tokenizer, turns, max_seq_len=whole, too_long="cut")[1].counts == {}


def test_what_does_not_fit_is_dropped_and_named(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    assert made(tokenizer, TWO, max_seq_len=20)[1].counts == {masking.TOO_LONG_DROPPED: 1}
    none, findings = made(tokenizer, TWO, max_seq_len=20, too_long="cut")
    assert (none, findings.counts) == ([], {masking.FIRST_ANSWER_TOO_LONG: 1})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no\nsystem') }}", "chat template refuses it: no system"),
        ("{{ 1 / 0 }}", "chat template refuses it: division by zero"),
        ("{% for i in range(10**9) %}{% endfor %}", "chat template refuses it: Range too big"),
        ("{{ '' }}", "renders nothing"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "turn 2: the model's chat template writes another text before the answer",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(
    template: str, message: str, tokenizer_of: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match=message):
        made(tokenizer_of(template), TWO)
