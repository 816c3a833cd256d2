"""Greedy answers to held-out prompts, and which of them never end.

A prompt is the beginning of a held-out example, token by token as in training; what the model is to write there is
known, and so is the token that ends it. An answer that is longer than `limit` of the known one did not end.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from bench.data.inputs import InputError
from bench.train.masking import Example
from bench.workloads.finetune.evaluate import greedy

TIMES, LEAST_TOKENS = 4, 64
Given = tuple[str, bool]  # an answer's text, and whether the model ended it


@dataclass(frozen=True, kw_only=True)
class PromptCase:
    """A prompt's tokens, the known answer's, with the token that ends it, and where both come from."""

    place: str
    prompt: list[int]
    known: list[int]

    @property
    def limit(self) -> int:
        """Tokens of an answer after which it counts as one that does not end."""
        return max(LEAST_TOKENS, TIMES * len(self.known))

    @property
    def end(self) -> int:
        return self.known[-1]


def questions(examples: Sequence[Example], count: int) -> list[PromptCase]:
    """The last answer of each of the first `count` examples and what stands before it."""
    found = []
    for example in examples[:count]:
        last = example.targets.rindex(1)
        first = example.targets.rfind(0, 0, last) + 1
        ids = example.ids.tolist()
        place = f"{example.file}: line {example.line}"
        found.append(PromptCase(place=place, prompt=ids[:first], known=ids[first : last + 1]))
    return found


def answer(modules: Any, model: Any, tokenizer: Any, asked: Sequence[PromptCase], ends: Collection[int]) -> list[Given]:
    """The model's answers, each ended by one of `ends` or by its limit. Raises InputError without any end."""
    if not ends:
        raise InputError("no token ends an answer: eos_token_id is missing in the model's files")
    return [greedy(modules, model, tokenizer, one.prompt, ends, one.limit) for one in asked]
