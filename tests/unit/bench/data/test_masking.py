"""Targets are exactly the answers and the token that ends each of them, as the template renders them."""

import dataclasses
import hashlib
import signal
from bisect import bisect_left
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.data import masking
from bench.data.inputs import Conversation, InputError
from bench.data.masking import Example, ExampleBuilder
from bench.data.tokenizer import ChatTemplate

Turns = Sequence[tuple[str, str]]
TWO = (("user", "a?"), ("assistant", "A."), ("user", "b?"), ("assistant", "B."))
WITH_SYSTEM = (("system", "be good"), *TWO)


def conversation(turns: Turns) -> Conversation:
    return Conversation(
        file="d.jsonl", line=1, turns=tuple(turns), digest=hashlib.sha256(repr(turns).encode()).digest()
    )


def build(tokenizer: Any, turns: Turns, **options: Any) -> tuple[list[Example], masking.DataFindings]:
    builder = ExampleBuilder(tokenizer, **{"max_seq_len": 4096} | options)
    return list(builder.build([conversation(turns)])), builder.findings


def targets(tokenizer: Any, example: Example) -> str:
    """Decode only the targets."""
    ids = [token for token, target in zip(example.ids, example.targets, strict=True) if target]
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def test_the_targets_are_the_answers_and_their_end_tokens(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    (example,), findings = build(tokenizer, WITH_SYSTEM)
    assert targets(tokenizer, example) == "A.<|im_end|>B.<|im_end|>"
    assert len(example.targets) == len(example.ids)
    assert not findings.counts


texts = st.text(st.characters(codec="utf-8", exclude_characters="<[|"), min_size=1, max_size=20).filter(str.strip)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.none() | texts)
def test_the_targets_are_the_answers_for_any_text(
    tokenizer_of: Callable[..., Any], pairs: list[tuple[str, str]], system: str | None
) -> None:
    tokenizer = tokenizer_of("chatml")
    turns = [turn for question, answer in pairs for turn in (("user", question), ("assistant", answer))]
    (example,), _ = build(tokenizer, [*([("system", system)] if system else []), *turns])
    assert targets(tokenizer, example) == "".join(f"{answer}<|im_end|>" for _, answer in pairs)


@settings(deadline=None)  # the first call compiles two templates
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3), st.none() | texts)
def test_each_answer_follows_its_prompt_for_any_text(
    tokenizer_of: Callable[..., Any], pairs: list[tuple[str, str]], system: str | None
) -> None:
    turns = [turn for question, answer in pairs for turn in (("user", question), ("assistant", answer))]
    turns = [*([("system", system)] if system else []), *turns]
    for template, before in (("mistral-v3", " "), ("open thought", "\n</think>\n\n")):
        tokenizer = tokenizer_of(template)
        examples, _ = build(tokenizer, turns)
        assert "".join(targets(tokenizer, example) for example in examples) == "".join(
            f"{before}{answer}</s>" for _, answer in pairs
        )
        prompt = ChatTemplate(tokenizer).render("", conversation(turns[:-1]).messages, prompt=True)
        assert tokenizer.decode(examples[-1].ids, clean_up_tokenization_spaces=False).startswith(prompt)


def test_a_template_that_changes_earlier_turns_gives_an_example_for_each_answer(
    tokenizer_of: Callable[..., Any],
) -> None:
    tokenizer = tokenizer_of("mistral")
    (whole,), findings = build(tokenizer, TWO)
    assert (targets(tokenizer, whole), findings.counts) == (" A.</s> B.</s>", {})
    both, findings = build(tokenizer, WITH_SYSTEM)
    assert [targets(tokenizer, example) for example in both] == [" A.</s>", " B.</s>"]
    assert findings.counts == {masking.SPLIT_BY_ANSWER: 1}
    for example, turns in zip(both, (WITH_SYSTEM[:3], WITH_SYSTEM), strict=True):
        inference_prompt = tokenizer.apply_chat_template(conversation(turns[:-1]).messages, tokenize=False)
        assert tokenizer.decode(example.ids).startswith(inference_prompt)


