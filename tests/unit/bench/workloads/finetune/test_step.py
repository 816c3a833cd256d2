"""One gradient for a global batch, however its rows are divided: the sum over all targets, divided by their number.

Ranks are one after the other here, each with the gradients of its own rows; that the backends add them up is shown with
processes (tests/faults/bench/test_finetune_ranks.py).
"""

import dataclasses
from typing import Any

import pytest

from bench.workloads.finetune.steps.gradients import Gradients
from bench.workloads.finetune.steps.group import RankGroup
from bench.workloads.finetune.steps.step import GlobalStep, RowOfStep, seed_of
from bench.workloads.finetune.training_set import RowRange, targets_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]
LONGEST = 48  # of these examples
SAME = 1e-6
SIZES = {"1 x 8": [8], "2 x 4": [4, 4], "8 x 1": [1] * 8, "unequal": [5, 1, 2]}
DIVISIONS = [(name, ranks) for name, sizes in SIZES.items() for ranks in (1, 2, 4) if ranks <= len(sizes)]


class OneOf(RankGroup):
    """A rank of several whose sums are not added up: the test does that."""

    def begin_sum(self, _tensor: Any) -> Any:
        return None


@pytest.fixture(scope="module")
def examples():
    """Eight examples of other lengths and other shares of targets each."""

    def make(lab: Any) -> list[Any]:
        data = lab.material.data.training
        return [dataclasses.replace(one, targets=masked(one.targets, n)) for n, one in enumerate(data[:8])]

    return make


def masked(targets: bytes, number: int) -> bytes:
    """The same with more or fewer targets, so that a mean of means would be another number."""
    first = targets.index(1)
    return bytes(1 if place >= max(1, first - 3 * number) else 0 for place in range(len(targets)))


def built(lab: Any) -> tuple[Any, Any]:
    """(trainer with B away from 0, a function from a row's tokens to a maker of such rows)."""
    trainer = lab.trainer(None)
    torch = lab.modules.torch
    generator = torch.Generator().manual_seed(5)
    for name, each in sorted(trainer.weights.adapter.items()):
        if "lora_B" in name:
            each.copy_(0.1 * torch.randn(each.shape, generator=generator))
    return trainer, lambda tokens: RowRange(dataclasses.replace(lab.material, row_tokens=tokens), lab.tokenizer)


def gradient(trainer: Any, make: Any, parts: list[list[Any]], *, rank: int = 0, ranks: int = 1) -> Any:
    """The flat gradient that this rank computes, and its share of the loss."""
    total = sum(targets_of(part) for part in parts)
    rows = [
        RowOfStep(place=place, batch=make(parts[place]), targets=targets_of(parts[place]))
        for place in range(rank, len(parts), ranks)
    ]
    trainer.global_step.gradient(3, rows, total)
    flat = [bucket.flat.clone() for bucket in trainer.gradients.buckets]
    return trainer.modules.torch.cat(flat), float(trainer.global_step.scalars[0])


def divided(examples: list[Any], sizes: list[int]) -> list[list[Any]]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [examples[end - size : end] for end, size in zip(ends, sizes, strict=True)]


@pytest.mark.parametrize("recipe", ["fast", "reference"])
def test_micro_batches_and_ranks_of_any_size_give_the_same_gradient(lab, examples, recipe):
    parts = lab(recipe=recipe, lora_dropout=0.0)
    eight = examples(parts)
    trainer, make = built(parts)
    assert len({targets_of([one]) / len(one.ids) for one in eight}) > 4  # masks are unequal
    wanted, loss = gradient(trainer, make(8 * LONGEST), divided(eight, [8]))
    assert wanted.norm() > 1e-3
    for name, ranks in DIVISIONS:
        sizes = SIZES[name]
        rows = make(max(sizes) * LONGEST)
        found = [gradient(trainer, rows, divided(eight, sizes), rank=r, ranks=ranks) for r in range(ranks)]
        whole = sum(each for each, _ in found)
        assert float((whole - wanted).norm() / wanted.norm()) < SAME, (name, ranks)
        assert sum(part for _, part in found) == pytest.approx(loss, rel=1e-6), (name, ranks)


