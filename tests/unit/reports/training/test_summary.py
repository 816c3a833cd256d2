"""Summary of a training: sentences for each end, predicted against actual numbers, score, paid time."""

import dataclasses
import re
from pathlib import Path

import pytest

from bench.records.score import TrainingTime
from bench.records.training import DataFinding, Restart
from reports.output import training_document as document
from reports.read.loaded_run import ReportError
from reports.training import sentences, training_facts
from tests.support.reports import hostile
from tests.support.reports.training_run import FORM, RECORD, SCORE, SCORED, write_checked, write_run


def test_the_numbers_of_a_training_with_a_restart(tmp_path: Path) -> None:
    training = training_facts.read(write_run(tmp_path))
    assert sentences.headline(training) == (
        "Held-out loss 2.00 \N{RIGHTWARDS ARROW} 1.50 (1.40 to 1.60) for $4.00 in 60 min on 2 NVIDIA A10; "
        "predicted $3.90"
    )
    assert re.fullmatch(r"Trained: .* fell by 0\.5000 .* \(0\.4000 to 0\.6000\)", sentences.outcome(training))
    lines = dict(sentences.lines(training))
    assert lines["workers"] == "2, on NVIDIA A10"
    assert lines["worker time"].startswith("2 h ")
    assert lines["cost"] == "$4.00 at $2.00"
    fallback = {"recipe": "stock (fast is not supported: a base in bf16, not NF4)"}
    record = dataclasses.replace(training.record, fingerprint=fallback)
    assert dict(sentences.lines(dataclasses.replace(training, record=record)))["recipe"] == fallback["recipe"]
    assert sentences.predicted_and_actual(training)[1:] == [
        ("time of the steps", "58 min 20 s, $3.89", "60 min, $4.00"),
        ("whole time", "-", "60 min"),
        ("dollars", "$3.90", "$4.00"),
        ("peak GPU memory", "3.00 GiB", "3.00 GiB"),
        ("communication", "-", "7.0 %"),
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"change": 0.5, "change_low": 0.4, "change_high": 0.6}, "rose by 0.5000"),
        ({"change": -0.1, "change_low": -0.3, "change_high": 0.1}, "not shown to change: -0.1000"),
        ({"change": -0.1, "change_low": None, "change_high": None}, "not shown to change: one example"),
        ({"change": None, "change_low": None, "change_high": None}, "not shown to change: no later loss"),
    ],
)
def test_a_loss_that_did_not_fall_is_not_called_a_success(
    changes: dict[str, float | None], sentence: str, tmp_path: Path
) -> None:
    last = dataclasses.replace(RECORD.evaluations[1], **changes)
    first = dataclasses.replace(RECORD.evaluations[0], is_best=True)  # as after a change of the data
    training = training_facts.read(write_run(tmp_path, dataclasses.replace(RECORD, evaluations=[first, last])))
    assert sentence in sentences.outcome(training)
    assert [value.endswith("lowest") for name, value in sentences.lines(training) if "loss" in name] == [False, True]
    unknown = dataclasses.replace(training, record=dataclasses.replace(RECORD, evaluations=[]))
    assert "no data was held out" in sentences.outcome(unknown)
    failed = dataclasses.replace(RECORD, status="FAILED", reason="the loss is not finite", steps_done=1)
    headline = sentences.headline(dataclasses.replace(training, record=failed))
    assert headline.endswith(": FAILED after 1 of 2 steps: the loss is not finite")


def test_without_a_price_the_headline_has_only_the_time(tmp_path: Path) -> None:
    training = dataclasses.replace(training_facts.read(write_run(tmp_path)), price=None, forecast={"total_sec": 3500.0})
    assert "(1.40 to 1.60) in 60 min on 2 NVIDIA A10; predicted 58 min 20 s" in sentences.headline(training)
    assert sentences.headline(dataclasses.replace(training, forecast={})).endswith("on 2 NVIDIA A10")


def test_a_finding_counts_the_places_that_it_does_not_name() -> None:
    finding = DataFinding(what="too long", count=90, places=[f"d.jsonl: line {number}" for number in range(20)])
    assert sentences._places(finding) == "d.jsonl: line 0, d.jsonl: line 1, d.jsonl: line 2 and 87 more"
    assert sentences._places(dataclasses.replace(finding, count=2, places=["a", "b"])) == "a, b"


