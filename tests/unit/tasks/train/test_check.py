"""The request of `inv data.check` to a worker, and the output of its report, also with hostile data."""

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from bench.records import Trial
from bench.records.training import (
    ConversationPreview,
    DataFinding,
    DataPart,
    DataReport,
    DerivedSettings,
    FileFacts,
    LostToLength,
)
from reports.summary.cost import Amount, Price
from tasks.errors import UsageError
from tasks.fleet import trial_spec
from tasks.settings.layers import Settings
from tasks.train import forecast, output
from tasks.train.data_warnings import find_warnings
from tests.support.cases import Case, load_cases
from tests.unit.tasks.train.conftest import MakeSettings

REPORT = DataReport(
    files=[FileFacts(path="d.jsonl", kind="Alpaca", sha256="ab" * 32, lines=7, tokens=600)],
    examples=6,
    validation_examples=1,
    tokens=600,
    targets=150,
    longest=200,
    median_length=90.0,
    rows=9,
    is_packed=True,
    positions=800,
    slowdown=1.46,
    lengths=[0, 4, 2, 0],
    length_edges=[64, 128, 192, 256],
    left_out=1,
    findings=[
        DataFinding(what="is longer than max_seq_len: dropped", count=1, places=["d.jsonl: line 3"]),
        DataFinding(what="has the control token [/INST] in its text", count=1, places=["d.jsonl: line 4"]),
    ],
    shown=[
        ConversationPreview(place="d.jsonl: line 1", tokens=9, targets=4, parts=[
            DataPart(text="Q\x1b[2J\x07?\n", is_target=False), DataPart(text="yes</s>", is_target=True),
        ]),
    ],
    was_cached=False,
    seconds=1.5,
)  # fmt: skip
PREDICTED = forecast.TrainingForecast(
    steps=3,
    workers=2,
    seconds=Amount(value=1800.0, low=1440.0, high=2160.0),
    basis="from 30 steps measured on NVIDIA A10 (run r)",
    price=Price(usd_per_gpu_hour=2.0, source="list price"),
    usd=Amount(value=2.0, low=1.6, high=2.4),
    peak_bytes=3 << 30,
    memory_bytes=24 << 30,
)


def make_probe(**fields: Any) -> forecast.ProbeResult:
    known = {"gpu": None, "gpus": 0, "gpu_memory_bytes": None, "peak_bytes": None, "steps": 3, "data": REPORT}
    return forecast.ProbeResult(**{"model_sha256": "0" * 64, "recipe": "fast"} | known | fields)


def test_a_validation_file_replaces_the_share(settings: MakeSettings) -> None:
    spec = trial_spec.training_data(settings(data=["a", "b"], validation_file="v"))
    assert (spec.files, spec.validation_share, spec.validation_file) == (["a", "b"], 0.0, "v")


def trial_of(settings: Settings, workers: int = 1) -> Trial:
    return trial_spec.make_trial(settings, workers)


def report_text(settings: Settings) -> str:
    out = Console(file=io.StringIO(), width=120)
    output.show_report(out, make_probe(), trial_of(settings), PREDICTED)
    return out.file.getvalue()  # type: ignore[attr-defined]


def test_the_numbers_that_cost_money_come_first(settings: MakeSettings) -> None:
    lines = report_text(settings(rows_per_step=4)).splitlines()
    assert lines[:8] == [
        "6 examples to train on, 1 example held out, 1 line left out",
        "600 tokens an epoch, 25.0 % of them trained on (labels: assistant)",
        "9 packed rows an epoch, 3 steps of 4 rows",
        "tokenized in 1.5 s",
        "3 steps on 2 workers: 30 min (24 min to 36 min)",
        "steps 30 min ($2.00)",
        "time of the steps: from 30 steps measured on NVIDIA A10 (run r)",
        "$2.00 ($1.60 to $2.40) at $2.00 per GPU hour (list price)",
    ]
    unknown = dataclasses.replace(
        PREDICTED, workers=1, seconds=None, usd=None, peak_bytes=None, basis="no run measured it"
    )
    time, dollars = output.headline(unknown)
    assert time.endswith(": no run measured it")
    assert dollars.endswith("$2.00 per GPU hour (list price)")


def test_the_report_has_no_control_characters_and_marks_the_targets_without_colours(settings: MakeSettings) -> None:
    text = report_text(settings())
    assert not [letter for letter in text if not letter.isprintable() and letter != "\n"]
    for part in ("Q\\x1b[2J\\x07?", "[[yes</s>]]", "[/INST]"):
        assert part in text


def test_a_long_example_is_cut_within_its_part() -> None:
    context, target = DataPart(text="abc", is_target=False), DataPart(text="defg", is_target=True)
    example = dataclasses.replace(REPORT.shown[0], parts=[context, target])
    assert output.parts_within(example, 6) == [("abc", False), ("def", True), (" ...", False)]
    assert output.parts_within(example, 99) == [("abc", False), ("defg", True)]
    tools = DataPart(text="a" * 30 + "b" * 30, is_target=False)
    example = dataclasses.replace(example, parts=[tools, target])
    assert output.parts_within(example, 40) == [("a" * 10 + " ... " + "b" * 10, False), ("defg", True)]


