"""The held-out loss and its interval; the share of a step that waits for gradients."""

import random
from typing import Any

import pytest

from bench.workloads.finetune import evaluate
from bench.workloads.finetune.evaluate import make_evaluation, ratio
from bench.workloads.finetune.steps import waited_percent
from tests.support import tiny_training

SHORT = 36
LONG_ROPE = {
    "original_max_position_embeddings": SHORT,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": SHORT,
    },
}


def test_the_interval_covers_the_true_value_in_about_95_percent():
    rng, covered = random.Random(3), 0
    for _ in range(400):
        counts = [rng.randint(1, 30) for _ in range(40)]
        sums = [sum(rng.expovariate(0.5) for _ in range(count)) for count in counts]  # mean 2 per target
        _, low, high = ratio(sums, counts)
        covered += low <= 2.0 <= high
    assert 0.91 <= covered / 400 <= 0.98


def test_a_later_loss_is_compared_example_by_example():
    first, later, counts = [10.0, 2.0, 30.0], [9.0, 1.9, 27.0], [5, 1, 15]
    later_loss = make_evaluation(8, later, first, counts)
    assert later_loss.loss == pytest.approx(37.9 / 21)
    assert later_loss.change == pytest.approx(-4.1 / 21)
    assert later_loss.low is not None
    assert later_loss.change_high is not None
    assert later_loss.change_high < 0 < later_loss.low  # every example improved
    start = make_evaluation(0, first, [], counts)
    assert (start.change, start.change_low, start.change_high) == (None, None, None)
    assert make_evaluation(0, [4.0], [], [2]).low is None  # a single example has no interval


def test_the_share_waited_is_that_of_the_median_step_and_of_the_last_rank_to_compute():
    ranks = [[(0.1, 1.0), (0.5, 2.0), (0.1, 1.0)], [(0.4, 1.1), (0.2, 2.0), (0.0, 0.9)]]
    assert waited_percent(ranks) == pytest.approx(10.0)
    assert waited_percent([[(9.0, 10.0), (0.1, 1.0), (0.2, 1.0), (0.0, 2.0), (0.1, 1.0)]]) == pytest.approx(10.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("model_type", ["llama", "phi3", "falcon"])
@pytest.mark.parametrize("recipe", ["fast", "reference"])
def test_rows_give_each_example_its_own_loss(lab, modules, tmp_path, recipe, model_type):
    """Compare losses in rows, which Falcon does not pack, with those of single examples by transformers' own loss."""
    options = LONG_ROPE | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2} if model_type == "phi3" else {}
    folder = tiny_training.make_folder(modules, tmp_path / "model", model_type=model_type, **options)
    parts = lab(recipe=recipe, micro_batch_size=3, model=str(folder))
    trainer = parts.trainer(None)
    held_out = parts.material.data.validation
    assert parts.material.separation.is_packed == (model_type != "falcon")
    assert trainer.step.recipe.startswith("stock" if (recipe, model_type) == ("fast", "falcon") else recipe)
    assert model_type != "phi3" or len({length > SHORT for length in held_out.lengths}) == 2
    torch, group = trainer.torch, trainer.group
    together = evaluate.example_losses(torch, trainer.step, parts.material, trainer.collate, group, lambda _: None)
    for example, packed_loss in zip(held_out, together, strict=True):
        ids = torch.tensor([example.ids.tolist()])
        labels = torch.where(torch.tensor([list(example.targets)]) == 1, ids, -100)
        with torch.no_grad():
            single_loss = trainer.peft_model.eval()(input_ids=ids, labels=labels).loss * example.targets.count(1)
        assert packed_loss == pytest.approx(float(single_loss), rel=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("recipe", ["fast", "reference"])
def test_an_evaluation_changes_no_gradient(lab, recipe):
    """Guard against bitsandbytes repacking weights on a CPU with bf16 instructions, which removed their gradient."""
    parts = lab(recipe=recipe, micro_batch_size=3)
    trainer = parts.trainer(None)
    torch = trainer.torch
    rows, targets, _ = next(trainer._upcoming())

    def gradient() -> list[Any]:
        trainer.global_step.forward_backward(1, rows, targets, (0.0, 0.0))
        return [bucket.flat.clone() for bucket in trainer.gradients.buckets]

    before = gradient()
    evaluate.example_losses(torch, trainer.step, parts.material, trainer.collate, trainer.group, lambda _: None)
    assert all(float(each.norm()) > 0 for each in before)
    assert all(torch.equal(*pair) for pair in zip(before, gradient(), strict=True))
