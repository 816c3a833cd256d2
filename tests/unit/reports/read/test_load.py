"""Loading of a run's folder: each planned trial is a result or missing, each unusable file is named."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.paths import RESULT_FILE
from bench.records.result import Steps, TrialResult
from bench.records.status import TrialStatus
from reports.read import measurements
from reports.read.loaded_run import ReportError
from reports.read.run_folder import load
from tests.support.reports import synthetic
from tests.support.reports.synthetic import plan_of

FIRST = "baseline.worker-1"


def only_rejected(folder: Path) -> tuple[str, str]:
    (rejected,) = load(folder).rejected
    return rejected.file, rejected.reason


def test_a_whole_run_is_one_row_per_trial_in_the_plans_order_and_one_per_step(folder):
    planned = synthetic.write_run(folder).planned
    run = load(folder)
    assert run.trials["trial_id"].tolist() == [plan.trial_id for plan in planned]
    assert (len(run.trials), len(run.results), run.missing, run.rejected) == (8, 8, (), ())
    assert len(run.steps) == 8 * (3 + 15)
    steps = run.steps[run.steps["trial_id"] == FIRST]
    assert steps["step"].tolist() == list(range(1, 19))
    assert steps["phase"].tolist() == ["warmup"] * 3 + ["measure"] * 15


def test_a_folder_without_run_json_is_an_error_that_names_the_expected_folder(tmp_path):
    with pytest.raises(ReportError, match=r"run\.json: .*No such file.*results/<run-id>"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("remove", "reason"),
    [
        (shutil.rmtree, "collected"),
        (lambda trial: (trial / RESULT_FILE).unlink(), "result.json"),
    ],
)
def test_a_planned_trial_without_a_folder_or_a_result_is_missing(folder, remove, reason):
    synthetic.write_run(folder)
    remove(folder / "trials" / FIRST)
    run = load(folder)
    (missing,) = run.missing
    assert (missing.trial_id, missing.configuration, missing.worker) == (FIRST, "baseline", "worker-1")
    assert reason in missing.reason
    assert len(run.results) == 7


def test_a_run_with_no_trials_folder_misses_everything(folder):
    folder.mkdir(parents=True)
    synthetic.record().write(folder)
    run = load(folder)
    assert (len(run.missing), run.trials.empty, run.steps.empty) == (8, True, True)


def with_steps(**changes):
    """Return a function that changes a result's steps: each of `changes` computes a list from them."""
    return lambda result: replace(
        result, steps=replace(result.steps, **{name: of(result.steps) for name, of in changes.items()})
    )


def with_time(number, seconds):
    return with_steps(step_time_sec=lambda s: [*s.step_time_sec[: number - 1], seconds, *s.step_time_sec[number:]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda result: replace(result, run_id="yesterday"), f"'yesterday', not to '{synthetic.RUN_ID}'"),
        (lambda result: replace(result, worker="worker-4"), "'worker-4', but was planned for 'worker-1'"),
        (
            lambda result: replace(result, trial=replace(result.trial, lora_rank=64)),
            "lora_rank is 64, planned 16",
        ),
        *(
            (with_time(number, seconds), f"steps: step_time_sec is {seconds}")
            for number in (1, 7)
            for seconds in (0.0, -0.1)
        ),
        (with_steps(samples=lambda s: s.samples[:-1]), "differ in length: step_time_sec 15, loss 15, samples 14"),
        (
            with_steps(useful_tokens=lambda s: [token + 1 for token in s.tokens]),
            "steps: step 1 counts 512 tokens, 513 of them useful",
        ),
        (
            with_steps(useful_tokens=lambda s: [0] * len(s.tokens)),
            "steps: no step has a useful token",
        ),
        (lambda result: replace(result, steps=Steps(), metrics=None), "no measured step"),
    ],
)
def test_a_record_that_must_not_be_averaged_in_is_rejected_although_its_checksum_is_valid(folder, change, reason):
    run = synthetic.write_run(folder)
    synthetic.write_result(folder, change(synthetic.result(plan_of(run, FIRST))))
    assert reason in only_rejected(folder)[1]


def test_a_result_in_another_trials_folder_is_rejected(folder):
    synthetic.write_run(folder)
    shutil.copy(folder / "trials/baseline.worker-2/result.json", folder / "trials" / FIRST / "result.json")
    file, reason = only_rejected(folder)
    assert file == f"trials/{FIRST}/result.json"
    assert "'baseline.worker-2'" in reason
    assert f"'{FIRST}'" in reason


@pytest.mark.parametrize("name", ["stranger", "leftover"])
def test_a_trial_that_is_not_in_the_plan_is_rejected_even_without_a_result(folder, name):
    run = synthetic.write_run(folder)
    if name == "stranger":
        synthetic.rewrite(folder, replace(plan_of(run, FIRST), trial_id=name))
    else:
        (folder / "trials" / name).mkdir()
    file, reason = only_rejected(folder)
    assert file.startswith(f"trials/{name}")
    assert "plan" in reason


@pytest.mark.parametrize(
    "changes", [{"status": TrialStatus.OUT_OF_MEMORY}, {"status": TrialStatus.LOST, "written_by": "collect"}]
)
def test_a_failed_trial_is_a_result_not_a_rejection(folder, changes):
    run = synthetic.write_run(folder)
    synthetic.rewrite(folder, plan_of(run, FIRST), reason="no memory", steps=4, **changes)
    loaded = load(folder)
    row = loaded.trials.set_index("trial_id").loc[FIRST]
    assert (loaded.rejected, loaded.missing) == ((), ())
    assert (row["status"], row["reason"], row["n_steps"]) == (changes["status"], "no memory", 4)
    assert row["written_by"] == changes.get("written_by", "bench")


def test_one_name_over_two_configurations_becomes_two_labels(folder):
    trials = (synthetic.trial("same", lora_rank=8), synthetic.trial("same", lora_rank=16))
    plans = [
        replace(plan, trial_id=f"same-{number}") for number, plan in enumerate(synthetic.planned(trials, ["worker-1"]))
    ]
    synthetic.write_run(folder, synthetic.record(trials, planned=plans))
    labels = {configuration.label for configuration in load(folder).configurations}
    assert len(labels) == 2
    assert all(label.startswith("same (") for label in labels)


def with_share_of_peak(result):
    return replace(result, measurements=[synthetic.measurement("mfu_percent", 31.0, share=31.0)])


def test_the_share_of_peak_of_profile_tiny_is_replaced_by_a_note(folder):
    run = synthetic.write_run(folder)
    synthetic.write_result(folder, with_share_of_peak(synthetic.result(plan_of(run, FIRST))))
    loaded = load(folder)
    (row,) = (row for row in measurements.frame(loaded).to_dict(orient="records") if row["name"] == "mfu_percent")
    assert row["value"] != row["value"]  # NaN
    assert "profile tiny" in row["note"]
    assert TrialResult.read(folder / "trials" / FIRST / RESULT_FILE).measurements[0].value == 31.0


@pytest.mark.parametrize(("threads", "is_shown"), [(1, True), (4, False)])
def test_the_share_of_peak_is_not_shown_where_workers_share_too_few_cores(folder, threads, is_shown):
    run = synthetic.record(profile="gpu")  # 4 workers on one machine of 8 cores
    folder.mkdir(parents=True)
    run.write(folder)
    fingerprint = synthetic.fingerprint(torch_threads=threads)
    synthetic.write_result(folder, with_share_of_peak(synthetic.result(plan_of(run, FIRST), fingerprint=fingerprint)))
    assert (load(folder).results[0].measurements[0].value == 31.0) is is_shown
