"""The recommendation: only reliable configurations, and no winner among equals."""

from dataclasses import replace

import pytest

from bench.records.paths import QUALITY_FILE
from bench.records.quality import LossCheck, LossPair, QualityRecord, reference_of
from bench.records.status import TrialStatus
from reports.output import benchmark
from reports.read.run_folder import load
from reports.summary import sentences
from reports.summary.decisions import Advice
from reports.summary.prices import Pricing
from reports.summary.summarize import summarize
from reports.summary.warnings import WarningCode
from tests.support.reports import synthetic

NAMES = ("baseline", "good", "large")


@pytest.fixture
def summarized(tmp_path):
    """The summary of a run of three configurations, each faster than the previous; `ends` are statuses of trials."""

    def make(ends, speeds=(0.16, 0.12, 0.08), workers=4, *, exact=False):
        trials = tuple(synthetic.trial(name, lora_rank=8 * index) for index, name in enumerate(NAMES, start=1))
        run = synthetic.record(trials, workers=workers)
        synthetic.write_run(tmp_path, run, speeds=dict(zip(NAMES, speeds, strict=True)), exact=exact)
        for plan in run.planned:
            number = run.workers.index(plan.worker)
            if number < len(ends.get(plan.trial.name, ())):
                synthetic.rewrite(tmp_path, plan, status=ends[plan.trial.name][number], reason="no room")
        return summarize(load(tmp_path), Pricing(usd_per_gpu_hour=2.0, source="a list"))

    return make


OOM, LOST = TrialStatus.OUT_OF_MEMORY, TrialStatus.LOST


@pytest.mark.parametrize(
    ("ends", "speeds", "advice", "row", "tied", "passed_over"),
    [
        ({}, (0.16, 0.12, 0.08), Advice.TRAIN, "large", [], []),
        # One fault of the configuration is enough; a trial stopped from outside does not count.
        ({"large": [OOM]}, (0.16, 0.12, 0.08), Advice.TRAIN, "good", [], ["large"]),
        ({"large": [LOST]}, (0.16, 0.12, 0.08), Advice.TRAIN, "large", [], []),
        ({}, (0.16, 0.08, 0.08), Advice.TRAIN, "good", ["large"], []),
        ({}, (0.16, 0.16, 0.16), Advice.STAY, "baseline", ["good", "large"], []),
        ({"baseline": [OOM]}, (0.16, 0.16, 0.12), Advice.TRAIN, "large", [], []),
    ],
)
def test_a_reliable_configuration_is_chosen_and_none_that_equals_it_is_hidden(
    summarized, ends, speeds, advice, row, tied, passed_over
):
    summary = summarized(ends, speeds, exact=True)
    chosen = summary.choice
    assert (chosen.advice, chosen.row.label, summary.recommended_label) == (advice, row, row)
    assert [each.label for each in chosen.tied] == tied
    assert [each.label for each in chosen.passed_over] == passed_over
    sentence = sentences.recommendation(summary)
    assert all(name in sentence for name in (*tied, *passed_over))


def test_one_process_of_each_is_undecided_and_names_the_command_that_tells(summarized):
    summary = summarized({}, workers=1)
    assert summary.choice.advice is Advice.UNDECIDED
    assert "inv bench --quick --only=baseline,good,large --repeats=2" in sentences.recommendation(summary)
    ratio = summary.rows[1].useful_tokens_ratio
    assert (ratio.low, ratio.verdict, ratio.over) == (None, None, None)
    assert "baseline, good, large" in sentences.one_process_note(summary)
    assert sentences.one_process_note(summarized({}, workers=2)) == ""


USUAL = "plain `inv train`"


@pytest.mark.parametrize(
    ("speeds", "workers", "advice", "row", "beginning", "reference"),
    [
        # seconds of a step of the baseline, of `other`, and of the trial that is what `inv train` does
        ((0.16, 0.12, 0.04), 4, Advice.TRAIN, "train", f"Train with {USUAL}: ", "baseline"),
        ((0.16, 0.04, 0.08), 4, Advice.TRAIN, "other", "Train with other: ", "train"),
        ((0.04, 0.12, 0.08), 4, Advice.TRAIN, "baseline", "Train with baseline: ", "train"),
        ((0.16, 0.0795, 0.08), 4, Advice.NOT_SHOWN, "train", f"Stay with {USUAL}: other gave ", "train"),
        ((0.0840, 0.16, 0.0798), 4, Advice.NOT_SHOWN, "train", f"Stay with {USUAL}: train gave ", "baseline"),
        ((0.16, 0.12, 0.04), 1, Advice.UNDECIDED, "train", "Undecided: train gave ", "baseline"),
    ],
)
def test_a_configuration_is_recommended_over_the_usual_training_only_if_it_is_shown_to_be_faster(
    tmp_path, speeds, workers, advice, row, beginning, reference
):
    trials = (*(synthetic.trial(name) for name in ("baseline", "other")), synthetic.trial("train", is_usual=True))
    run = synthetic.record(trials, workers=workers)
    names = [trial.name for trial in trials]
    synthetic.write_run(tmp_path, run, speeds=dict(zip(names, speeds, strict=True)))
    summary = summarize(load(tmp_path))
    assert (summary.choice.advice, summary.choice.reference.label) == (advice, reference)
    assert summary.recommended_label == row
    sentence = sentences.recommendation(summary)
    assert sentence.startswith(beginning)
    assert f"the useful tokens per second of {reference}" in sentence
    assert summary.train_command == ("inv train" if row == "train" else f"inv train --from={run.run_id}")
    assert benchmark.make(summary).commands == (
        ("Train" if row == "train" else f"Train with {row}", summary.train_command),
    )