def test_a_fallback_of_the_recipe_is_a_warning_and_stands_in_the_plan(settings: MakeSettings) -> None:
    fallback = "stock (fast is not supported: a base in bf16, not NF4)"
    trial = trial_spec.make_trial(settings(base_precision="bf16"), 1)
    probe = make_probe(recipe=fallback)
    predicted = forecast.predict(settings(), trial, probe)
    assert f"! recipe {fallback}" in output.headline(predicted)
    out = Console(file=io.StringIO(), width=120)
    output.show_plan(out, trial, probe, ["worker-0"])
    assert f"{fallback}, bf16" in " ".join(out.file.getvalue().split())  # type: ignore[attr-defined]
    assert forecast.predict(settings(), trial, make_probe(recipe=trial.recipe)).fallback is None


def test_only_settings_that_the_user_left_open_are_derived_and_named(settings: MakeSettings) -> None:
    derived = DerivedSettings(rows_per_step=2, warmup_share=0.1, gradient_checkpointing=False, checkpoint_every=2)
    fitted = {"micro_batch_size": 8, "gradient_checkpointing": True, "held_layers": 0, "optimizer": "adamw_torch"}
    trial = trial_of(settings(validation_fraction=0.1))
    training = trial_spec.training_of(trial)
    assert (trial.derive, training.rows_per_step) == (("rows_per_step", "warmup_share", *fitted), 4)
    assert {name: getattr(trial, name) for name in fitted} == fitted
    lines = output.summary_lines(make_probe(derived=derived), trial, PREDICTED)
    named = "train.rows_per_step 2, train.warmup_share 0.1, train.gradient_checkpointing false"
    assert f"derived from data and GPU: {named}" in lines
    assert trial_spec.INT8_OFFER not in lines
    assert not any(line.startswith("not packed: ") for line in lines)
    padded = dataclasses.replace(make_probe(), data=dataclasses.replace(REPORT, is_packed=False))
    (line,) = (line for line in output.summary_lines(padded, trial, PREDICTED) if line.startswith("not packed: "))
    assert "25 % of the positions" in line  # 600 tokens in 800 positions
    assert "1.5 times" in line
    on_a_gpu = make_probe(can_use_int8=True)
    assert trial_spec.INT8_OFFER in output.summary_lines(on_a_gpu, trial, PREDICTED)
    in_eight = dataclasses.replace(trial, matmul="int8")
    assert trial_spec.INT8_OFFER not in output.summary_lines(on_a_gpu, in_eight, PREDICTED)
    assert trial_spec.training_of(trial_of(settings(), workers=4)).rows_per_step == 4
    assert "validation_share" not in trial_of(settings(validation_file="v")).derive
    explicit = settings(rows_per_step=8, warmup_share=0.0, validation_fraction=0.0, **fitted)
    assert trial_of(explicit).derive == ()


@pytest.mark.parametrize("case", load_cases(__file__, "small_data.yaml"))
def test_a_training_that_shows_or_learns_little_is_a_warning_with_the_setting(
    settings: MakeSettings, case: Case
) -> None:
    report = dataclasses.replace(REPORT, **case["input"].get("report", {}))
    report = dataclasses.replace(
        report,
        files=[dataclasses.replace(REPORT.files[0], **file) for file in case["input"].get("files", [{}])],
        lost=LostToLength(**case["input"]["lost"]) if "lost" in case["input"] else None,
    )
    if "answers" in case["input"]:
        parts = [[DataPart(text=text, is_target=True)] for text in case["input"]["answers"]]
        report = dataclasses.replace(report, shown=[dataclasses.replace(REPORT.shown[0], parts=part) for part in parts])
    trial = trial_of(settings(**case["input"].get("train", {})))
    warnings = {warning.code: warning for warning in find_warnings(report, trial, case["input"]["steps"])}
    assert list(warnings) == list(case["expected"])
    for code, remedy in case["expected"].items():
        assert remedy in warnings[code].text
        assert warnings[code].values


def test_without_a_gpu_unknown_hours_and_dollars_are_left_out() -> None:
    unknown = dict.fromkeys(("seconds", "price", "usd", "peak_bytes"))
    predicted = dataclasses.replace(PREDICTED, steps=9, workers=2, fallback=None, max_hours=None, **unknown)
    assert output.headline(dataclasses.replace(predicted, memory_bytes=None)) == ["9 steps on 2 workers"]
    assert len(output.headline(dataclasses.replace(predicted, memory_bytes=24 << 30))) == 2


@pytest.mark.parametrize(("max_hours", "left"), [(1.0, None), (0.5, 1)])
def test_a_limit_that_stops_a_training_early_is_a_warning_of_the_forecast(max_hours: float, left: int | None) -> None:
    seconds = Amount(value=3600.0, low=None, high=None)
    limited = dataclasses.replace(PREDICTED, seconds=seconds, max_hours=max_hours)
    assert limited.steps_within_limit == left
    assert any(line.startswith("! train.max_hours ") for line in output.headline(limited)) == (left is not None)


def test_a_limit_that_ends_before_the_first_step_is_refused_before_it_costs() -> None:
    forecast.check_time_limit(dataclasses.replace(PREDICTED, seconds=None, max_hours=0.001))
    for max_hours, seconds in ((1e-9, None), (0.1, Amount(value=36_000.0, low=None, high=None))):
        with pytest.raises(UsageError, match=r"^train\.max_hours: "):
            forecast.check_time_limit(dataclasses.replace(PREDICTED, seconds=seconds, max_hours=max_hours))


def test_the_histogram_has_no_empty_bins_at_its_ends() -> None:
    report = dataclasses.replace(REPORT, lengths=[0, 4, 0, 2, 0], length_edges=[64, 128, 192, 256, 320])
    assert output.length_bins(report) == [(128, 4), (192, 0), (256, 2)]
    assert output.length_bins(dataclasses.replace(report, lengths=[0] * 5)) == []
