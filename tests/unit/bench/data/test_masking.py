"""Targets are exactly the answers and the token that ends each of them, as the template renders them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from bench.data import findings, rendering
from bench.data.inputs import InputError
from bench.data.tokenizer import ChatTemplate
from bench.records.training import LostToLength
from tests.support.cases import Case, load_cases
from tests.support.thorough import examples
from tests.unit.bench.data.conftest import build, conversation, targets

plain_text = partial(conversation, is_text=True)

Turns = Sequence[tuple[str, str]]
TWO = (("user", "a?"), ("assistant", "A."), ("user", "b?"), ("assistant", "B."))
WITH_SYSTEM = (("system", "be good"), *TWO)


@pytest.mark.parametrize("case", load_cases(__file__, "masks.yaml"))
def test_a_conversation_gives_its_targets_and_findings(case: Case, tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of(case["template"], end=case.get("end", ""))
    turns = [tuple(turn.split(": ", 1)) for turn in case["turns"]]
    examples, reported = build(tokenizer, conversation(*turns), **case.get("options", {}))
    assert all(len(example.targets) == len(example.ids) for example in examples)
    assert [targets(tokenizer, example) for example in examples] == case.get("targets", mock.ANY)
    assert [tokenizer.decode(example.ids) for example in examples] == case.get("texts", mock.ANY)
    assert reported.counts == {getattr(findings, kind).format("[INST]"): 1 for kind in case["findings"]}
    assert all(places == ["d.jsonl: line 1"] for places in reported.locations.values())


texts = st.text(st.characters(codec="utf-8", exclude_characters="<[|"), min_size=1, max_size=20).filter(str.strip)


@settings(deadline=None, max_examples=examples(100))  # the first call compiles the templates
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3), st.none() | texts)
def test_each_answer_follows_its_prompt_for_any_text(
    tokenizer_of: Callable[..., Any], pairs: list[tuple[str, str]], system: str | None
) -> None:
    turns = [turn for question, answer in pairs for turn in (("user", question), ("assistant", answer))]
    turns = [*([("system", system)] if system else []), *turns]
    for template, before, end in (
        ("chatml", "", "<|im_end|>"),
        ("mistral-v3", " ", "</s>"),
        ("open thought", "\n</think>\n\n", "</s>"),
    ):
        tokenizer = tokenizer_of(template)
        examples, _ = build(tokenizer, conversation(*turns))
        assert "".join(targets(tokenizer, example) for example in examples) == "".join(
            f"{before}{answer}{end}" for _, answer in pairs
        )
        prompt = ChatTemplate(tokenizer).render("", conversation(*turns[:-1]).messages, prompt=True)
        assert tokenizer.decode(examples[-1].ids, clean_up_tokenization_spaces=False).startswith(prompt)


def test_answers_of_the_prompt_and_excluded_turns_are_no_targets(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_of("chatml")
    for marks in ({"prompt_turns": 3}, {"untrained": (1,)}):
        source = conversation(*TWO, **marks)
        (example,), _ = build(tokenizer, source)
        assert targets(tokenizer, example) == "B.<|im_end|>"
    with pytest.raises(InputError, match="turn 2: "):
        build(tokenizer, source, labels="all")


def test_an_answer_without_a_question_is_rejected_by_its_turn(tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"line 1: turn 1: .*; remove the turn"):
        build(tokenizer_of("chatml"), conversation(*TWO[1:2]))
    for turns in (TWO, TWO[1:]):  # with all labels every token but the first is a target
        (example,), _ = build(tokenizer_of("chatml"), conversation(*turns), labels="all")
        assert example.targets == b"\0" + b"\1" * (len(example.ids) - 1)


def test_examples_of_each_answer_are_bounded(tokenizer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    examples, _ = build(tokenizer_of("mistral"), conversation(*WITH_SYSTEM))
    assert len(examples) == 2
    monkeypatch.setattr(rendering, "MAX_SPLIT_CHARS", 50)
    with pytest.raises(InputError, match=r"d\.jsonl: line 1: .*50 characters"):
        build(tokenizer_of("mistral"), conversation(*WITH_SYSTEM))


@pytest.mark.parametrize("template", ["chatml", "mistral"])
def test_cut_keeps_whole_answers_and_the_token_that_ends_them_and_renders_few_beginnings(
    template: str, tokenizer_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, renders, render = tokenizer_of(template), list[int](), ChatTemplate.render
    turns = [*TWO * 20, ("user", "c?"), ("assistant", "C" * 100)]
    whole, two = (len(build(tokenizer, conversation(*part))[0][0].ids) for part in (turns, TWO))
    monkeypatch.setattr(ChatTemplate, "render", lambda *args, **options: renders.append(1) or render(*args, **options))
    for max_seq_len in (two, two + 5):
        (example,), reported = build(tokenizer, conversation(*turns), max_seq_len=max_seq_len, too_long="cut")
        assert example.ids == build(tokenizer, conversation(*TWO))[0][0].ids
        assert reported.counts == {findings.TOO_LONG_CUT: 1}
    assert len(renders) < 600, "all beginnings take 2,000"
    assert build(tokenizer, conversation(*turns), max_seq_len=whole, too_long="cut")[1].counts == {}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no\nsystem') }}", "chat template: no system"),
        ("{{ 1 / 0 }}", r"^the chat template \(of .*\) fails: division by zero; .* train.chat_template"),
        ("{% for i in range(10**9) %}{% endfor %}", r"^the chat template \(of .*\) fails: Range too big"),
        ("{% if %}", r"^the chat template \(of .*\) fails: Expected an expression"),
        ("{{ '' }}", r"^the chat template \(of .*\) does not write the text of a turn"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "turn 2: .*train.label_mask: all",
        ),
    ],
)
def test_an_unusable_template_is_rejected(template: str, message: str, tokenizer_of: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=message):
        build(tokenizer_of(template), conversation(*TWO))


@pytest.mark.parametrize("adds_start", [False, True])
def test_plain_text_gets_the_tokenizers_start_and_end_and_every_token_is_a_target(
    adds_start: bool, tokenizer_of: Callable[..., Any]
) -> None:
    tokenizer = tokenizer_of("chatml")
    if adds_start:
        start = ("<s>", tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[start])
    source = plain_text(("assistant", "a<s>b"))
    (example,), reported = build(tokenizer, source, labels="all", special_tokens="text", system="s")
    assert tokenizer.decode(example.ids.tolist()) == ("<s>" if adds_start else "") + "a<s>b<|im_end|>"
    assert example.ids.tolist().count(tokenizer.bos_token_id) == adds_start  # the typed one is text
    assert example.targets == b"\0" + b"\1" * (len(example.ids) - 1)
    assert reported.counts[findings.TYPED_TOKEN.format("<s>")] == 1


def test_long_plain_text_is_dropped_or_divided_without_a_loss(tokenizer_of: Callable[..., Any]) -> None:
    build_short = partial(build, tokenizer_of("chatml"), max_seq_len=8, labels="all")
    long = plain_text(("assistant", "x" * 16))  # and one token at its end
    assert build_short(long, plain_text(("assistant", " \n")))[0] == []
    pieces, reported = build_short(long, plain_text(("assistant", "y")), too_long="cut")
    assert [len(piece.ids) for piece in pieces] == [8, 8, 2]
    assert reported.lost(3, 18) is None
    assert reported.counts[findings.TEXT_DIVIDED] == 1


def test_what_is_lost_to_length_names_the_length_that_loses_one_percent(tokenizer_of: Callable[..., Any]) -> None:
    texts = [*("x" * 5 for _ in range(300)), *("x" * 19 for _ in range(20)), "x" * 30]
    sources = (plain_text(("assistant", text)) for text in texts)
    kept, reported = build(tokenizer_of("chatml"), *sources, max_seq_len=10, labels="all")
    lost = reported.lost(len(kept), sum(len(example.ids) for example in kept))
    assert lost == LostToLength(
        rows=21, all_rows=321, tokens=20 * 20 + 31, all_tokens=300 * 6 + 431, enough=31, lines=1
    )
    assert findings.DataFindings().lost(5, 50) is None