@pytest.mark.parametrize(
    ("fields", "advice", "command"),
    [
        ({"profile": "gpu"}, Advice.UNMEASURED, "inv train"),
        ({"profile": "gpu", "recipe": "fast"}, Advice.TRAIN, f"inv train --from={synthetic.RUN_ID}"),
        ({"profile": "tiny"}, Advice.TRAIN, f"inv train --from={synthetic.RUN_ID}"),
    ],
)
def test_a_published_configuration_is_not_recommended_where_the_usual_training_was_not_planned(
    tmp_path, fields, advice, command
):
    trials = tuple(replace(trial, **fields) for trial in synthetic.quick())
    synthetic.write_run(tmp_path, synthetic.record(trials), speeds={"baseline": 0.16, "optimized": 0.04})
    summary = summarize(load(tmp_path))
    assert (summary.choice.advice, summary.train_command) == (advice, command)
    assert summary.choice.row.label == "optimized"
    assert (summary.recommended_label is None) == (advice is Advice.UNMEASURED)
    assert [text for _, text in benchmark.make(summary).commands] == [command]
    assert (USUAL in sentences.recommendation(summary)) == (advice is Advice.UNMEASURED)


def write_losses(summary, losses, folder):
    """Write quality.json with pairs of these losses for each configuration, against 2.0 of the reference."""
    trials = {row.label: row.trial for row in summary.rows}
    checks = [
        LossCheck(
            label=label,
            trial=trials[label],
            reference=reference_of(trials["baseline"], trials[label]),
            run_ids=["pairs"],
            planned_pairs=3,
            pairs=[LossPair(seed=seed, reference=2.0, loss=loss) for seed in range(3)],
        )
        for label, loss in losses.items()
    ]
    QualityRecord(max_increase_percent=0.15, steps=60, checks=checks).write(folder)
    return summarize(load(folder), Pricing(usd_per_gpu_hour=2.0, source="a list"))


def test_the_headline_says_that_the_loss_is_the_same(summarized, tmp_path):
    summary = write_losses(summarized({}), {"large": 2.001}, tmp_path)
    sentence = sentences.recommendation(summary)
    assert "useful tokens per second of baseline at $" in sentence
    assert ", at the same loss (difference +0.0500 %, at most +0.0500 %), on 4 workers" in sentence
    assert summary.recommended_label == "large"


def test_a_faster_configuration_at_another_loss_is_withheld_and_the_next_named(summarized, tmp_path):
    summary = write_losses(summarized({}), {"large": 2.02, "good": 1.99}, tmp_path)
    sentence = sentences.recommendation(summary)
    assert sentence.startswith("Train with good: ")
    assert "at a lower loss (difference -0.5013 %" in sentence
    assert "not shown to be at the same loss: large (difference +0.9950 %" in sentence
    assert summary.train_command is not None
    without = write_losses(summary, {"large": 2.02, "good": 2.02}, tmp_path)
    assert without.recommended_label == "baseline"


def test_a_damaged_record_of_losses_is_rejected_by_name(summarized, tmp_path):
    write_losses(summarized({}), {"large": 2.02}, tmp_path)
    path = tmp_path / QUALITY_FILE
    path.write_text(path.read_text().replace("2.02", "2.00", 1))
    summary = summarize(load(tmp_path))
    assert [rejected.file for rejected in summary.rejected] == [QUALITY_FILE]
    assert "loss" not in sentences.recommendation(summary)


def test_products_in_8_bits_without_a_comparison_are_a_warning(tmp_path):
    trials = (synthetic.trial(), synthetic.trial("int8", recipe="fast", matmul="int8"))
    synthetic.write_run(tmp_path, synthetic.record(trials), speeds={"baseline": 0.16, "int8": 0.08})
    (warning, *_) = summarize(load(tmp_path)).warnings
    assert (warning.code, warning.values["label"]) == (WarningCode.LOSS_UNKNOWN, "int8")
    assert "`inv bench --quality`" in sentences.warning_text(warning)
