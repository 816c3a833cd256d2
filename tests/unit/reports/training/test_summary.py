"""What a report says of a training: honest words for each end, and predicted beside actual."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench.records.training import CheckpointFacts, Restart
from bench.records.training_data import DataFinding
from reports.read.run import ReportError
from reports.training import next_commands, summary, timeline
from tests.support.reports import hostile
from tests.support.reports.training_run import RECORD, a_run


def test_the_figures_of_a_training_with_a_restart_and_what_was_changed_on_the_way(tmp_path: Path) -> None:
    found = summary.read(a_run(tmp_path))
    assert summary.headline(found) == (
        "Held-out loss 2.00 \N{RIGHTWARDS ARROW} 1.50 (1.40 to 1.60) for $4.00 in 60 min on 2 NVIDIA A10; "
        "predicted $3.90 for the steps"
    )
    assert summary.outcome(found) == "Trained: the held-out loss fell by 0.5000 nats a token (0.4000 to 0.6000)"
    lines = dict(summary.lines(found))
    assert lines["workers"] == "2, on NVIDIA A10"
    assert lines["workers were held for"] == "2.00 hours, all workers and attempts together"
    assert lines["cost"] == "$4.00 at $2.00"
    many = dataclasses.replace(found, held=[dataclasses.replace(one, workers=1280) for one in found.held])
    assert dict(summary.lines(many))["workers were held for"].startswith("1,280 hours")
    assert lines["restarts"] == "1, 90.0 s since their checkpoints, $0.1000"
    assert summary.compared(found)[1:] == [
        ("time of the steps", "0.972 hours", "1.00 hours"),
        ("dollars for the steps", "$3.90", "$4.00"),
        ("peak GPU memory", "3.00 GiB", "3.00 GiB"),
        ("communication", "unknown", "7.0 %"),
    ]
    words = ["training.schedule cosine, now linear", "learning_rate 0.1, now 0.01"]
    restart = Restart(attempt=2, from_step=3, reason="CANCELLED", lost_steps=0, lost_sec=0.0, changed=words)
    record = dataclasses.replace(found.record, restarts=[restart])
    lines = dict(summary.lines(dataclasses.replace(found, record=record)))
    assert lines["changed after step 3"] == "; ".join(words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"change": 0.5, "change_low": 0.4, "change_high": 0.6}, "it got worse: the held-out loss rose by 0.5000"),
        ({"change": -0.1, "change_low": -0.3, "change_high": 0.1}, "no change of the held-out loss is shown: -0.1000"),
        ({"change": -0.1, "change_low": None, "change_high": None}, "is shown: one example is too few"),
        ({"change": None, "change_low": None, "change_high": None}, "is shown: none was lower than the first"),
    ],
)
def test_a_loss_that_did_not_fall_is_not_called_a_success(
    changes: dict[str, float | None], words: str, tmp_path: Path
) -> None:
    last = dataclasses.replace(RECORD.evaluations[1], **changes)
    first = dataclasses.replace(RECORD.evaluations[0], is_best=True)  # as after a change of the data
    found = summary.read(a_run(tmp_path, dataclasses.replace(RECORD, evaluations=[first, last])))
    assert words in summary.outcome(found)
    assert [value.endswith("lowest") for name, value in summary.lines(found) if "loss" in name] == [False, True]
    unknown = dataclasses.replace(found, record=dataclasses.replace(RECORD, evaluations=[]))
    assert "no data was held out, so nothing is known" in summary.outcome(unknown)


def test_a_training_that_ended_otherwise_says_so_first(tmp_path: Path) -> None:
    record = dataclasses.replace(RECORD, status="FAILED", reason="the loss is not finite", steps_done=1)
    found = summary.read(a_run(tmp_path, record))
    assert summary.headline(found) == (
        "The training did not end well: FAILED after 1 of 2 steps: the loss is not finite"
    )


def test_without_a_price_the_sentence_speaks_of_time_alone(tmp_path: Path) -> None:
    found = dataclasses.replace(summary.read(a_run(tmp_path)), price=None, foreseen={"seconds": 3500.0})
    assert summary.headline(found).endswith("(1.40 to 1.60) in 60 min on 2 NVIDIA A10; predicted 58 min for the steps")
    assert summary.headline(dataclasses.replace(found, foreseen={})).endswith("on 2 NVIDIA A10")


def test_a_finding_counts_the_lines_that_it_does_not_name() -> None:
    found = DataFinding(what="too long", count=90, places=[f"d.jsonl: line {number}" for number in range(20)])
    assert summary._places(found) == "d.jsonl: line 0, d.jsonl: line 1, d.jsonl: line 2 and 87 more"
    assert summary._places(dataclasses.replace(found, count=2, places=["a", "b"])) == "a, b"


def test_the_course_marks_checkpoints_restarts_and_preemptions_at_the_hours_of_their_steps(tmp_path: Path) -> None:
    ends = (
        "ended without a word",
        "PREEMPTED: stopped by SIGTERM",
        "PREEMPTED: stopped by train.budget_usd after step 2",
    )
    record = dataclasses.replace(
        RECORD,
        checkpoints=[CheckpointFacts(step=1, seconds=1.0, stall_sec=0.1, bytes=9)],
        restarts=[
            Restart(attempt=2 + step, from_step=step, reason=reason, lost_steps=1, lost_sec=9.0)
            for step, reason in enumerate(ends)
        ],
    )
    found = summary.read(a_run(tmp_path, record))
    assert timeline.annotated(found) == {"checkpoint": [0.5], "restart": [0.0, 1.0], "preemption": [0.5]}
    assert timeline.speed(found) == ([0.5, 1.0], [10 / 1800, 12 / 1800])
    assert timeline.power(found) is None
    telemetry = "elapsed_sec,phase,gpu,gpu_power_watts\n0,train,0,100\n0,train,1,50\n3600,train,0,120\n"
    (tmp_path / "trials" / "train" / "telemetry.csv").write_text(telemetry)
    assert timeline.power(found) == ([0.0, 1.0], [150.0, 120.0])


def test_what_to_type_next_and_the_settings_that_repeat_it(tmp_path: Path) -> None:
    found = summary.read(a_run(tmp_path / "run"))
    typed = dict(next_commands.commands(found))
    assert typed["merge it into one model folder"] == "inv adapter.merge --run=run"
    unmeasured = dataclasses.replace(found, record=dataclasses.replace(RECORD, evaluations=[]))
    assert next_commands.commands(unmeasured)[0][1] == "inv adapter.merge --run=run --anyway"
    stopped = dataclasses.replace(found, record=dataclasses.replace(RECORD, status="PREEMPTED", reason="max_hours"))
    assert next_commands.commands(stopped)[0][1] == "inv train --resume=run"
    run = dataclasses.replace(found.run, settings={"train": {"seed": 1}, "registry": {"user": "x"}})
    kept = json.loads(next_commands.settings(dataclasses.replace(found, run=run)))
    assert kept == {"train": {"seed": 1}, "bench": {"profile": "tiny"}}


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("trials/train/training.json", ("steps", "tokens"), [5], "its lists differ in length: step 2, .* tokens 1"),
        ("trials/train/training.json", ("steps", "step"), [2, 1], "steps: they are not in order"),
        ("trials/train/training.json", ("steps", "step_time_sec", 0), -1.0, r"step 1 took -1\.0 s"),
        ("trials/train/training.json", ("steps", "targets", 1), 13, "step 2 counts 12 tokens, 13 of them targets"),
        ("trials/train/training.json", ("evaluations", 1, "loss"), 1e300, r"loss is 1e\+300"),
        ("trials/train/training.json", ("world_size",), 0, "world_size is 0"),
        ("trials/train/training.json", ("status",), "\x1b[31mFINE", r"status is '\\x1b\[31mFINE'"),
        ("trials/train/training.json", ("adapter_step",), None, "of its adapter it says only one of step and sha256"),
        ("trials/train/training.json", ("run_id",), "other", "belongs to 'train' of run 'other'"),
        ("run.json", ("planned",), [], "plans 0 trials; a training is one"),
        ("run.json", ("provenance", "inputs"), None, "what was foreseen: it is no object"),
        ("run.json", ("provenance", "inputs", "foreseen", "usd_per_gpu_hour"), -2.0, r"usd_per_gpu_hour is -2\.0"),
        ("run.json", ("provenance", "inputs", "foreseen", "seconds"), "soon", "seconds is 'soon'"),
    ],
)
def test_what_cannot_be_true_is_refused_by_name(
    tmp_path: Path, name: str, place: tuple[str | int, ...], value: object, words: str
) -> None:
    folder = a_run(tmp_path)
    hostile.seal(folder / name, lambda document: hostile.put(document, place, value))
    with pytest.raises(ReportError, match=f"{Path(name).name}: .*{words}") as refused:
        summary.read(folder)
    assert "\n" not in str(refused.value)


def test_what_a_ledger_says_of_a_restart_is_a_number_or_unknown(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text().replace('"lost_sec": 90.0', '"lost_sec": "long"').replace("0.1,", "-1e300,"))
    assert dict(summary.lines(summary.read(folder)))["restarts"] == "1; of 1 nobody saw the cost"


def test_a_training_that_was_not_collected_says_what_to_type(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (folder / "trials" / "train" / "training.json").unlink()
    with pytest.raises(ReportError, match="`inv collect --run="):
        summary.read(folder)
