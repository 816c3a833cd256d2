"""Greedy answers to prompts of any lengths, in batches: the one generator of trainings, checks and chats.

On a GPU the answers are computed by `bench.workloads.decoding` with the adapter on: a static cache, and a decoding step
captured as a CUDA graph. All sequences of a batch are at the same position. It begins at the end of the shortest
prompt; up to its own end, a longer prompt's tokens take the place of generated ones. So no position is padded, and the
decoding kernels need no mask. Elsewhere, and for models that the decoding step does not support, transformers
generates, with prompts padded on the left; `AnswerGenerator.method` has the reason.

Not covered: sampling.
"""

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.architectures import find
from bench.architectures.architecture import ConfigError
from bench.data.collate import padding_token
from bench.data.inputs import InputError
from bench.data.masking import Example
from bench.harness import termination
from bench.qlora.step import Placement, TrainingStep
from bench.torch_stack import Stack, free_memory
from bench.workloads.decoding import LENGTH_MULTIPLE, FastPath
from bench.workloads.finetune.evaluate import evaluation_mode

MAX_BATCH = 32  # sequences; the most that the decoding kernels compute at once
PLAIN_BATCH = 16  # sequences that transformers answers at once
CHECK_EVERY = 16  # steps between two looks at which answers have ended
CACHE_SHARE = 0.7  # share of the free GPU memory
DECODING = "decoding kernels"
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
        cases.append(PromptCase(location=example.location, prompt=ids[:first], reference=ids[first : last + 1]))
    return cases


class GeneratedAnswer(NamedTuple):
    """An answer's text, and whether an end token ended it before its length limit."""

    text: str
    has_ended: bool