def test_the_next_command(tmp_path: Path) -> None:
    training = training_facts.read(write_run(tmp_path / "run"))
    assert sentences.next_command(training)[1] == "inv adapter.check --run=run"  # before it a merge is refused
    best = dataclasses.replace(FORM, name="merged-nf4", change=0.0, change_low=-0.001, change_high=0.001)
    worse = dataclasses.replace(best, name="merged-bf16", loss=2.02, change=0.02, change_low=0.01, change_high=0.03)
    checked = training_facts.read(write_checked(tmp_path / "checked", {"e": 2.0}, worse, best))
    assert sentences.next_command(checked)[1] == "inv adapter.merge --run=checked --base=nf4"
    without_validation = dataclasses.replace(training, record=dataclasses.replace(RECORD, evaluations=[]))
    assert sentences.next_command(without_validation)[1] == "inv adapter.merge --run=run --force"
    stopped = dataclasses.replace(training, record=dataclasses.replace(RECORD, status="PREEMPTED", reason="max_hours"))
    assert sentences.next_command(stopped)[1] == "inv train --resume=run"


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("trials/train/training.json", ("steps", "tokens"), [5], "step 2, .* tokens 1"),
        ("trials/train/training.json", ("steps", "step"), [2, 1], "steps: .* order"),
        ("trials/train/training.json", ("steps", "step_time_sec", 0), -1.0, r"step_time_sec is -1\.0"),
        ("trials/train/training.json", ("steps", "targets", 1), 13, "step 2 counts 12 tokens, 13 of them targets"),
        ("trials/train/training.json", ("evaluations", 1, "loss"), 1e300, r"loss is 1e\+300"),
        ("trials/train/training.json", ("world_size",), 0, "world_size is 0"),
        ("trials/train/training.json", ("status",), "\x1b[31mFINE", r"status is '\\x1b\[31mFINE'"),
        ("trials/train/training.json", ("adapter_step",), None, "adapter: .* sha256"),
        ("trials/train/training.json", ("score", "after", 2), 7.0, r"after is 7\.0"),
        ("trials/train/training.json", ("score", "after"), [0.5], "score: "),
        ("trials/train/training.json", ("score", "measures", 0, "after_high"), 1.5, r"after_high is 1\.5"),
        ("trials/train/training.json", ("run_id",), "other", "belongs to 'train' of run 'other'"),
        ("run.json", ("planned",), [], "plans 0 trials"),
        ("run.json", ("provenance", "inputs"), None, "forecast: .* object"),
        ("run.json", ("provenance", "inputs", "forecast", "usd_per_gpu_hour"), -2.0, r"usd_per_gpu_hour is -2\.0"),
        ("run.json", ("provenance", "inputs", "forecast", "seconds"), "soon", "seconds is 'soon'"),
    ],
)
def test_impossible_values_are_refused_by_name(
    tmp_path: Path, name: str, key: tuple[str | int, ...], value: object, message: str
) -> None:
    folder = write_run(tmp_path, SCORED)
    hostile.rewrite_checksummed(folder / name, lambda document: hostile.set_value(document, key, value))
    with pytest.raises(ReportError, match=f"{Path(name).name}: .*{message}") as refused:
        training_facts.read(folder)
    assert "\n" not in str(refused.value)


def test_the_last_learning_rate_and_a_change_may_be_as_small_as_floats_are(tmp_path: Path) -> None:
    steps = dataclasses.replace(RECORD.steps, learning_rate=[2e-4, 1e-24])
    last = dataclasses.replace(RECORD.evaluations[1], change=-1e-20)
    record = dataclasses.replace(RECORD, steps=steps, evaluations=[RECORD.evaluations[0], last])
    assert training_facts.read(write_run(tmp_path, record)).record == record


def test_the_cost_of_a_restart_in_the_ledger_is_a_number_or_unknown(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text().replace('"lost_sec": 90.0', '"lost_sec": "long"').replace("0.1}", "-1e300}"))
    (_, restarted) = training_facts.read(folder).attempts
    assert (restarted.lost_sec, restarted.usd) == (None, None)


def test_a_training_that_was_not_collected_names_the_command(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder / "trials" / "train" / "training.json").unlink()
    with pytest.raises(ReportError, match=f"; .*`inv collect --run={folder.name}`"):
        training_facts.read(folder)


def test_a_damaged_ledger_is_a_rejected_file(tmp_path: Path) -> None:
    ledger = write_run(tmp_path) / "ledger.jsonl"
    assert training_facts.read(tmp_path).rejected == ()
    ledger.write_bytes(ledger.read_bytes()[:-20])
    assert [file.file for file in training_facts.read(tmp_path).rejected] == ["ledger.jsonl"]


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


def test_paid_time_is_divided_by_use(tmp_path: Path) -> None:
    """Two attempts of half an hour on two workers; the steps took an hour, so the rest is nothing."""
    steps = dataclasses.replace(RECORD.steps, step_time_sec=[900.0, 600.0])
    restart = Restart(attempt=2, from_step=1)
    times = TrainingTime(loading_sec=300.0, evaluation_sec=120.0, score_sec=600.0)
    training = read(tmp_path, steps=steps, restarts=[restart], time=times)
    actual = {name: value for name, _, value in sentences.predicted_and_actual(training)}
    names = ("start and end", "loading, of start and end", "evaluations", "answers and score")
    expected = ["23 min, $1.53", "5 min, $0.3333", "2 min, $0.1333", "10 min, $0.6667"]
    assert [actual[name] for name in names] == expected
    assert "42 %" in sentences.goodput(training)
    assert sentences.goodput(dataclasses.replace(training, attempts=[])) is None


def test_the_cost_is_that_of_the_paid_time_with_its_waits(tmp_path: Path) -> None:
    training = training_facts.read(write_run(tmp_path / "r"))
    first, second = training.attempts
    waiting = dataclasses.replace(training, attempts=[dataclasses.replace(first, ended=first.began + 900.0), second])
    assert ("waiting for a restart, of start and end", "-", "15 min, $1.00") in sentences.predicted_and_actual(waiting)
    assert waiting.worker_hours == training.worker_hours == 2.0
    assert sentences.loss_and_cost(waiting) == sentences.loss_and_cost(training)
