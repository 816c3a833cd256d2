"""Each answer is trained after the prompt at inference, with the published templates of many model families.

The templates are read from the packages of tests/chat_templates.txt; nothing of them is in this repository.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from bench.data import findings
from bench.data.inputs import Conversation, InputError
from bench.data.masking import Example
from bench.data.tokenizer import ChatTemplate
from bench.data.tool_template import ToolTemplate
from tests.support.published import AXOLOTL, TRL, template_text
from tests.unit.bench.data.conftest import build, conversation, parsed

FAMILIES: dict[str, Sequence[str]] = {
    TRL: (
        *("cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma3", "glm4moe", "gptoss", "lfm2", "llama3_1"),
        *("nemotron_3_nano", "phi3_5", "qwen2_5", "qwen3", "qwen3_5_think"),
    ),
    AXOLOTL: (
        *("chatml", "command_a", "deepseek_v2", "exaone4", "falcon_h1", "gemma4", "jamba", "llama4", "mistral_v1"),
        *("mistral_v2v3", "mistral_v3_tekken", "mistral_v7_tekken", "phi_4", "pixtral"),
    ),
}
TEMPLATES = [pytest.param(f"{folder}/{name}.jinja", id=name) for folder, names in FAMILIES.items() for name in names]
TWO = (("user", "a?"), ("assistant", "A."), ("user", "b?"), ("assistant", "B."))
WITH_SYSTEM = (("system", "be good"), *TWO)


def control_tokens(template: str) -> list[str]:
    return sorted({*re.findall(r"<[^<>{}'\"\s]*>|\[/?[A-Z_]+\]", template)} - {"<think>", "</think>"})


def tokenizer_with(name: str, tokenizer_of: Callable[..., Any]) -> Any:
    template = template_text(name)
    return tokenizer_of(template, special=control_tokens(template))


def answers(tokenizer: Any, example: Example) -> Iterator[tuple[str, str]]:
    """Return (text before the answer, its targets) of each answer."""
    ids = example.ids.tolist()
    ends = [*itertools.accumulate(len(list(group)) for _, group in itertools.groupby(example.targets))]
    for first, start, end in zip(itertools.repeat(0), ends[::2], ends[1::2], strict=False):
        yield tokenizer.decode(ids[first:start]), tokenizer.decode(ids[start:end])


def trained_after_prompts(tokenizer: Any, source: Conversation) -> list[tuple[str, str]]:
    """Return (prompt, targets) of each answer, after a check that the prompt is that at inference."""
    trained = [pair for example in build(tokenizer, source)[0] for pair in answers(tokenizer, example)]
    messages, _ = ToolTemplate(ChatTemplate(tokenizer)).messages(source)
    at_inference = {"tools": list(source.tools) or None, "tokenize": False, "add_generation_prompt": True}
    prompts = [tokenizer.apply_chat_template(messages[:index], **at_inference) for index in source.answers]
    assert [prompt for prompt, _ in trained] == prompts
    return trained


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("turns", [TWO[:2], TWO, WITH_SYSTEM[:3], WITH_SYSTEM], ids=["one", "two", "system", "both"])
def test_each_answer_is_trained_after_its_prompt_at_inference(
    name: str, turns: Sequence[tuple[str, str]], tokenizer_of: Callable[..., Any]
) -> None:
    source = conversation(*turns)
    trained = trained_after_prompts(tokenizer_with(name, tokenizer_of), source)
    for (_, text), index in zip(trained, source.answers, strict=True):
        assert turns[index][1] in text
        assert not any(content in text for content in ("a?", "b?", "be good"))
        assert text.count("</think>") == text.count("<think>") + trained[0][0].rstrip().endswith("<think>")


LITERAL = ("gptoss", "gemma4_v5", "diffusion_gemma", "muse_glimmer", "qwen3_8")  # <think> would be text there
THINKING = {  # what the template writes before and after a thought
    **dict.fromkeys(("qwen3", "glm4moe", "qwen3_5_think", "qwen3_8", "nemotron_3_nano"), ("<think>", "</think>")),
    "gptoss": ("<|channel|>analysis<|message|>", "<|end|>"),
    **dict.fromkeys(("gemma4_v5", "diffusion_gemma"), ("<|channel>thought", "<channel|>")),
    "muse_glimmer": ("", ""),
}


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_is_written_in_the_templates_own_form(name: str, tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_with(f"{TRL}/{name}.jinja", tokenizer_of)
    asks = [{"role": "user", "content": "a?"}, {"role": "user", "content": "b?"}]
    thoughts = [{"role": "assistant", "content": f"A{n}.", "reasoning_content": f"hm{n}"} for n in range(2)]
    trained = trained_after_prompts(tokenizer, parsed(messages=[asks[0], thoughts[0], asks[1], thoughts[1]]))
    before, after = THINKING[name]
    for n, (prompt, text) in enumerate(trained):
        written = prompt[-40:] + text
        assert written.count(f"hm{n}") == 1
        assert f"A{n}." in text
        assert written.index(before) < written.index(f"hm{n}") < written.rindex(after)
    assert len(trained) == 2
    literal = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA."}
    _, reported = build(tokenizer, parsed(messages=[asks[0], literal]))
    assert reported.counts[findings.THOUGHT_IN_TEXT] == (name in LITERAL)


@pytest.mark.parametrize("name", ["gptoss", "gemma4", "qwen2_5"])
def test_thoughts_and_a_developer_are_read_where_the_template_writes_them(
    name: str, tokenizer_of: Callable[..., Any]
) -> None:
    tokenizer = tokenizer_of(template_text(f"{TRL}/{name}.jinja"))
    thought = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "A.", "thinking": "hm"}]
    told = [{"role": "developer", "content": "be good"}, thought[0], {"role": "assistant", "content": "A."}]
    for turns, names, error in (
        (thought, ("gptoss",), "turn 2: reasoning_content: "),  # gemma4 writes thoughts of calls only
        (told, ("gptoss", "gemma4"), "role developer: "),
    ):
        if name in names:
            assert build(tokenizer, parsed(messages=turns))[0]
        else:
            with pytest.raises(InputError, match=f"line 1: {error}"):
                build(tokenizer, parsed(messages=turns))
