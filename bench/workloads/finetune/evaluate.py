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
from statistics import NormalDist
from typing import Any

from bench.data.tokenizer import ChatTemplate, Messages
from bench.kernels.loss import CHUNK_TOKENS, IGNORED, token_losses
from bench.qlora.step import TrainingStep
from bench.records.training import Evaluation
from bench.workloads.finetune.steps.group import RankGroup
from bench.workloads.finetune.training_set import RowRange, TrainingSet


def losses_of(
    torch: Any,
    step: TrainingStep,
    material: TrainingSet,
    rows: RowRange,
    group: RankGroup,
    moved: Callable[[int], None],
) -> list[float]:
    """The summed loss of each held-out example, on every rank; each rank measures its share of the rows."""
    every = material.held_out()
    found = torch.zeros(len(material.data.validation), dtype=torch.float64)
    with evaluating(torch, step.model):
        for number, places in enumerate(every[group.rank :: group.world_size], 1):
            moved(number)
            batch = rows([material.data.validation[place] for place in places])
            losses = _by_position(torch, step, batch).double().cpu()
            for place, (first, last) in zip(places, pairwise(batch.edges.tolist()), strict=False):
                found[place] = losses[first:last].sum()
    return list(map(float, group.sum_(found)))


@contextlib.contextmanager
def evaluating(torch: Any, model: Any) -> Iterator[None]:
    """Without gradients and dropout."""
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def _by_position(torch: Any, step: TrainingStep, batch: Any) -> Any:
    """What each position of the row loses on the token after it, 0 where that is no target."""
    inputs = step.inputs(batch)
    with step.precision():
        if hasattr(step.model, "token_losses"):
            return step.model.token_losses(**inputs)
        labels = inputs.pop("labels")
        logits = step.model(**inputs).logits[0]
    targets = torch.full_like(labels[0], IGNORED)
    targets[:-1] = labels[0, 1:]
    parts = zip(logits.split(CHUNK_TOKENS), targets.split(CHUNK_TOKENS), strict=True)
    return torch.cat([token_losses(some, those) for some, those in parts])


def evaluation(step: int, losses: Sequence[float], first: Sequence[float], targets: Sequence[int]) -> Evaluation:
    """The loss after `step` steps; `first` are the same examples' losses before training, empty at step 0."""
    loss, half = ratio(losses, targets)
    moved = [now - then for now, then in zip(losses, first, strict=True)] if first else []
    change, apart = ratio(moved, targets) if moved else (None, None)
    return Evaluation(
        step=step,
        loss=loss,
        low=None if half is None else loss - half,
        high=None if half is None else loss + half,
        rows=len(losses),
        targets=sum(targets),
        is_best=False,
        change=change,
        change_low=None if change is None or apart is None else change - apart,
        change_high=None if change is None or apart is None else change + apart,
    )


def ratio(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float | None]:
    """(sum of sums / sum of counts, half of its 95 % interval's width: None for one example)."""
    n, total = len(sums), sum(counts)
    middle = math.fsum(sums) / total
    if n < 2:
        return middle, None
    spread = math.fsum((each - middle * count) ** 2 for each, count in zip(sums, counts, strict=True))
    return middle, students_t(n - 1) * math.sqrt(spread * n / (n - 1)) / total


def students_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: exact for 1 and 2 degrees of freedom, else Cornish-Fisher's expansion,
    within 0.2 % from 3 on."""
    if freedom == 1:
        return 12.7062
    if freedom == 2:
        return 4.3027
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))


def generate_answers(
    stack: Any, step: TrainingStep, peft_model: Any, tokenizer: Any, prompts: Sequence[str], most: int
) -> list[str]:
    """The model's greedy answer to each prompt, as the user's turn of a conversation, at most `most` tokens long.
    Raises InputError for one that the chat template does not write."""
    asked = [(f"train.prompts: text {n}", [{"role": "user", "content": text}]) for n, text in enumerate(prompts, 1)]
    return [answer(stack, step, peft_model, tokenizer, place, given, most)[0] for place, given in asked]


def answer(
    stack: Any, step: TrainingStep, peft_model: Any, tokenizer: Any, place: str, messages: Messages, most: int
) -> tuple[str, bool]:
    """(the model's greedy answer to a conversation, at most `most` tokens long, whether it ended by itself). `place` is
    where the conversation stands. Raises InputError."""
    ends = {tokenizer.eos_token_id, *ends_of(peft_model)} - {None}
    text = ChatTemplate(tokenizer).text(place, messages, prompt=True)  # as the examples are written
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with evaluating(stack.torch, step.model), step.precision(), step.on_device():
        return greedy(stack, peft_model, tokenizer, ids, ends, most)


def greedy(
    stack: Any, model: Any, tokenizer: Any, prompt: Sequence[int], ends: Collection[int], most: int
) -> tuple[str, bool]:
    """(what the model writes after the prompt's tokens, at most `most` tokens, whether one of `ends` ended it)."""
    torch = stack.torch
    settings = stack.transformers.GenerationConfig(
        max_new_tokens=most, do_sample=False, use_cache=True, eos_token_id=sorted(ends),
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
    )  # fmt: skip
    ids = torch.tensor([list(prompt)], device=next(model.parameters()).device)
    with torch.no_grad(), _uncompiled(torch):
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    made = out[0, ids.shape[1] :].tolist()
    return tokenizer.decode(made, skip_special_tokens=True).strip(), bool(made) and made[-1] in ends


def ends_of(model: Any) -> list[int]:
    """The tokens at which a server ends an answer, by the model's own files."""
    given = getattr(model.generation_config, "eos_token_id", None)
    return [one for one in (given if isinstance(given, (list, tuple)) else [given]) if one is not None]


def _uncompiled(torch: Any) -> Any:
    """The recipe stock compiles its layers; they would be compiled again for each length of an answer."""
    stance = getattr(torch.compiler, "set_stance", None)
    return contextlib.nullcontext() if stance is None else stance("force_eager")
