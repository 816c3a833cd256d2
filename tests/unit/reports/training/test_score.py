"""The score and the goodput of a training in its report."""

import dataclasses
from pathlib import Path

import pytest

from bench.records.score import TrainingTime
from bench.records.training import Restart
from reports.output import training_document as document
from reports.read.loaded_run import ReportError
from reports.training import sentences, training_facts
from tests.support.reports.training_run import MEASURE, RECORD, SCORE, write_run


def read(tmp_path: Path, **changes: object) -> training_facts.TrainingReport:
    return training_facts.read(write_run(tmp_path / "r", dataclasses.replace(RECORD, **changes)))


def test_the_score_is_the_headline_and_the_first_large_number(tmp_path: Path) -> None:
    training = read(tmp_path, score=SCORE)
    assert sentences.headline(training) == sentences.score_outcome(training.record)
    tile = next(document.tiles(training))
    assert (tile.name, tile.value) == ("equal fields", "75 %")
    for method, label in (("exact", "exact answers"), ("json", "equal fields"), ("/my/judge.py", "score by judge.py")):
        names = [name for name, *_ in sentences.score_table(dataclasses.replace(SCORE, method=method))]
        assert names == [label, "valid JSON"]


@pytest.mark.parametrize(
    "changes",
    [
        {"measures": [], "failure": "rank 0: OutOfMemoryError"},
        {"measures": [], "before": [None] * 3, "after": [None] * 3, "unscored_rows": 3},
    ],
)
def test_a_failed_score_is_a_note_and_the_training_stands(changes: dict[str, object], tmp_path: Path) -> None:
    training = read(tmp_path, score=dataclasses.replace(SCORE, **changes))
    assert training.has_succeeded
    assert sentences.headline(training) == sentences.loss_and_cost(training)
    assert f"{sentences.score_outcome(training.record)}." in sentences.notes(training)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after": [0.5, 1.0, 7.0]}, r"after is 7\.0"),
        ({"after": [0.5]}, "score: "),
        ({"measures": [dataclasses.replace(MEASURE, after_high=1.5)]}, r"after_high is 1\.5"),
    ],
)
def test_an_impossible_score_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=rf"training\.json: {message}"):
        read(tmp_path, score=dataclasses.replace(SCORE, **changes))


def test_paid_time_is_divided_by_use(tmp_path: Path) -> None:
    """Two attempts of half an hour on two workers; the steps took an hour, so the rest is nothing."""
    steps = dataclasses.replace(RECORD.steps, step_time_sec=[900.0, 600.0])
    restart = Restart(attempt=2, from_step=1)
    times = TrainingTime(loading_sec=300.0, evaluation_sec=120.0, score_sec=600.0)
    training = read(tmp_path, steps=steps, restarts=[restart], time=times)
    assert training.uses == {
        training_facts.STEPS: 3000.0, "loading": 600.0, "evaluations": 240.0, "answers and score": 1200.0,
        training_facts.REST: 2160.0,
    }  # fmt: skip
    assert "42 %" in sentences.goodput(training)
    assert dataclasses.replace(training, attempts=[]).uses == {}


def test_the_cost_is_that_of_the_paid_time_with_its_waits(tmp_path: Path) -> None:
    training = training_facts.read(write_run(tmp_path / "r"))
    first, second = training.attempts
    waiting = dataclasses.replace(training, attempts=[dataclasses.replace(first, ended=first.began + 900.0), second])
    assert waiting.uses[training_facts.WAITS] == 2 * 900.0
    assert waiting.worker_hours == training.worker_hours == 2.0
    assert sentences.loss_and_cost(waiting) == sentences.loss_and_cost(training)
