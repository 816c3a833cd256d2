"""The score within a training: before and after, resumed, stopped, and when it fails."""

import dataclasses
from pathlib import Path

import pytest

from bench.records import schema
from bench.records.atomic_files import sha256_of
from bench.records.score import TrainingScore
from bench.workloads.finetune import checkpoint, checkpoint_manager, score, scoring
from tests.support.faults import raising

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("short_answers"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
]
SETTINGS = {"score": "contains", "max_steps": 2, "evaluate_every": 0, "checkpoint_sec": 900.0}


@pytest.fixture
def answered(monkeypatch) -> list[int]:
    """The number of prompts of each call of the generator."""
    counts = []
    real = scoring.AnswerGenerator.generate

    def generate(self, prompts, limits):
        counts.append(len(prompts))
        return real(self, prompts, limits)

    monkeypatch.setattr(scoring.AnswerGenerator, "generate", generate)
    return counts


def test_answers_before_are_the_bases_at_any_step_and_are_computed_once(lab, tmp_path, answered):
    parts = lab(training=SETTINGS)
    trainer = parts.resumed(tmp_path)
    assert trainer.run() == "finished"
    rows = len(parts.material.data.validation)
    assert answered == [rows]
    result = trainer.score()
    assert answered == [rows, rows], "the answers before are not repeated"
    (measure,) = result.measures
    assert measure.rows == len(result.places) == rows
    assert (result.failure, result.unscored_rows) == (None, 0)
    assert schema.from_json(TrainingScore, schema.to_json(result)) == result
    assert result.shown[0].prompt.startswith("What is ")
    assert result.shown[0].expected.isdigit()
    assert trainer.state.time.score_sec > 0
    assert trainer.state.time.loading_sec > 0

    weights = {name: tensor.clone() for name, tensor in trainer.weights.adapter.items()}
    trainer.state = dataclasses.replace(trainer.state, first_score=None)  # computed again, with B = 0
    again = trainer.score()
    assert [row.before for row in again.shown] == [row.before for row in result.shown]
    assert again.before == result.before
    assert all(bool((tensor == weights[name]).all()) for name, tensor in trainer.weights.adapter.items())


def test_a_training_from_an_adapter_is_compared_with_this_adapter(lab, tmp_path):
    first = lab(training={**SETTINGS, "score": None}).trainer(None)
    first.run()
    adapter = {name: tensor * 50 for name, tensor in first.weights.adapter.items()}
    checkpoint_manager.write_adapter(tmp_path, adapter, first.weights, Path(first.trial.model))
    path = tmp_path / "adapter" / checkpoint.ADAPTER
    begun = {**SETTINGS, "init_adapter": str(path.parent), "init_sha256": sha256_of(path)}
    parts, checkpoints = lab(training=begun), tmp_path / "checkpoints"
    checkpoints.mkdir()
    trainer = parts.resumed(checkpoints)
    assert trainer.run() == "finished"
    before = trainer.state.first_score.answers
    assert before != lab(training=SETTINGS).trainer(None).scorer.measure_base().answers, "another than the base"
    assert trainer.scorer.measure_base().answers == before
    path.unlink()
    result = trainer.scorer.compare(None)
    assert (result.measures, str(path) in str(result.failure)) == ([], True)


def test_a_resumed_training_scores_only_what_is_missing(lab, tmp_path, answered):
    parts = lab(training=SETTINGS)
    assert parts.resumed(tmp_path, stop_requested=lambda: bool(answered)).run() == "stopped"
    assert len(answered) == 1
    resumed = lab(training=SETTINGS)
    trainer = resumed.resumed(tmp_path)
    assert (trainer.state.step, trainer.state.first_score) == (1, None), "the stop came before its end"
    assert (trainer.run(), len(answered)) == ("finished", 1)
    changed = lab(training={**SETTINGS, "score": "exact"})
    trainer = changed.resumed(tmp_path)
    assert (trainer.state.step, trainer.run()) == (2, "finished")
    assert trainer.score().method == "exact"
    assert len(answered) == 3, "before, with B = 0, and after"


def test_a_failure_of_the_answers_is_a_result(lab, tmp_path, monkeypatch):
    parts = lab(training=SETTINGS)
    trainer = parts.trainer(tmp_path)
    monkeypatch.setattr(scoring.AnswerGenerator, "generate", raising(RuntimeError("no\nanswers")))
    assert trainer.run() == "finished"
    result = trainer.score()
    assert (result.measures, result.failure) == ([], "rank 0: RuntimeError: no\\nanswers")
    assert [line["flag"] for line in parts.reports if "flag" in line] == [f"score: {result.failure}"] * 2


def test_rows_without_a_score_are_named(lab, tmp_path, monkeypatch):
    fault = score.RowScore(values={}, fault=score.ScoreFault.RAISED, detail="KeyError: 'x'")
    monkeypatch.setattr(score.Scoring, "score", lambda _, rows, __: [fault] * len(rows))
    parts = lab(training=SETTINGS)
    trainer = parts.resumed(tmp_path)
    assert trainer.run() == "finished"
    result = trainer.score()
    assert (result.measures, result.failure, result.unscored_rows) == ([], None, len(result.places))
    assert (result.unscored[0].row, result.unscored[0].fault) == (1, score.ScoreFault.RAISED)
    assert next(line["flag"] for line in parts.reports if "flag" in line).endswith("KeyError: 'x'")