class AnswerGenerator:
    """Greedy answers of one model. `method` describes how the last ones were computed.

    `step` is the training step around a peft model, whose autocast and weights on the device are then used.
    `end_tokens` end an answer. `on_step` is called after every few tokens of a batch.
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
        self.method = ""
        self._stack, self._model, self._tokenizer, self._step = stack, model, tokenizer, step
        self._end_tokens, self._on_step = frozenset(end_tokens), on_step

    @classmethod
    def of_step(
        cls,
        stack: Stack,
        step: TrainingStep,
        peft_model: Any,
        tokenizer: Any,
        end_tokens: Sequence[int] = (),
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
        longest = max((len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(self._stack.torch.no_grad())
            contexts.enter_context(_uncompiled(self._stack.torch))
            if self._step is not None:
                contexts.enter_context(evaluation_mode(self._stack.torch, self._step.model))
                contexts.enter_context(self._step.autocast())
                contexts.enter_context(self._step.on_device())
            if (reason := self._unsupported_reason(longest)) is None:
                # Autocast would keep casts of weights that a captured graph reads after they are freed.
                contexts.enter_context(self._stack.torch.autocast("cuda", enabled=False))
                contexts.enter_context(_without_window(plain_model(self._model).config))
            answers = {index: self._decode(tokens) for index, tokens in self._generate(prompts, limits, order, reason)}
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
        self, prompts: Sequence[Sequence[int]], limits: Sequence[int], order: list[int], reason: str | None
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield (index, new tokens) in `order`; a batch that does not fit in memory is halved."""
        position, is_fast = 0, reason is None
        size = MAX_BATCH if is_fast else PLAIN_BATCH
        self.method = DECODING if is_fast else f"transformers ({reason})"
        path: BatchPath | None = None
        while position < len(order):
            batch = order[position : position + size]
            chosen, most = [prompts[index] for index in batch], [limits[index] for index in batch]
            has_failed = False
            try:
                if is_fast:
                    path = path or self._open_path(prompts, limits, order, size)
                    size = path.batch
                    rows = path.generate_answers(chosen[:size], most[:size], self._end_tokens, self._on_step)
                else:
                    rows = self._answer_plainly(chosen, most)
            except Exception as error:
                # A failed capture raises while its cause is being handled.
                causes = [cause for cause in (error, error.__context__) if cause is not None]
                if size == 1 or not any(map(termination.is_out_of_memory, causes)):
                    raise
                has_failed = True
            if has_failed:  # outside the handler, which holds on to the tensors
                path, size = None, size // 2
                free_memory(self._stack.torch, is_cuda=self._device.type == "cuda")
                continue
            yield from zip(batch, rows, strict=False)
            position += len(rows)

    # By the decoding step ---------------------------------------------------------------------------------------------

    def _unsupported_reason(self, length: int) -> str | None:
        """Return why the decoding step does not answer over `length` positions, or None."""
        torch, base = self._stack.torch, plain_model(self._model)
        if self._device.type != "cuda":
            return "no GPU"
        if (dtype := base.get_output_embeddings().weight.dtype) != torch.bfloat16:
            return f"a model in {dtype}, not bfloat16"
        config = base.config.to_dict()
        try:
            architecture = find(config)
        except ConfigError as error:
            return str(error)
        step_module = importlib.import_module("bench.workloads.decode_step")
        if (reason := architecture.unsupported_feature(config, step_module.FEATURES, length)) is not None:
            return reason
        window = architecture.geometry(config).window
        return None if window is None or length <= window else f"{length} positions exceed the window of {window}"

    def _open_path(
        self, prompts: Sequence[Sequence[int]], limits: Sequence[int], order: list[int], size: int
    ) -> "BatchPath":
        """Make the path for all batches of `order`, for as many sequences as fit in the free memory."""
        base = plain_model(self._model)
        length = max(len(prompts[index]) + limits[index] for index in order)
        geometry = find(base.config.to_dict()).geometry(base.config.to_dict())
        bytes_per_row = 2 * 2 * geometry.layers * geometry.key * (length + LENGTH_MULTIPLE)
        free_memory(self._stack.torch, is_cuda=True)
        free, _ = self._stack.torch.cuda.mem_get_info(self._device)
        size = max(1, min(size, len(order), int(CACHE_SHARE * free) // bytes_per_row))
        placement = Placement(device=self._device, compute_dtype=self._stack.torch.bfloat16)
        path = BatchPath(self._stack, base, placement, batch=size, length=length, capture=True)
        note = "" if path.not_fused_reason is None else f", not fused: {path.not_fused_reason}"
        self.method = f"{DECODING} (batches of {size}{note})"
        return path

    # By transformers --------------------------------------------------------------------------------------------------

    def _answer_plainly(self, prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
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
        )
        new_rows = out[:, width:].tolist()
        return [_cut(row, limit, self._end_tokens) for row, limit in zip(new_rows, limits, strict=True)]


class BatchPath(FastPath):
    """The decoding path for prompts of different lengths; one captured graph serves all batches.

    `batch` is the number of sequences, `length` the largest number of positions of a prompt and its answer.
    """

    name = "batch"

    def __init__(
        self, stack: Stack, model: Any, placement: Placement, *, batch: int, length: int, capture: bool
    ) -> None:
        torch = stack.torch
        self.batch, columns = batch, -(-length // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        # The prompts' tokens by position, -1 where a token is generated. Read by the captured step.
        self._forced = torch.full((batch, columns), -1, dtype=torch.int64, device=placement.device)
        first = torch.zeros((batch, 1), dtype=torch.int64, device=placement.device)
        super().__init__(stack, model, placement, first, length - 1, capture=capture)

    def generate_answers(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        end_tokens: Collection[int],
        on_step: Callable[[], None] = lambda: None,
    ) -> list[list[int]]:
        """Return the new tokens of at most `batch` prompts, with the token that ended each."""
        self._load(prompts)
        self.begin()
        ends = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
        written, total = self._prompts.shape[1] + 1, max(ends)
        while True:
            on_step()
            rows = self._ids[: len(prompts), :written].tolist()
            answers = [
                _cut(row[len(prompt) :], limit, end_tokens)
                for row, prompt, limit in zip(rows, prompts, limits, strict=True)
            ]
            open_ends = [
                end for answer, end in zip(answers, ends, strict=True) if not answer or answer[-1] not in end_tokens
            ]
            if written >= max(open_ends, default=0):
                return answers
            for _ in range(min(CHECK_EVERY, total - written)):
                self.step()
                written += 1

    def _load(self, prompts: Sequence[Sequence[int]]) -> None:
        """Set the prompts; rows without one repeat the last."""
        torch, rows = self._stack.torch, [*prompts, *[prompts[-1]] * (self.batch - len(prompts))]
        shortest, longest = min(map(len, rows)), max(map(len, rows))
        forced = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows], dtype=torch.int64)
        self._forced.fill_(-1)
        self._forced[:, :longest] = forced.to(self._forced.device)
        self._prompts = self._forced[:, :shortest].clone()

    def _write_next_token(self, states: Any, position: Any) -> None:
        tokens = self._head(states).argmax(dim=-1, keepdim=True)
        forced = self._forced.index_select(1, position + 1)
        self._ids.index_copy_(1, position + 1, self._stack.torch.where(forced < 0, tokens, forced))


def _cut(tokens: Sequence[int], limit: int, end_tokens: Collection[int]) -> list[int]:
    """Return an answer's tokens up to its limit, or up to and with its first end token."""
    kept = list(tokens[:limit])
    first = next((index for index, token in enumerate(kept) if token in end_tokens), None)
    return kept if first is None else kept[: first + 1]


def plain_model(model: Any) -> Any:
    """Return the transformers model, in which a peft model has put its adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextlib.contextmanager
def _without_window(config: Any) -> Iterator[None]:
    """Hide a sliding window wider than all positions, for which transformers would make another cache."""
    content = config.to_dict()
    window = find(content).geometry(content).window
    if window is None:
        yield
        return
    config.sliding_window = None
    try:
        yield
    finally:
        config.sliding_window = window


def end_tokens_of(model: Any) -> list[int]:
    """Return the tokens at which a server ends an answer, from the model's generation config."""
    end_ids = getattr(model.generation_config, "eos_token_id", None)
    return [token for token in (end_ids if isinstance(end_ids, (list, tuple)) else [end_ids]) if type(token) is int]


def _uncompiled(torch: Any) -> Any:
    """Return a context that disables torch.compile: `stock`'s layers would be recompiled for each answer length."""
    stance = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")
