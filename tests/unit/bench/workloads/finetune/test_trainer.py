"""What a training does beside its steps: it stops where going on is worthless, early, and when asked."""

import dataclasses
from typing import Any

import pytest

from bench.data.inputs import InputError
from bench.harness.termination import NonFiniteLoss
from bench.workloads.finetune import finetune, training_set
from bench.workloads.finetune.checkpoints import checkpoint, resume
from bench.workloads.finetune.trainer import NoTrainableTokens
from tests.support import tiny_training
from tests.support.faults import full_disk
from tests.support.tiny_training import Lab

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")]


def poisoned(monkeypatch: Any, trainer: Any, name: str, step: int, value: float) -> None:
    """From this step on, the loss or the gradient's norm that is read is another one."""
    real = trainer.global_step.read

    def read() -> tuple[float, float, list[float]]:
        loss, norm, further = real()
        if trainer.state.step + 1 >= step:
            loss, norm = (value, norm) if name == "loss" else (loss, value)
        return loss, norm, further

    monkeypatch.setattr(trainer.global_step, "read", read)


def test_a_loss_that_is_no_number_stops_it_by_step_and_rows_and_the_last_checkpoint_stays(lab, tmp_path, monkeypatch):
    trainer = lab(training={"evaluate_every": 0}).trainer(tmp_path)
    poisoned(monkeypatch, trainer, "loss", 3, float("nan"))
    with pytest.raises(NonFiniteLoss, match=r"the loss is nan at step 3 \(all its rows: .*chats\.jsonl: line \d+, ."):
        trainer.run()
    trainer.keeper.finish()
    assert max(path.name for path in tmp_path.glob("step-*")) <= "step-00000002"


@pytest.mark.parametrize(
    ("name", "words"), [("norm", "norm was 0 for 3 steps at step 4"), ("loss", "the loss is 0 at step 2")]
)
def test_a_loss_of_0_or_a_gradient_of_nothing_three_steps_long_stops_it(lab, tmp_path, monkeypatch, name, words):
    trainer = lab(training={"evaluate_every": 0}).trainer(tmp_path)
    poisoned(monkeypatch, trainer, name, 2, 0.0)
    with pytest.raises(NoTrainableTokens, match=words):
        trainer.run()
    trainer.keeper.finish()


def test_asked_to_stop_it_keeps_the_step_it_was_in(lab, tmp_path):
    asked = iter([False, False, True])
    trainer = lab(training={"checkpoint_sec": 900.0, "evaluate_every": 0}).trainer(tmp_path, asked=lambda: next(asked))
    assert trainer.run() == "stopped"
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["step-00000003"]


def test_the_hours_of_all_attempts_count_with_what_they_took_to_load(lab, tmp_path):
    parts = lab(training={"checkpoint_sec": 900.0, "evaluate_every": 0, "max_hours": 1.5})
    for asked, ended in ((True, ("stopped", 1)), (False, ("max_hours", 2))):
        trainer = parts.trainer(tmp_path, asked=lambda asked=asked: asked, loading_sec=3000.0)
        trainer.begin(resume.find(tmp_path, parts.identity, lambda _: None))
        assert (trainer.run(), trainer.state.step) == ended


def test_an_answer_from_before_stands_beside_its_own_prompt_where_prompts_changed_meanwhile(lab, tmp_path):
    parts = lab(training={"max_steps": 1, "prompts": ("a", "b"), "answer_tokens": 2})
    parts.train(tmp_path)
    changed = {"max_steps": 1, "prompts": ("b", "c"), "answer_tokens": 2}
    again = lab(training=changed)
    trainer = again.trainer(tmp_path / "checkpoints")
    trainer.begin(resume.find(tmp_path / "checkpoints", again.identity, lambda _: None))
    _, of_b = trainer.state.answers
    answered = trainer.answered(trainer.adapter()[1])
    assert [(one.prompt, one.before) for one in answered] == [("b", of_b), ("c", None)]