def test_a_system_text_that_is_left_out_once_answered_stays_in_each_example(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("mistral-v3")
    both, findings = build(tokenizer, WITH_SYSTEM)
    assert [targets(tokenizer, example) for example in both] == [" A.</s>", " B.</s>"]
    assert [tokenizer.decode(example.ids) for example in both] == [
        "<s>[INST] be good\n\na?[/INST] A.</s>",
        "<s>[INST] a?[/INST] A.</s>[INST] be good\n\nb?[/INST] B.</s>",
    ]
    assert findings.counts == {masking.SPLIT_BY_ANSWER: 1, masking.PROMPT_ADDS: 1}
    (single,), findings = build(tokenizer, WITH_SYSTEM[:3])
    assert single.ids == both[0].ids
    assert findings.counts == {masking.PROMPT_ADDS: 1}
    (whole,), _ = build(tokenizer, WITH_SYSTEM, labels="all")
    assert whole.ids == both[1].ids, "with all labels too"


@pytest.mark.parametrize("too_long", ["cut", "drop"])
def test_a_split_conversation_that_is_too_long_repeats_no_example(
    too_long: str, tokenizer_of: Callable[..., Any]
) -> None:
    tokenizer = tokenizer_of("mistral")
    turns = [*WITH_SYSTEM, ("user", "c?"), ("assistant", "C" * 100)]
    fitting, _ = build(tokenizer, WITH_SYSTEM)
    examples, findings = build(tokenizer, turns, max_seq_len=80, too_long=too_long)
    assert [targets(tokenizer, example) for example in examples] == [targets(tokenizer, each) for each in fitting]
    assert findings.counts == {masking.SPLIT_BY_ANSWER: 1, masking.TOO_LONG_CUT: 1}
    dropped = masking.TOO_LONG_DROPPED if too_long == "drop" else masking.FIRST_ANSWER_TOO_LONG
    examples, findings = build(tokenizer, turns, max_seq_len=8, too_long=too_long)
    assert (examples, findings.counts) == ([], {masking.SPLIT_BY_ANSWER: 1, dropped: 1})


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        ("A.", "\n</think>\n\nA.</s>"),
        ("<think>\nhm\n</think>\n\nA.", "hm\n</think>\n\nA.</s>"),
        ("<think>hm</think>A.", "hm</think>A.</s>"),
        ("<b>A.</b>", "\n</think>\n\n<b>A.</b></s>"),
    ],
)
def test_an_answer_after_a_prompt_with_an_open_thought_ends_the_thought(
    answer: str, target: str, tokenizer_of: Callable[..., Any]
) -> None:
    tokenizer = tokenizer_of("open thought")
    (example,), findings = build(tokenizer, (("system", "s"), ("user", "a?"), ("assistant", answer)))
    assert targets(tokenizer, example) == target
    assert tokenizer.decode(example.ids) == f"<s>[INST]s[INST]a?[/INST]<think>\n{target}"
    assert findings.counts[masking.THOUGHT_ADDED] == ("</think>" not in answer)


def test_a_thought_that_the_template_leaves_out_is_a_finding(tokenizer_of: Callable[..., Any]) -> None:
    for template, left_out in (("open thought", 0), ("chatml", 0), ("thoughts left out", 1)):
        _, findings = build(tokenizer_of(template), (("user", "a?"), ("assistant", "<think>hm</think>A.")))
        assert findings.counts[masking.THOUGHT_LEFT_OUT] == left_out


def test_answers_of_the_prompt_and_excluded_turns_are_no_targets(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    for marks in ({"prompt_turns": 3}, {"untrained": (1,)}):
        source = dataclasses.replace(conversation(TWO), **marks)
        (example,) = ExampleBuilder(tokenizer, max_seq_len=4096).build([source])
        assert targets(tokenizer, example) == "B.<|im_end|>"
    with pytest.raises(InputError, match="turn 2: "):
        list(ExampleBuilder(tokenizer, max_seq_len=4096, labels="all").build([source]))


def test_an_answer_without_an_end_token_gets_one(tokenizer_of: Callable[..., Any]) -> None:
    prompted = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }} A:{% else %} {{ m.content }}"
    prompted += "{% endif %}{% endfor %}"
    tokenizer = tokenizer_of(prompted)
    (example,), findings = build(tokenizer, TWO[:2])
    assert targets(tokenizer, example) == " A.</s>"
    assert findings.counts == {masking.EOS_ADDED: 1}


def test_another_end_token_and_a_doubled_start_are_findings(tokenizer_of: Callable[..., Any]) -> None:
    (_,), findings = build(tokenizer_of("chatml", end="</s>"), TWO)
    assert findings.counts == {masking.OTHER_EOS: 1}
    doubled = "<s><s>{{ messages[0].content }}{% if messages | length > 1 %}{{ messages[1].content }}</s>{% endif %}"
    (_,), findings = build(tokenizer_of(doubled), TWO[:2])
    assert findings.counts == {masking.DOUBLED_BOS: 1}


def test_an_answer_without_a_question_is_rejected_by_its_turn(tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"line 1: turn 1: .*; remove the turn"):
        build(tokenizer_of("chatml"), TWO[1:])
    for turns in (TWO, TWO[1:]):  # with all labels every token but the first is a target
        (example,), _ = build(tokenizer_of("chatml"), turns, labels="all")
        assert example.targets == b"\0" + b"\1" * (len(example.ids) - 1)


