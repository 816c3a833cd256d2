"""Fixture: byte tokenizers with the chat templates of real models."""

from collections.abc import Callable
from typing import Any

import pytest

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Mistral-7B-Instruct-v0.3: the system's text precedes the last question.
MISTRAL = (
    "{% if messages and messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}<s>"
    "{% for m in rest %}{% if m.role == 'user' %}[INST] "
    "{% if system is defined and (rest[loop.index0:] | selectattr('role', 'equalto', 'user') | list | length) == 1 %}"
    "{{ system }}\n\n{% endif %}{{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
TEMPLATES = {"chatml": CHATML, "mistral": MISTRAL}


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[..., Any]:
    """Function that makes a tokenizer of bytes and SPECIAL, with a template of TEMPLATES or another one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    def make(template: str = "chatml", *, end: str = "") -> Any:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens(list(SPECIAL))
        return PreTrainedTokenizerFast(
            tokenizer_object=core,
            bos_token="<s>",
            eos_token=end or ("<|im_end|>" if template == "chatml" else "</s>"),
            chat_template=TEMPLATES.get(template, template),
        )

    return make
