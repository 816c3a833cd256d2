"""Greedy answers to prompts of any lengths, in batches: the one generator of trainings, checks and chats.

transformers' `generate` computes them, with prompts padded on the left. Not covered: sampling.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.data.collate import padding_token
from bench.data.inputs import InputError
from bench.data.masking import Example
from bench.harness import termination
from bench.qlora.step import TrainingStep
from bench.torch_stack import Stack, free_memory
from bench.workloads.finetune.evaluate import evaluation_mode

GPU_BATCH, CPU_BATCH = 32, 16  # sequences that are answered at once
LENGTH_FACTOR, MIN_LIMIT_TOKENS = 4, 64


@dataclass(frozen=True, kw_only=True)
class PromptCase:
    """Tokens of a prompt and of its reference answer, end token included, and the data line that they come from.

    A prompt is the beginning of a held-out example, token by token as in training. An answer that reaches `max_tokens`
    did not end.
    """

    location: str
    prompt: list[int]
    reference: list[int]

    @property
    def max_tokens(self) -> int:
        """Length limit of a generated answer."""
        return max(MIN_LIMIT_TOKENS, LENGTH_FACTOR * len(self.reference))


def prompt_cases(examples: Sequence[Example], count: int) -> list[PromptCase]:
    """Build a case from each of the first `count` examples: its last answer, prompted with everything before it."""
    cases = []
    for example in examples[:count]:
        last = example.targets.rindex(1)
        first = example.targets.rfind(0, 0, last) + 1
        ids = example.ids.tolist()
        cases.append(PromptCase(location=example.location, prompt=ids[:first], reference=ids[first : last + 1]))
    return cases


class GeneratedAnswer(NamedTuple):
    """An answer's text, and whether an end token ended it before its length limit."""

    text: str
    has_ended: bool


class AnswerGenerator:
    """Greedy answers of one model.

    `step` is the training step around a peft model, whose autocast and weights on the device are then used.
    `end_tokens` end an answer. `on_step` is called after every token of a batch.
    """

    def __init__(
        self,
        stack: Stack,
        model: Any,
        tokenizer: Any,
        end_tokens: Collection[int],
        *,
        step: TrainingStep | None = None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        if not end_tokens:
            raise InputError("no token ends an answer: eos_token_id is missing in the model's files")
        self._stack, self._model, self._tokenizer, self._step = stack, model, tokenizer, step
        self._end_tokens, self._on_step = frozenset(end_tokens), on_step

    @classmethod
    def of_step(
        cls,
        stack: Stack,
        step: TrainingStep,
        peft_model: Any,
        tokenizer: Any,
        end_tokens: Sequence[int],
        *,
        on_step: Callable[[], None] = lambda: None,
    ) -> "AnswerGenerator":
        """Return the generator of a peft model in its training step.

        Its answers end at the model's own end tokens and at `end_tokens`.
        """
        all_ends = {tokenizer.eos_token_id, *end_tokens_of(peft_model), *end_tokens} - {None}
        return cls(stack, peft_model, tokenizer, all_ends, step=step, on_step=on_step)

    def generate(self, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[GeneratedAnswer]:
        """Answer each prompt, token ids, with at most its limit of tokens."""
        order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), limits[index]))
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(self._stack.torch.no_grad())
            contexts.enter_context(_uncompiled(self._stack.torch))
            if self._step is not None:
                contexts.enter_context(evaluation_mode(self._stack.torch, self._step.model))
                contexts.enter_context(self._step.autocast())
                contexts.enter_context(self._step.on_device())
            answers = {index: self._decode(tokens) for index, tokens in self._generate(prompts, limits, order)}
            free_memory(self._stack.torch, is_cuda=self._device.type == "cuda")
        return [answers[index] for index in range(len(prompts))]

    @property
    def _device(self) -> Any:
        """The device of the weights, inside the step's contexts, which may move them there."""
        return next(self._model.parameters()).device

    def _decode(self, tokens: Sequence[int]) -> GeneratedAnswer:
        has_ended = bool(tokens) and tokens[-1] in self._end_tokens
        return GeneratedAnswer(self._tokenizer.decode(tokens, skip_special_tokens=True).strip(), has_ended)

    def _generate(
        self, prompts: Sequence[Sequence[int]], limits: Sequence[int], order: list[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield (index, new tokens) in `order`; a batch that does not fit in memory is halved."""
        position, size = 0, GPU_BATCH if self._device.type == "cuda" else CPU_BATCH
        while position < len(order):
            batch = order[position : position + size]
            rows: list[list[int]] | None = None
            try:
                rows = self._answer_batch([prompts[index] for index in batch], [limits[index] for index in batch])
            except Exception as error:
                if size == 1 or not termination.is_out_of_memory(error):
                    raise
            if rows is None:  # outside the handler, which holds on to the tensors
                size //= 2
                free_memory(self._stack.torch, is_cuda=self._device.type == "cuda")
                continue
            yield from zip(batch, rows, strict=True)
            position += len(rows)

    def _answer_batch(self, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        torch, transformers = self._stack.torch, self._stack.transformers
        pad, width = padding_token(self._tokenizer), max(map(len, prompts))
        ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=self._device)
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=self._device
        )
        settings = transformers.GenerationConfig(
            max_new_tokens=max(limits), do_sample=False, use_cache=True, eos_token_id=sorted(self._end_tokens),
            pad_token_id=pad,
        )  # fmt: skip
        last = torch.tensor([width + limit for limit in limits], device=self._device)

        def reached_limit(current: Any, _scores: Any, **_more: Any) -> Any:
            self._on_step()
            return last <= current.shape[1]

        out = self._model.generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=settings,
            stopping_criteria=transformers.StoppingCriteriaList([reached_limit]),
            **self._stack.cache_arguments(self._model, width + max(limits)),
        )
        new_rows = out[:, width:].tolist()
        return [_cut(row, limit, self._end_tokens) for row, limit in zip(new_rows, limits, strict=True)]


def _cut(tokens: Sequence[int], limit: int, end_tokens: Collection[int]) -> list[int]:
    """Return an answer's tokens up to its limit, or up to and with its first end token."""
    kept = list(tokens[:limit])
    first = next((index for index, token in enumerate(kept) if token in end_tokens), None)
    return kept if first is None else kept[: first + 1]


def end_tokens_of(model: Any) -> list[int]:
    """Return the tokens at which a server ends an answer, from the model's generation config."""
    end_ids = getattr(model.generation_config, "eos_token_id", None)
    return [token for token in (end_ids if isinstance(end_ids, (list, tuple)) else [end_ids]) if type(token) is int]


def _uncompiled(torch: Any) -> Any:
    """Return a context that disables torch.compile: `stock`'s layers would be recompiled for each answer length."""
    stance = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")
