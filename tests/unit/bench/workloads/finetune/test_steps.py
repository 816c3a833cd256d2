"""The gradient of a global batch, which does not depend on the division of its rows.

Ranks run in sequence here, each with the gradients of its own rows. The processes of
tests/faults/bench/test_finetune_ranks.py test that the backends sum them.
"""

import dataclasses
from typing import Any

import pytest

from bench.records.training import SCHEDULES, Training, TrainingData
from bench.workloads.finetune.steps import GlobalStep, Gradients, StepRow, learning_rate_factor, row_seed
from bench.workloads.finetune.training_set import RowCollator, count_targets
from bench.workloads.ranks.process import RankGroup

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
MAX_LENGTH = 48  # length of the longest of these examples
TOLERANCE = 1e-6
DIVISIONS = (([4, 4], 2), ([1] * 8, 1), ([1] * 8, 4), ([5, 1, 2], 2))  # sizes of the rows, and ranks


class UnsummedGroup(RankGroup):
    """A rank of several whose all-reduce does nothing: the test sums the gradients."""

    def all_reduce_async(self, _tensor: Any) -> Any:
        return None


def examples(lab: Any) -> list[Any]:
    """Return eight examples with different lengths and shares of targets."""
    data = lab.material.data.training
    return [dataclasses.replace(example, targets=masked(example.targets, n)) for n, example in enumerate(data[:8])]


def masked(targets: bytes, number: int) -> bytes:
    """Change the number of targets, so that a mean of means would be a different number."""
    first = targets.index(1)
    return bytes(1 if index >= max(1, first - 3 * number) else 0 for index in range(len(targets)))


def make_trainer(lab: Any) -> tuple[Any, Any]:
    """Return a trainer with non-zero B, and a function that makes a collator for rows of a given length."""
    trainer = lab.trainer(None)
    torch = lab.modules.torch
    generator = torch.Generator().manual_seed(5)
    for name, each in sorted(trainer.weights.adapter.items()):
        if "lora_B" in name:
            each.copy_(0.1 * torch.randn(each.shape, generator=generator))
    return trainer, lambda tokens: RowCollator(dataclasses.replace(lab.material, row_tokens=tokens), lab.tokenizer)


def gradient(trainer: Any, collate: Any, parts: list[list[Any]], *, rank: int = 0, ranks: int = 1) -> Any:
    """Compute this rank's flat gradient and its share of the loss."""
    total = sum(count_targets(part) for part in parts)
    rows = [
        StepRow(index=index, batch=collate(parts[index]), targets=count_targets(parts[index]))
        for index in range(rank, len(parts), ranks)
    ]
    trainer.global_step.forward_backward(3, rows, total)
    flat = [bucket.flat.clone() for bucket in trainer.gradients.buckets]
    return trainer.modules.torch.cat(flat), float(trainer.global_step.scalars[0])


