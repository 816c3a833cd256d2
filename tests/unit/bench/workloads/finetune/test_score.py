"""Scores of single answers, and their summary in pairs before and after a training."""

import pytest

from bench.data.inputs import InputError
from bench.records.score import ScoreFault
from bench.records.training import TrainingData
from bench.records.validation import TrialError
from bench.workloads.finetune import score
from bench.workloads.finetune.score import AnsweredRow, RowScore, Scoring
from bench.workloads.finetune.training_set import training_of
from tests.support import tiny_training
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases(__file__, "scores.yaml"))
def test_a_row(case: Case) -> None:
    answer = case["input"]["answer"]
    text = answer if isinstance(answer, str) else answer["repeat"] * answer["times"]
    row = AnsweredRow(prompt="", answer=text, expected=case["input"]["expected"])
    (result,) = Scoring(method=case["input"]["method"], sha256=None).score([row])
    fault = case["expected"].get("fault")
    assert list(result.values.values()) == case["expected"].get("values", [])
    assert result.fault == (None if fault is None else ScoreFault(fault))


def scored(*values: float | None) -> list[RowScore]:
    return [
        RowScore(values={}, fault=ScoreFault.RAISED) if value is None else RowScore(values={"score": value})
        for value in values
    ]


def test_only_rows_with_both_scores_are_compared():
    (measure,) = score.compare(scored(0.0, None, 0.5, 0.0, 0.0), scored(1.0, 1.0, None, 1.0, 0.0))
    assert (measure.rows, measure.before, measure.after) == (3, 0.0, pytest.approx(2 / 3))
    assert measure.change == pytest.approx(2 / 3)
    # Student's t of two degrees of freedom, 4.303, times the standard error, 1/3.
    assert (measure.change_low, measure.change_high) == (pytest.approx(2 / 3 - 4.303 / 3, abs=1e-3), 1.0)
    assert score.compare(scored(None, 1.0), scored(1.0, None)) == []
    assert score.mean_score(scored(None, None)) is None


@pytest.mark.parametrize(("count", "low"), [(1, 0.025), (8, 0.630), (100, 0.963)])
def test_equal_scores_have_an_interval_that_shrinks_with_their_number(count, low):
    (measure,) = score.compare(scored(*[1.0] * count), scored(*[1.0] * count))
    assert (measure.after_low, measure.after_high) == (pytest.approx(low, abs=1e-3), 1.0)
    assert measure.change_low == pytest.approx(-measure.change_high)
    (measure,) = score.compare(scored(*[0.0] * count), scored(*[1.0] * count))
    assert measure.change_low == pytest.approx(max(-1.0, 2.0 * low - 1.0), abs=2e-3)


def test_rows_are_chosen_at_equal_distances():
    assert score.spread_indices(10, 4) == [0, 2, 5, 7]
    assert score.spread_indices(3, 4) == [0, 1, 2]


@pytest.mark.parametrize(
    ("method", "changes"), [("bleu", {}), ("exact", {"validation_share": 0.0}), ("exact", {"labels": "all"})]
)
def test_an_unknown_method_and_a_score_without_held_out_or_marked_answers_are_refused(method, changes):
    data = TrainingData(**({"files": ["d"], "max_seq_len": 48, "validation_share": 0.1} | changes))
    with pytest.raises(TrialError, match=r"^score: "):
        tiny_training.plan("m", "d", training={"score": method, "evaluate_every": 0, "data": data})


def test_an_unusable_file_is_refused_before_the_training(tmp_path):
    def load(**changes):
        return Scoring.load(training_of(tiny_training.plan("m", "d", training=changes)))

    assert load() is None
    path = tmp_path / "my.py"
    with pytest.raises(InputError, match="cannot be read"):
        load(score=str(path))
    path.write_bytes(b"def score(:")
    with pytest.raises(InputError, match="not Python"):
        load(score=str(path))
    path.write_bytes(b"x" * (score.MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match="cannot be read"):
        load(score=str(path))
    path.write_text("def score(prompt, answer, expected):\n    return 1\n")
    first = load(score=str(path))
    path.write_text("def score(prompt, answer, expected):\n    return 0\n")
    (result,) = first.score([AnsweredRow(prompt="", answer="a", expected="a")])
    assert (result.score, result.fault) == (None, ScoreFault.CRASHED), "another file's score is not this one's"
