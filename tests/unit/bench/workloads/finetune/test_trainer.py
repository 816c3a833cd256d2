"""The training loop apart from its steps: it stops on useless losses, early, on request, and at its limits."""

from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.harness.termination import NonFiniteLoss
from bench.workloads.finetune import evaluate, training_set
from bench.workloads.finetune.trainer import NoTrainableTokens
from tests.support import tiny_training

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]


def replace_metric(monkeypatch: Any, trainer: Any, name: str, step: int, value: float) -> None:
    """Replace the loss or the gradient's norm that is read by `value`, from this step on."""
    real = trainer.global_step.read

    def read() -> tuple[float, float, list[float]]:
        loss, norm, extra_sums = real()
        if trainer.state.step + 1 >= step:
            loss, norm = (value, norm) if name == "loss" else (loss, value)
        return loss, norm, extra_sums

    monkeypatch.setattr(trainer.global_step, "read", read)


def test_a_non_finite_loss_stops_with_step_and_rows_and_the_last_checkpoint_stays(lab, tmp_path, monkeypatch):
    trainer = lab(training={"evaluate_every": 0}).trainer(tmp_path)
    replace_metric(monkeypatch, trainer, "loss", 3, float("nan"))
    with pytest.raises(NonFiniteLoss, match=r"nan at step 3 .*chats\.jsonl: line \d+, "):
        trainer.run()
    trainer.checkpoint_manager.wait()
    assert max(path.name for path in tmp_path.glob("step-*")) <= "step-00000002"


@pytest.mark.parametrize(("name", "message"), [("norm", "norm .* 3 steps at step 4"), ("loss", "loss .* at step 2")])
def test_a_loss_of_0_or_three_gradients_of_0_stop_the_training(lab, tmp_path, monkeypatch, name, message):
    trainer = lab(training={"evaluate_every": 0}).trainer(tmp_path)
    replace_metric(monkeypatch, trainer, name, 2, 0.0)
    with pytest.raises(NoTrainableTokens, match=message):
        trainer.run()
    trainer.checkpoint_manager.wait()


def test_hours_are_summed_over_all_attempts_including_loading(lab, tmp_path):
    parts = lab(training={"checkpoint_sec": 900.0, "evaluate_every": 0, "max_hours": 1.5})
    for asked, ended in ((True, ("stopped", 1)), (False, ("max_hours", 2))):
        trainer = parts.resumed(tmp_path, stop_requested=lambda asked=asked: asked, loading_sec=3000.0)
        assert (trainer.run(), trainer.state.step) == ended


def test_a_rehearsal_changes_no_bit(lab):
    digests = set()
    for is_rehearsed in (True, False):
        trainer = lab(training={"max_steps": 2, "evaluate_every": 0}).trainer(None)
        if is_rehearsed:
            trainer.rehearse()
        trainer.restore(None)
        assert trainer.run() == "finished"
        digests.add(trainer.weights.digest())
    assert len(digests) == 1


def test_a_stop_before_a_due_evaluation_does_not_lose_it(lab, tmp_path):
    asked = iter([False, True])
    parts = lab(training={"evaluate_every": 1, "max_steps": 3})
    assert parts.trainer(tmp_path, stop_requested=lambda: next(asked)).run() == "stopped"
    resumed = parts.resumed(tmp_path)
    assert resumed.run() == "finished"
    assert [evaluation.step for evaluation in resumed.state.evaluations] == [0, 1, 2, 3]


def test_without_a_better_held_out_loss_it_stops_early_with_the_best_adapter(lab, tmp_path, monkeypatch):
    parts = lab(training={"evaluate_every": 1, "patience": 2})
    losses = iter([3.0, 2.0, 1.0, 4.0, 5.0])
    rows = len(parts.material.data.validation)
    monkeypatch.setattr(evaluate, "example_losses", lambda *_: [next(losses)] * rows)
    trainer = parts.trainer(tmp_path)
    assert trainer.run() == "early"
    assert (trainer.state.step, trainer.adapter()[0]) == (4, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_len": 1024}, "^max_seq_len: 1024 .* 512 "),
        ({"lora_targets": ("c_attn",)}, "^lora_targets: .* 'c_attn'"),
    ],
)
def test_settings_that_cannot_be_trained_are_rejected_at_once(tiny_inputs, changes, message):
    with pytest.raises(InputError, match=message):
        training_set.check_inputs(tiny_training.plan(*tiny_inputs, **changes))
