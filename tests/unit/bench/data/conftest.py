"""Byte tokenizers with the chat templates of real models, conversations, and their examples."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.data.conversations import parse_conversation
from bench.data.findings import DataFindings
from bench.data.formats import detect_format
from bench.data.inputs import Conversation
from bench.data.masking import Example, ExampleBuilder
from bench.records.training import DataOptions

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Mistral-Small's: the system's text precedes the last question.
MISTRAL = (
    "{% if messages and messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}<s>"
    "{% for m in rest %}{% if m.role == 'user' %}[INST] "
    "{% if system is defined and (rest[loop.index0:] | selectattr('role', 'equalto', 'user') | list | length) == 1 %}"
    "{{ system }}\n\n{% endif %}{{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
# Like Mistral-7B-Instruct-v0.3's: the system's text precedes the last question, until that is answered.
MISTRAL_V3 = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}<s>{% for m in rest %}{% if m.role == 'user' %}[INST] "
    "{% if loop.last and system is defined %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
# Like DeepSeek-R1-Distill's: the prompt ends in an open thought, and thoughts of answers are left out.
OPEN_THOUGHT = (
    "<s>{% for m in messages %}{% if m.role == 'assistant' %}[/INST]{{ m.content.split('</think>')[-1] }}</s>"
    "{% else %}[INST]{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}[/INST]<think>\n{% endif %}"
)
CHOICES = {"labels", "special_tokens", "system"}
TEMPLATES = {
    "chatml": CHATML,
    "mistral": MISTRAL,
    "mistral-v3": MISTRAL_V3,
    "open thought": OPEN_THOUGHT,
    "thoughts left out": OPEN_THOUGHT.replace("<think>\n", ""),
}


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[..., Any]:
    """Function that makes a tokenizer of bytes and SPECIAL, with a template of TEMPLATES or another one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def make(template: str = "chatml", *, end: str = "", special: Sequence[str] = ()) -> Any:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([*SPECIAL, *special])
        return PreTrainedTokenizerFast(
            tokenizer_object=core,
            bos_token="<s>",
            eos_token=end or ("<|im_end|>" if template == "chatml" else "</s>"),
            chat_template=TEMPLATES.get(template, template),
        )

    return make


def conversation(*turns: tuple[str, str], **fields: Any) -> Conversation:
    return Conversation(**{"file": "d.jsonl", "line": "line 1", "turns": turns, "digest": b""} | fields)


def parsed(**document: Any) -> Conversation:
    """Parse the object of a data line."""
    return parse_conversation(document, detect_format("", document), file="d.jsonl", line="line 1")


def build(tokenizer: Any, *sources: Conversation, **options: Any) -> tuple[list[Example], DataFindings]:
    fields = {"special_tokens": "keep"} | {name: options.pop(name) for name in CHOICES & options.keys()}
    builder = ExampleBuilder(tokenizer, DataOptions(**fields), **{"max_seq_len": 100_000} | options)
    return list(builder.build(sources)), builder.findings


def targets(tokenizer: Any, example: Example) -> str:
    """Decode only the targets."""
    ids = [token for token, target in zip(example.ids, example.targets, strict=True) if target]
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
