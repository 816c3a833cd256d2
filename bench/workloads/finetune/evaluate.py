"""The held-out loss with its interval, and greedy answers to prompts.

The loss is the sum over all targets of the held-out examples, divided by their number. Its interval is over examples:
a ratio of two sums over n examples, sum(l) / sum(t), varies by sqrt(n / (n - 1) sum((l - ratio t)^2)) / sum(t), which
Student's t with n - 1 degrees of freedom turns into 95 %. A later loss is compared with the first one example by
example: the same formula for the differences.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any

from bench.data.collate import padding_token
from bench.data.masking import encode_prompt
from bench.kernels.loss import CHUNK_TOKENS, IGNORED, token_losses
from bench.qlora.step import TrainingStep
from bench.records import student
from bench.records.training import Evaluation
from bench.workloads.finetune.training_set import RowCollator, TrainingSet
from bench.workloads.ranks.process import RankGroup


def example_losses(
    torch: Any,
    step: TrainingStep,
    training_set: TrainingSet,
    collate: RowCollator,
    group: RankGroup,
    on_progress: Callable[[int], None],
) -> list[float]:
    """Return the summed loss of each held-out example, on every rank; each rank computes its share of the rows."""
    all_rows = training_set.validation_rows()
    totals = torch.zeros(len(training_set.data.validation), dtype=torch.float64)
    with evaluation_mode(torch, step.model):
        for number, indices in enumerate(all_rows[group.rank :: group.world_size], 1):
            on_progress(number)
            batch = collate([training_set.data.validation[index] for index in indices])
            losses = _position_losses(torch, step, batch).double().cpu()
            for example, (first, last) in zip(indices, pairwise(batch.edges.tolist()), strict=False):
                totals[example] = losses[first:last].sum()
    return list(map(float, group.all_reduce_(totals)))


@contextlib.contextmanager
def evaluation_mode(torch: Any, model: Any) -> Iterator[None]:
    """Disable gradients and dropout inside the context."""
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def _position_losses(torch: Any, step: TrainingStep, batch: Any) -> Any:
    """Compute the next-token cross-entropy of each position of the row; 0 at masked positions."""
    inputs = step.inputs(batch)
    with step.autocast():
        if hasattr(step.model, "token_losses"):
            return step.model.token_losses(**inputs)
        labels = inputs.pop("labels")
        logits = step.model(**inputs).logits[0]
    targets = torch.full_like(labels[0], IGNORED)
    targets[:-1] = labels[0, 1:]
    parts = zip(logits.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True)
    return torch.cat([token_losses(*part) for part in parts])


def make_evaluation(step: int, losses: Sequence[float], first: Sequence[float], targets: Sequence[int]) -> Evaluation:
    """Summarize the losses after `step` steps; `first` are the losses before training, empty at step 0."""
    loss, half = ratio(losses, targets)
    changes = [now - then for now, then in zip(losses, first, strict=True)] if first else []
    change, change_half = ratio(changes, targets) if changes else (None, None)
    return Evaluation(
        step=step,
        loss=loss,
        low=None if half is None else loss - half,
        high=None if half is None else loss + half,
        rows=len(losses),
        targets=sum(targets),
        is_best=False,
        change=change,
        change_low=None if change is None or change_half is None else change - change_half,
        change_high=None if change is None or change_half is None else change + change_half,
    )


def ratio(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float | None]:
    """Return (sum of sums / sum of counts, half of its 95 % interval's width, None for one example)."""
    n, total = len(sums), sum(counts)
    middle = math.fsum(sums) / total
    if n < 2:
        return middle, None
    spread = math.fsum((each - middle * count) ** 2 for each, count in zip(sums, counts, strict=True))
    return middle, student.quantile(0.95, n - 1) * math.sqrt(spread * n / (n - 1)) / total


def encode_prompts(
    tokenizer: Any, prompts: Sequence[str], special_tokens: str, log: Callable[[str], object]
) -> list[list[int]]:
    """Tokenize each text of train.sample_prompts as a conversation's user turn.

    Raises InputError for one that the chat template cannot render.
    """
    return [
        encode_prompt(
            tokenizer, f"train.sample_prompts: text {n}", [{"role": "user", "content": text}], special_tokens, log
        )
        for n, text in enumerate(prompts, 1)
    ]


def generate_answer(
    stack: Any, step: TrainingStep, peft_model: Any, tokenizer: Any, prompt: Sequence[int], max_tokens: int
) -> tuple[str, bool]:
    """Generate a greedy answer of at most `max_tokens`; return it and whether it ended before that."""
    end_tokens = {tokenizer.eos_token_id, *end_tokens_of(peft_model)} - {None}
    with evaluation_mode(stack.torch, step.model), step.autocast(), step.on_device():
        return generate_greedily(stack, peft_model, tokenizer, prompt, end_tokens, max_tokens)


def generate_greedily(
    stack: Any, model: Any, tokenizer: Any, prompt: Sequence[int], end_tokens: Collection[int], max_tokens: int
) -> tuple[str, bool]:
    """Generate at most `max_tokens` tokens after the prompt; return the text and whether an end token ended it."""
    torch = stack.torch
    settings = stack.transformers.GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, use_cache=True, eos_token_id=sorted(end_tokens),
        pad_token_id=padding_token(tokenizer),
    )  # fmt: skip
    ids = torch.tensor([list(prompt)], device=next(model.parameters()).device)
    with torch.no_grad(), _uncompiled(torch):
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    new_tokens = out[0, ids.shape[1] :].tolist()
    has_ended = bool(new_tokens) and new_tokens[-1] in end_tokens
    return tokenizer.decode(new_tokens, skip_special_tokens=True).strip(), has_ended


def end_tokens_of(model: Any) -> list[int]:
    """Return the tokens at which a server ends an answer, from the model's generation config."""
    end_ids = getattr(model.generation_config, "eos_token_id", None)
    return [token for token in (end_ids if isinstance(end_ids, (list, tuple)) else [end_ids]) if token is not None]


def _uncompiled(torch: Any) -> Any:
    """Return a context that disables torch.compile: `stock`'s layers would be recompiled for each answer length."""
    stance = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")