def test_dropout_follows_from_the_rows_place_and_not_from_who_computes_it(lab, examples):
    parts = lab(lora_dropout=0.3)
    eight = examples(parts)
    trainer, make = built(parts)
    rows = divided(eight, [1] * 8)
    alone, _ = gradient(trainer, make(LONGEST), rows)
    together = sum(gradient(trainer, make(LONGEST), rows, rank=rank, ranks=4)[0] for rank in range(4))
    assert float((together - alone).norm() / alone.norm()) < SAME
    trainer.torch.manual_seed(99)
    again, _ = gradient(trainer, make(LONGEST), rows)
    assert trainer.torch.equal(again, alone)  # nothing else that was drawn before matters
    assert len({seed_of(1, step, row) for step in range(9) for row in range(9)}) == 81


def test_what_travels_as_bf16_is_within_its_rounding(lab, examples):
    parts = lab(lora_dropout=0.0)
    torch = parts.modules.torch
    trainer, make = built(parts)
    exact, _ = gradient(trainer, make(LONGEST), divided(examples(parts), [1] * 8))
    trained = [p for p in trainer.step.model.parameters() if p.requires_grad]
    rounded = Gradients(torch, trained, OneOf(torch, 0, 2), travels="bf16")
    trainer.gradients = rounded
    trainer.global_step = GlobalStep(torch, trainer.step, rounded, seed=42, most_norm=1.0)
    found, _ = gradient(trainer, make(LONGEST), divided(examples(parts), [1] * 8))
    assert rounded.bytes * 2 == sum(p.numel() * 4 for p in trained)
    error = float((found - exact).norm() / exact.norm())
    assert 0 < error < 2**-8


def test_clipping_is_by_the_norm_of_everything(lab, examples):
    parts = lab(lora_dropout=0.0, training={"max_gradient_norm": 0.01})
    trainer, make = built(parts)
    before, _ = gradient(trainer, make(LONGEST), divided(examples(parts), [1] * 8))
    trainer.global_step.update(1.0)
    _, norm, _ = trainer.global_step.read()
    assert norm == pytest.approx(float(before.norm()), rel=1e-5)
    assert float(trainer.gradients.norm()) == pytest.approx(0.01, rel=1e-3)


def test_rslora_scales_by_the_root_of_the_rank_and_lora_plus_has_a_rate_of_its_own_for_b(lab):
    plain, other = lab(), lab(training={"rank_stabilized": True, "lora_plus_ratio": 16.0, "weight_decay": 0.1})
    scalings = []
    for parts in (plain, other):
        trainer = parts.trainer(None)
        layer = trainer.peft_model.base_model.model.model.layers[0].self_attn.q_proj
        scalings.append(layer.scaling["default"])
        groups = trainer.step.optimizer.param_groups
    assert scalings == [32 / 4, 32 / 2]
    assert [group["lr"] for group in groups] == pytest.approx([0.01, 0.16])
    assert {group["weight_decay"] for group in groups} == {0.1}
    assert len(groups[0]["params"]) == len(groups[1]["params"]) == 2 * 4


def test_the_optimizers_state_begins_at_nothing_and_the_weights_are_untouched(lab):
    for optimizer in ("adamw_torch", "paged_adamw_8bit"):
        parts = lab(optimizer=optimizer, lora_rank=64)
        trainer = parts.trainer(None)
        torch = trainer.torch
        assert all(not tensor.any() for tensor in trainer.weights.state.values())
        assert all(not t.any() for name, t in trainer.weights.adapter.items() if "lora_B" in name)
        assert all(torch.isfinite(t).all() for t in trainer.weights.adapter.values())