def divide(examples: list[Any], sizes: list[int]) -> list[list[Any]]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [examples[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("recipe", ["fast", "reference"])
def test_micro_batches_and_ranks_of_any_size_give_the_same_gradient(lab, recipe):
    parts = lab(recipe=recipe, lora_dropout=0.0)
    eight = examples(parts)
    trainer, collator = make_trainer(parts)
    assert len({count_targets([example]) / len(example.ids) for example in eight}) > 4  # masks are unequal
    expected, loss = gradient(trainer, collator(8 * MAX_LENGTH), divide(eight, [8]))
    assert expected.norm() > 1e-3
    for sizes, ranks in DIVISIONS:
        collate = collator(max(sizes) * MAX_LENGTH)
        results = [gradient(trainer, collate, divide(eight, sizes), rank=r, ranks=ranks) for r in range(ranks)]
        whole = sum(each for each, _ in results)
        assert float((whole - expected).norm() / expected.norm()) < TOLERANCE, (sizes, ranks)
        assert sum(part for _, part in results) == pytest.approx(loss, rel=1e-6), (sizes, ranks)


def test_dropout_depends_on_the_rows_index_and_not_on_the_rank(lab):
    parts = lab(lora_dropout=0.3)
    eight = examples(parts)
    trainer, collator = make_trainer(parts)
    rows = divide(eight, [1] * 8)
    single, _ = gradient(trainer, collator(MAX_LENGTH), rows)
    together = sum(gradient(trainer, collator(MAX_LENGTH), rows, rank=rank, ranks=4)[0] for rank in range(4))
    assert float((together - single).norm() / single.norm()) < TOLERANCE
    trainer.torch.manual_seed(99)
    repeated, _ = gradient(trainer, collator(MAX_LENGTH), rows)
    assert trainer.torch.equal(repeated, single)  # earlier random draws do not matter
    assert len({row_seed(1, step, row) for step in range(9) for row in range(9)}) == 81


def test_gradients_exchanged_in_bf16_are_within_its_rounding(lab):
    parts = lab(lora_dropout=0.0)
    torch = parts.modules.torch
    trainer, collator = make_trainer(parts)
    exact, _ = gradient(trainer, collator(MAX_LENGTH), divide(examples(parts), [1] * 8))
    trained = [p for p in trainer.step.model.parameters() if p.requires_grad]
    rounded = Gradients(torch, trained, UnsummedGroup(torch, 0, 2), wire_dtype="bf16")
    trainer.gradients = rounded
    trainer.global_step = GlobalStep(torch, trainer.step, rounded, seed=42, max_norm=1.0)
    rounded_gradient, _ = gradient(trainer, collator(MAX_LENGTH), divide(examples(parts), [1] * 8))
    assert all(bucket.rounded.dtype == torch.bfloat16 for bucket in rounded.buckets)
    error = float((rounded_gradient - exact).norm() / exact.norm())
    assert 0 < error < 2**-8


def test_clipping_uses_the_norm_of_all_gradients(lab):
    parts = lab(lora_dropout=0.0, training={"max_gradient_norm": 0.01})
    trainer, collator = make_trainer(parts)
    before, _ = gradient(trainer, collator(MAX_LENGTH), divide(examples(parts), [1] * 8))
    trainer.global_step.update(1.0)
    _, norm, _ = trainer.global_step.read()
    assert norm == pytest.approx(float(before.norm()), rel=1e-5)
    assert float(trainer.gradients.norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_optimizers_state_starts_at_zero_and_the_weights_are_unchanged(lab):
    for optimizer in ("adamw_torch", "paged_adamw_8bit"):
        parts = lab(optimizer=optimizer, lora_rank=64)
        trainer = parts.trainer(None)
        torch = trainer.torch
        assert all(not tensor.any() for tensor in trainer.weights.state.values())
        assert all(not t.any() for name, t in trainer.weights.adapter.items() if "lora_B" in name)
        assert all(torch.isfinite(t).all() for t in trainer.weights.adapter.values())


# The learning rate as a function of the step's number -----------------------------------------------------------------

DATA = TrainingData(files=["d"], max_seq_len=8)


def rates(schedule: str, steps: int, warmup: float = 0.0) -> list[float]:
    training = Training(data=DATA, rows_per_step=1, schedule=schedule, warmup_share=warmup)
    return [learning_rate_factor(training, step, steps) for step in range(1, steps + 1)]


def test_each_schedule_has_its_curve_after_a_linear_warm_up():
    assert rates("constant", 4) == [1.0] * 4
    assert rates("linear", 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates("cosine", 4) == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])
    for schedule in SCHEDULES:
        assert rates(schedule, 10, 0.3)[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
        for steps, warmup in ((1, 0.03), (2, 0.9), (7, 0.0), (7, 0.9)):
            assert all(0.0 < rate <= 1.0 for rate in rates(schedule, steps, warmup))


def test_all_rows_of_a_training_have_tensors_of_the_same_shapes(lab):
    material = dataclasses.replace(lab().material, row_tokens=3 * MAX_LENGTH)
    collate = RowCollator(material, lab().tokenizer)
    rows = [*material.sampling_plan.rows(0), *material.sampling_plan.rows(1)]
    batches = [collate([material.data.training[index] for index in row]) for row in rows]
    shapes = {(tuple(batch.input_ids.shape), tuple(batch.edges.shape)) for batch in batches}
    assert len({len(row) for row in rows}) > 1
    assert len(shapes) == 1
