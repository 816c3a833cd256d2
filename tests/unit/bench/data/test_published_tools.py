"""Tool turns under the published templates of many families: what is trained on, after which prompt, in which shape.

The templates are read as in test_published_templates.py.
"""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from bench.data import findings
from bench.data.inputs import Conversation, InputError
from bench.data.tokenizer import ChatTemplate
from bench.data.tool_template import ToolTemplate
from tests.support.paths import ROOT
from tests.support.published import AXOLOTL, TRL, template_text
from tests.unit.bench.data.conftest import build, parsed
from tests.unit.bench.data.test_published_templates import (
    answers,
    control_tokens,
    tokenizer_with,
    trained_after_prompts,
)

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "description": "its name"}}}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
TURNS = [
    {"role": "user", "content": "Weather in Rome?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "21 C"},
    {"role": "assistant", "content": "It is mild."},
]
MORE_TURNS = [*TURNS, {"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "Bye."}]
WITH_SYSTEM = [{"role": "system", "content": "be good"}, *MORE_TURNS]
FAMILIES = {
    TRL: (
        *("gemma4", "glm4moe", "gptoss", "lfm2_2_5", "llama3_1", "llama3_2", "muse_glimmer", "nemotron_3_nano"),
        *("qwen2_5", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_instruct_2507", "qwen3_vl"),
    ),
    AXOLOTL: ("jamba", "llama4", "mistral_v2v3", "mistral_v3_tekken", "qwen_25"),
}
TEMPLATES = [pytest.param(f"{folder}/{name}.jinja", id=name) for folder, names in FAMILIES.items() for name in names]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("turns", [TURNS, MORE_TURNS, WITH_SYSTEM], ids=["one", "more", "system"])
def test_calls_are_trained_after_their_prompt_and_results_are_not(
    name: str, turns: list[dict[str, Any]], tokenizer_of: Callable[..., Any]
) -> None:
    source = parsed(messages=turns, tools=TOOLS)
    trained = trained_after_prompts(tokenizer_with(name, tokenizer_of), source)
    for (_, text), index in zip(trained, source.answers, strict=True):
        parts = ("get_weather", "Rome") if "tool_calls" in turns[index] else (turns[index]["content"],)
        assert all(part in text for part in parts)
        assert not any(other in text for other in ("21 C", "Weather of a city", "Thanks", "be good"))
    assert "21 C" in trained[1][0]
    assert "Weather of a city" in trained[0][0]


# By TRL's template for training: what it trains on before and after our targets. The prompt ends with the former; the
# latter follows the token that ends a turn.
TOOLS_DIFFER = {
    "glm4moe": ("", ""),
    "gptoss": ("<|start|>assistant", ""),
    "lfm2_v2": ("", "\n"),
    "muse_glimmer": ("<|start|>assistant", ""),
    "nemotron_3_nano": ("<think>", "\n"),
    "nemotron_3_super": ("<think>", "\n"),
    "qwen2_5": ("\n", "\n"),
    "qwen3": ("", "\n"),
    "qwen3_5_nothink": ("<think>\n\n</think>\n\n", "\n"),
    "qwen3_5_think": ("<think>\n", "\n"),
    "qwen3_instruct_2507": ("", "\n"),
    "qwen3_vl": ("", "\n"),
}
CHATS_DIFFER = TOOLS_DIFFER | {
    **dict.fromkeys(("cohere", "cohere2", "llama3", "phi3", "phi3_5"), ("", "")),
    **dict.fromkeys(("diffusion_gemma", "gemma", "gemma3", "lfm2", "qwen2_5_vl"), ("", "\n")),
}


@pytest.mark.parametrize(
    ("name", "has_tools"),
    [*((name, True) for name in TOOLS_DIFFER), *((name, False) for name in CHATS_DIFFER)],
)
def test_targets_are_those_of_trl_but_for_listed_differences(
    name: str, has_tools: bool, tokenizer_of: Callable[..., Any]
) -> None:
    tokenizer = tokenizer_with(f"{TRL}/{name}_training.jinja", tokenizer_of)
    source = parsed(messages=TURNS, tools=TOOLS) if has_tools else parsed(messages=[TURNS[0], TURNS[3]])
    before, after = (TOOLS_DIFFER if has_tools else CHATS_DIFFER)[name]
    ours, theirs = targets_of_both(tokenizer, source)
    assert theirs == [f"{before}{text}{after}" for text in ours]


def targets_of_both(tokenizer: Any, source: Conversation) -> tuple[list[str], list[str]]:
    """Return the targets of each answer: ours, and by the marks of a template for training."""
    ours = [text for example in build(tokenizer, source)[0] for _, text in answers(tokenizer, example)]
    messages, _ = ToolTemplate(ChatTemplate(tokenizer)).messages(source)
    encoded = tokenizer.apply_chat_template(
        messages, tools=list(source.tools) or None, return_assistant_tokens_mask=True, return_dict=True
    )
    pairs = zip(encoded["assistant_masks"], encoded["input_ids"], strict=True)
    groups = itertools.groupby(pairs, key=lambda pair: pair[0])
    return ours, [tokenizer.decode([token for _, token in group]) for is_target, group in groups if is_target]


GLM_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")  # eos_token_id in config.json of GLM 4


@pytest.mark.parametrize("name", TEMPLATES)
def test_all_calls_of_a_turn_are_trained_or_the_line_is_refused(name: str, tokenizer_of: Callable[..., Any]) -> None:
    calls = [
        {**CALL, "id": f"call_{city}", "function": {**CALL["function"], "arguments": {"city": city}}} for city in "XY"
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "21 C"} for call in calls]
    source = parsed(messages=[TURNS[0], {**TURNS[1], "tool_calls": calls}, *results, TURNS[3]], tools=TOOLS)
    tokenizer = tokenizer_with(name, tokenizer_of)
    try:
        examples, refusal = build(tokenizer, source)[0], ""
    except InputError as error:
        examples, refusal = [], str(error)
    trained = "".join(text for example in examples for _, text in answers(tokenizer, example))
    is_refused = re.search(r"writes only the first|single tool-calls", refusal)
    assert is_refused or all(re.search(rf"\b{city}\b", trained) for city in "XY")


@pytest.mark.parametrize("has_special_calls", [True, False])
def test_a_turn_of_glm_ends_at_the_token_that_begins_the_next_one(
    has_special_calls: bool, tokenizer_of: Callable[..., Any]
) -> None:
    template = template_text(f"{TRL}/glm4moe.jinja")
    special = [token for token in control_tokens(template) if has_special_calls or "|" in token]
    tokenizer = tokenizer_of(template, special=[*special, GLM_ENDS[0]])
    tokenizer.turn_ends = frozenset(tokenizer.convert_tokens_to_ids(GLM_ENDS))
    (example,), reported = build(tokenizer, parsed(messages=MORE_TURNS, tools=TOOLS))
    ends = ("</tool_call><|observation|>", "It is mild.<|user|>", f"Bye.{tokenizer.eos_token}")
    texts = [text for _, text in answers(tokenizer, example)]
    assert len(texts) == len(ends)
    assert all(text.endswith(end) for text, end in zip(texts, ends, strict=True))
    assert reported.counts[findings.EOS_ADDED] == 1
    tokenizer.chat_template = template_text(f"{TRL}/glm4moe_training.jinja")
    _, by_trl = targets_of_both(tokenizer, parsed(messages=MORE_TURNS, tools=TOOLS))
    assert by_trl == [*texts[:2], texts[2].removesuffix(tokenizer.eos_token) + "<|user|>"]


def test_a_template_that_demands_nine_characters_keeps_such_ids_and_gets_others_derived(
    tokenizer_of: Callable[..., Any],
) -> None:
    tokenizer = tokenizer_with(f"{AXOLOTL}/mistral_v2v3.jinja", tokenizer_of)
    written = {}
    for identifier in ("call_1", "abcDEF789", None):
        call = {key: value for key, value in (CALL | {"id": identifier}).items() if value is not None}
        turns = [TURNS[0], TURNS[1] | {"tool_calls": [call]}, {"role": "tool", "content": "21 C"}, TURNS[3]]
        (example,), _ = build(tokenizer, parsed(messages=turns, tools=TOOLS))
        of_call, of_result = re.findall(r'"(?:call_)?id": "([^"]*)"', tokenizer.decode(example.ids))
        assert of_call == of_result
        assert re.fullmatch(r"[A-Za-z0-9]{9}", of_call)
        written[identifier] = of_call
    assert written["abcDEF789"] == "abcDEF789"
    assert len(set(written.values())) == 3


BARE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "CALL{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}" + BARE + "{% else %}" + BARE.replace("CALL", "") + "{% endif %}"


@pytest.mark.parametrize(
    ("template", "turns", "tools", "reason"),
    [
        (f"{TRL}/gemma3.jinja", TURNS, TOOLS, "tools: "),
        (f"{TRL}/llama3.jinja", TURNS, None, "tool_calls: "),
        (f"{TRL}/lfm2.jinja", TURNS, TOOLS, "tool_calls: "),
        (f"{AXOLOTL}/falcon_h1.jinja", TURNS, TOOLS, "tool_calls: "),
        ("{{ c.function.name }}{{ c.function.arguments | tojson }}", TURNS[:3], None, "tools: missing"),
        ("{{ c.function.name }}", TURNS, None, "tool_calls: "),
        ("{{ c }}", TURNS, None, "tool_calls: "),
    ],
)
def test_a_template_that_does_not_write_tools_or_calls_refuses_the_line(
    template: str, turns: list[dict[str, Any]], tools: Any, reason: str, tokenizer_of: Callable[..., Any]
) -> None:
    is_file = template.endswith(".jinja")
    tokenizer = (
        tokenizer_with(template, tokenizer_of) if is_file else tokenizer_of(WITH_TOOLS.replace("CALL", template))
    )
    with pytest.raises(InputError, match=rf"^d\.jsonl: line 1: {reason}.*; "):
        build(tokenizer, parsed(messages=turns, tools=tools))


def test_a_text_that_the_template_leaves_out_is_counted_and_never_replaces_the_call(
    tokenizer_of: Callable[..., Any],
) -> None:
    turns = [TURNS[0], TURNS[1] | {"content": "I look."}, *TURNS[2:]]
    calls = {"llama3_1": '"parameters": {"city": "Rome"}', "deepseek_r1_distill": '```json\n{"city": "Rome"}\n```'}
    for name, call in calls.items():  # the second takes arguments as JSON text
        tokenizer = tokenizer_with(f"{TRL}/{name}.jinja", tokenizer_of)
        examples, reported = build(tokenizer, parsed(messages=turns))
        text = "".join(tokenizer.decode(example.ids) for example in examples)
        assert call in text
        assert "I look." not in text
        assert reported.counts[findings.CALL_TEXT_LEFT_OUT] == 1


def test_control_tokens_typed_in_tools_calls_and_results_are_text(tokenizer_of: Callable[..., Any]) -> None:
    tokenizer = tokenizer_with(f"{TRL}/qwen2_5.jinja", tokenizer_of)
    (end,) = tokenizer.encode("<|im_end|>", add_special_tokens=False)
    counts = []
    for word in ("x", "<|im_end|>"):
        tools = [{"type": "function", "function": FUNCTION | {"description": word}}]
        call = CALL | {"function": {"name": "get_weather", "arguments": {"city": word, word: 1}}}
        turns = [TURNS[0], TURNS[1] | {"tool_calls": [call]}, TURNS[2] | {"content": word}, TURNS[3]]
        (example,), reported = build(tokenizer, parsed(messages=turns, tools=tools), special_tokens="text")
        counts.append(list(example.ids).count(end))
        assert tokenizer.decode(example.ids).count(f'{{"city": "{word}", "{word}": 1}}') == 1
    assert counts[0] == counts[1]
    assert reported.counts[findings.TYPED_TOKEN.format("<|im_end|>")] == 1


def test_the_template_of_the_tutorial_writes_tools_calls_and_results(tokenizer_of: Callable[..., Any]) -> None:
    template = (ROOT / "docs/chatml-tools.jinja").read_text(encoding="utf-8")
    (prompt, call), (later, answer) = trained_after_prompts(tokenizer_of(template), parsed(messages=TURNS, tools=TOOLS))
    assert call == '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call><|im_end|>'
    assert answer == "It is mild.<|im_end|>"
    assert f"\n{json.dumps(FUNCTION)}<|im_end|>\n<|im_start|>user\nWeather in Rome?<|im_end|>\n" in prompt
    assert later.endswith("<|im_end|>\n<|im_start|>tool\n21 C<|im_end|>\n<|im_start|>assistant\n")
