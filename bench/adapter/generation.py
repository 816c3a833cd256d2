"""Greedy answers to held-out prompts, with those that do not end.

A prompt is the beginning of a held-out example, token by token as in training. The example also holds the reference
answer and the token that ends it. An answer that reaches `PromptCase.max_tokens` did not end.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.data.inputs import InputError
from bench.data.masking import Example
from bench.workloads.finetune.evaluate import generate_greedily

LENGTH_FACTOR, MIN_LIMIT_TOKENS = 4, 64
GeneratedAnswer = tuple[str, bool]  # (text, has_ended)


@dataclass(frozen=True, kw_only=True)
class PromptCase:
    """Tokens of a prompt and of its reference answer, end token included, and the data line that they come from."""

    location: str
    prompt: list[int]
    reference: list[int]

    @property
    def max_tokens(self) -> int:
        """Length limit of a generated answer."""
        return max(MIN_LIMIT_TOKENS, LENGTH_FACTOR * len(self.reference))

    @property
    def end_token(self) -> int:
        return self.reference[-1]


def prompt_cases(examples: Sequence[Example], count: int) -> list[PromptCase]:
    """Build a case from each of the first `count` examples: its last answer, prompted with everything before it."""
    cases = []
    for example in examples[:count]:
        last = example.targets.rindex(1)
        first = example.targets.rfind(0, 0, last) + 1
        ids = example.ids.tolist()
        location = f"{example.file}: line {example.line}"
        cases.append(PromptCase(location=location, prompt=ids[:first], reference=ids[first : last + 1]))
    return cases


def generate_answers(
    modules: Any, model: Any, tokenizer: Any, cases: Iterable[PromptCase], ends: Collection[int]
) -> list[GeneratedAnswer]:
    """Answer each prompt up to an end token or its length limit. Raises InputError if `ends` is empty."""
    if not ends:
        raise InputError("no token ends an answer: eos_token_id is missing in the model's files")
    return [generate_greedily(modules, model, tokenizer, case.prompt, ends, case.max_tokens) for case in cases]