@given(st.text(st.sampled_from("aé漢🙂 \n<"), max_size=12), st.sampled_from(["", "<|im_end|>", "<s>"]))
def test_a_token_is_found_at_its_offset(tokenizer_of: Callable[..., Any], text: str, special: str) -> None:
    whole = f"{text}{special}{text}"
    encoding = tokenizer_of("chatml").backend_tokenizer.encode(whole, add_special_tokens=False)
    starts = [start for start, _ in encoding.offsets]
    for character in range(len(whole) + 1):
        assert masking._token_at(encoding, len(starts), character) == bisect_left(starts, character)


@pytest.mark.parametrize("template", ["chatml", "mistral"])
def test_a_conversation_is_rendered_as_by_the_tokenizer(template: str, tokenizer_of: Callable[..., Any]) -> None:
    tokenizer, messages = tokenizer_of(template), conversation(WITH_SYSTEM).messages
    template = ChatTemplate(tokenizer)
    assert template._render == template._render_compiled
    for prompt in (False, True):
        expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        assert template.render("d.jsonl: line 1", messages, prompt=prompt) == expected
    other_version = SimpleNamespace(apply_chat_template=lambda _messages, **_: "its text")
    assert ChatTemplate(other_version).render("d.jsonl: line 1", messages) == "its text"


@pytest.mark.parametrize("body", ["", "a"])
@pytest.mark.parametrize("condition", ["", "{% if messages | length > 2 %}"])
def test_a_template_that_does_not_end_is_an_error_with_the_data_line(
    body: str, condition: str, tokenizer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.data.tokenizer.TEMPLATE_TIMEOUT_SEC", 0.05)
    loops = "".join(f"{{% for _{depth} in range(99999) %}}" for depth in range(4)) + body + "{% endfor %}" * 4
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = f"{condition}{loops}{'{% endif %}' if condition else ''}"
    with pytest.raises(InputError, match=r"^d\.jsonl: line 7: .* 0\.05 s "):
        ChatTemplate(tokenizer).render("d.jsonl: line 7", conversation(WITH_SYSTEM).messages)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0), "the timer runs only while a template renders"


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_template_that_writes_the_date_renders_equally_on_each_day(
    is_compiled: bool, tokenizer_of: Callable[..., Any]
) -> None:
    template = ChatTemplate(
        tokenizer_of("{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    assert template._render == template._render_compiled
    if not is_compiled:
        template._render = template._render_by_transformers
    assert template.render("d.jsonl: line 1", [{"role": "user", "content": "!"}]) == "01 Jan 2026!"


def test_a_conversation_without_an_answer_gives_no_example(tokenizer_of: Callable[..., Any]) -> None:
    for turns in ((("user", "a?"),), (("user", "a?"), ("assistant", " \n"))):
        examples, findings = build(tokenizer_of("chatml"), turns)
        assert (examples, findings.counts) == ([], {masking.NO_TARGET: 1})
    assert findings.locations == {masking.NO_TARGET: ["d.jsonl: line 1"]}


@pytest.mark.parametrize("template", ["chatml", "mistral"])
def test_cut_keeps_whole_answers_and_the_token_that_ends_them(template: str, tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of(template)
    turns = [*TWO, ("user", "c?"), ("assistant", "C" * 100)]
    whole = len(build(tokenizer, turns)[0][0].ids)
    two = len(build(tokenizer, TWO)[0][0].ids)
    for max_seq_len in (two, two + 5, whole - 1):
        (example,), findings = build(tokenizer, turns, max_seq_len=max_seq_len, too_long="cut")
        assert example.ids == build(tokenizer, TWO)[0][0].ids
        assert findings.counts == {masking.TOO_LONG_CUT: 1}
    assert build(tokenizer, turns, max_seq_len=whole, too_long="cut")[1].counts == {}


def test_a_conversation_that_does_not_fit_is_dropped_with_a_finding(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    assert build(tokenizer, TWO, max_seq_len=20)[1].counts == {masking.TOO_LONG_DROPPED: 1}
    examples, findings = build(tokenizer, TWO, max_seq_len=20, too_long="cut")
    assert (examples, findings.counts) == ([], {masking.FIRST_ANSWER_TOO_LONG: 1})


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no\nsystem') }}", "chat template: no system"),
        ("{{ 1 / 0 }}", "chat template: division by zero"),
        ("{% for i in range(10**9) %}{% endfor %}", "chat template: Range too big"),
        ("{{ '' }}", "empty text; check the model folder"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "turn 2: .*train.label_mask: all",
        ),
    ],
)
def test_an_unusable_template_is_rejected(template: str, message: str, tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=message):
        build(tokenizer_of(template), TWO)