def test_a_stop_right_after_a_step_that_is_measured_costs_no_measurement(lab, tmp_path):
    asked = iter([False, True])
    parts = lab(training={"evaluate_every": 1, "max_steps": 3})
    assert parts.trainer(tmp_path, asked=lambda: next(asked)).run() == "stopped"
    again = parts.trainer(tmp_path)
    again.begin(resume.find(tmp_path, parts.identity, lambda _: None))
    assert again.run() == "finished"
    assert [evaluation.step for evaluation in again.state.evaluations] == [0, 1, 2, 3]


def test_without_a_better_held_out_loss_it_stops_early_and_the_best_adapter_comes_home(lab, tmp_path, monkeypatch):
    trainer = lab(training={"evaluate_every": 1, "patience": 2}).trainer(tmp_path)
    real, step = trainer._evaluate, trainer.state.step

    def evaluate() -> None:
        real()
        if trainer.state.step > 2:  # from here on it becomes worse
            *before, last = trainer.state.evaluations
            worse = dataclasses.replace(last, is_best=False)
            trainer.state = dataclasses.replace(trainer.state, evaluations=[*before, worse], best_step=2)

    monkeypatch.setattr(trainer, "_evaluate", evaluate)
    kept = trainer.keeper.keep_best
    monkeypatch.setattr(trainer.keeper, "keep_best", lambda step: kept(step) if step <= 2 else None)
    assert (step, trainer.run()) == (0, "early")
    assert (trainer.state.step, trainer.adapter()[0]) == (4, 2)


def test_a_full_disk_costs_a_checkpoint_and_not_the_training(lab, tmp_path, monkeypatch):
    parts = lab(training={"evaluate_every": 0})
    trainer = parts.trainer(tmp_path)

    monkeypatch.setattr(checkpoint, "write", full_disk)
    assert trainer.run() == "finished"
    flags = [line["flag"] for line in parts.reported if "flag" in line]
    assert flags[0].startswith("the checkpoint of step 1 was not written: No space left on device")


def test_gone_on_with_other_data_it_measures_anew_and_compares_with_that(lab, tmp_path, tiny_inputs):
    place = tmp_path / "checkpoints"
    place.mkdir()
    lab(training={"max_steps": 2}).trainer(place).run()
    more = tiny_training.make_data(tmp_path / "more.jsonl", lines=70)
    settings = {
        "max_steps": 4,
        "evaluate_every": 0,
        "may_differ": ("data", "training.max_steps", "training.evaluate_every"),
    }
    parts = Lab.of(lab().modules, tiny_training.plan(tiny_inputs[0], more, training=settings)).warmed()
    trainer = parts.trainer(place)
    trainer.begin(resume.find(place, parts.identity, lambda _: None))
    assert trainer.run() == "finished"
    first, last = trainer.state.evaluations
    assert (first.step, first.change, last.step, last.change is None) == (2, None, 4, False)
    assert list(trainer.history.columns["step"]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world_size": 8}, "rows_per_step: 4 rows leave some of 8 ranks without any"),
        ({"max_seq_len": 64}, "max_seq_len: 64 in the trial, 48 for its data"),
        ({"max_seq_len": 1024}, "max_seq_len: 1024 is more than the 512 positions"),
        ({"lora_targets": ("c_attn",)}, "lora_targets: .* has no layer 'c_attn'"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_begins(tiny_inputs, changes, words):
    with pytest.raises(InputError, match=words):
        training_set.check_inputs(tiny_training.plan(*tiny_inputs, **changes))


def test_a_broken_line_is_refused_by_file_and_line(tiny_inputs, tmp_path):
    folder, data = tiny_inputs
    broken = tmp_path / "broken.jsonl"
    broken.write_text(data.read_text() + '{"messages": [')
    with pytest.raises(InputError, match=r"broken\.jsonl: line 61: not JSON"):
        training_set.check_inputs(tiny_training.plan(folder, broken))


def test_on_a_core_that_many_share_a_row_may_take_minutes_before_its_ranks_count_as_hung(tiny_inputs):
    trial = tiny_training.plan(*tiny_inputs, max_seq_len=128, micro_batch_size=4)
    assert finetune.make_limits_of(trial).step_sec == 512
