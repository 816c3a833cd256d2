"""Loading a run's folder: every planned trial is among the results or the missing, every unusable file is named."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.paths import RESULT_FILE, RUN_FILE
from bench.records.result import Steps, TrialResult, TrialStatus
from reports.read.load import load
from reports.read.run import ReportError
from tests.support.reports import synthetic
from tests.support.reports.synthetic import plan_of

FIRST = "baseline.worker-1"


def the_rejected(folder: Path) -> tuple[str, str]:
    (one,) = load(folder).rejected
    return one.file, one.reason


def test_a_whole_run_is_one_row_per_trial_in_the_plans_order_and_one_per_step(folder):
    planned = synthetic.write_run(folder).planned
    run = load(folder)
    assert run.trials["trial_id"].tolist() == [plan.trial_id for plan in planned]
    assert (len(run.trials), len(run.results), run.missing, run.rejected) == (8, 8, (), ())
    assert len(run.steps) == 8 * (3 + 15)
    one = run.steps[run.steps["trial_id"] == FIRST]
    assert one["step"].tolist() == list(range(1, 19))
    assert one["phase"].tolist() == ["warmup"] * 3 + ["measure"] * 15


def test_a_folder_without_run_json_is_an_error_that_asks_whether_it_is_a_run(tmp_path):
    with pytest.raises(ReportError, match=r"run\.json: cannot be read: No such file.*is this a run's folder"):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": "trial_result"}', b"\xff\xfe"])
def test_an_unreadable_run_json_is_an_error_that_names_it(folder, content):
    synthetic.write_run(folder)
    (folder / RUN_FILE).write_bytes(content)
    with pytest.raises(ReportError, match=r"run\.json"):
        load(folder)


def test_a_changed_plan_is_refused(folder):
    synthetic.write_run(folder)
    text = (folder / RUN_FILE).read_text()
    (folder / RUN_FILE).write_text(text.replace('"quick"', '"quicker"', 1))
    with pytest.raises(ReportError, match="sha256 does not match"):
        load(folder)


@pytest.mark.parametrize(
    ("take_away", "reason"),
    [
        (shutil.rmtree, "nothing was collected"),
        (lambda trial: (trial / RESULT_FILE).unlink(), "its folder holds no result.json"),
    ],
)
def test_a_planned_trial_without_a_folder_or_a_result_is_missing(folder, take_away, reason):
    synthetic.write_run(folder)
    take_away(folder / "trials" / FIRST)
    run = load(folder)
    (missing,) = run.missing
    assert (missing.trial_id, missing.configuration, missing.worker) == (FIRST, "baseline", "worker-1")
    assert missing.reason == reason
    assert len(run.results) == 7


def test_a_run_with_no_trials_folder_misses_everything(folder):
    folder.mkdir(parents=True)
    synthetic.record().write(folder)
    run = load(folder)
    assert len(run.missing) == 8
    assert run.trials.empty
    assert run.steps.empty


def test_a_truncated_result_is_rejected_by_name_and_its_trial_is_missing(folder):
    synthetic.write_run(folder)
    path = folder / "trials" / FIRST / RESULT_FILE
    path.write_bytes(path.read_bytes()[:-200])
    run = load(folder)
    assert [(one.file, one.reason) for one in run.rejected] == [
        (f"trials/{FIRST}/result.json", "not complete JSON; the file is truncated or damaged")
    ]
    assert [(one.trial_id, one.reason) for one in run.missing] == [(FIRST, "its result was rejected")]


@pytest.mark.parametrize(
    ("text", "other", "reason"),
    [
        ('"wall_time_sec": 6.5', '"wall_time_sec": 5.5', "sha256 does not match"),
        ('"wall_time_sec": 6.5', '"wall_time_sec": NaN', "not complete JSON; the file is truncated or damaged"),
        ('"schema_version": 1', '"schema_version": 99', "schema version 99; this version reads 1"),
    ],
)
def test_a_record_that_was_changed_is_rejected_and_does_not_stop_the_report(folder, text, other, reason):
    synthetic.write_run(folder)
    path = folder / "trials" / FIRST / RESULT_FILE
    path.write_text(path.read_text().replace(text, other, 1))
    assert reason in the_rejected(folder)[1]


def with_steps(**changes):
    """A record whose steps are changed: each of `changes` makes a list from the steps."""
    return lambda one: replace(one, steps=replace(one.steps, **{name: of(one.steps) for name, of in changes.items()}))


def with_time(number, seconds):
    return with_steps(step_time_sec=lambda s: [*s.step_time_sec[: number - 1], seconds, *s.step_time_sec[number:]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: replace(one, run_id="yesterday"), f"belongs to run 'yesterday', not to '{synthetic.RUN_ID}'"),
        (lambda one: replace(one, worker="worker-4"), "ran on 'worker-4', but the plan pins it to 'worker-1'"),
        (
            lambda one: replace(one, trial=replace(one.trial, lora_rank=64)),
            "measured another configuration than the plan's: lora_rank is 64, planned 16",
        ),
        *(
            (with_time(number, seconds), f"steps: step {number} took {seconds} s; a step takes more than 0 s")
            for number in (1, 7)
            for seconds in (0.0, -0.1)
        ),
        (with_steps(samples=lambda s: s.samples[:-1]), "differ in length: step_time_sec 15, loss 15, samples 14"),
        (
            with_steps(useful_tokens=lambda s: [token + 1 for token in s.tokens]),
            "steps: step 1 counts 4 samples, 512 tokens, 513 useful tokens",
        ),
        (
            with_steps(useful_tokens=lambda s: [0] * len(s.tokens)),
            "steps: no step has a useful token; all of them were padding",
        ),
        (lambda one: replace(one, steps=Steps(), metrics=None), "says SUCCEEDED but holds no measured step"),
    ],
)
def test_a_sound_record_that_may_not_be_averaged_in_is_rejected_with_its_reason(folder, change, reason):
    run = synthetic.write_run(folder)
    synthetic.write_result(folder, change(synthetic.result(plan_of(run, FIRST))))
    assert reason in the_rejected(folder)[1]


def test_a_result_in_another_trials_folder_is_rejected(folder):
    synthetic.write_run(folder)
    shutil.copy(folder / "trials/baseline.worker-2/result.json", folder / "trials" / FIRST / "result.json")
    file, reason = the_rejected(folder)
    assert file == f"trials/{FIRST}/result.json"
    assert reason == f"holds trial 'baseline.worker-2', but stands in the folder of '{FIRST}'"


def test_a_trial_that_is_not_in_the_plan_is_rejected(folder):
    run = synthetic.write_run(folder)
    stranger = replace(plan_of(run, FIRST), trial_id="stranger")
    synthetic.rewrite(folder, stranger)
    assert the_rejected(folder) == ("trials/stranger/result.json", "trial 'stranger' is not in this run's plan")


def test_an_empty_folder_of_no_planned_trial_is_named_too(folder):
    synthetic.write_run(folder)
    (folder / "trials" / "leftover").mkdir()
    assert the_rejected(folder) == ("trials/leftover", "not a trial of this run's plan")


def test_a_failed_trial_is_a_result_not_a_rejection(folder):
    run = synthetic.write_run(folder)
    synthetic.rewrite(folder, plan_of(run, FIRST), status=TrialStatus.OUT_OF_MEMORY, reason="no memory", steps=4)
    loaded = load(folder)
    row = loaded.trials.set_index("trial_id").loc[FIRST]
    assert (loaded.rejected, loaded.missing) == ((), ())
    assert (row["status"], row["reason"], row["n_steps"]) == ("OUT_OF_MEMORY", "no memory", 4)


def test_what_collect_wrote_for_a_lost_trial_is_read(folder):
    run = synthetic.write_run(folder)
    known = {"trial_id": FIRST, "trial": plan_of(run, FIRST).trial, "worker": "worker-1", "run_id": run.run_id}
    lost = TrialResult(**known, status=TrialStatus.LOST, reason="no sign of life for 60 s", written_by="collect")
    synthetic.write_result(folder, lost)
    row = load(folder).trials.set_index("trial_id").loc[FIRST]
    assert (row["status"], row["written_by"], row["n_steps"]) == ("LOST", "collect", 0)


def test_sharded_trials_keep_the_worker_that_took_them(folder):
    synthetic.write_run(folder, synthetic.record(spread="shard"))
    run = load(folder)
    assert run.trials["trial_id"].tolist() == ["baseline", "optimized"]
    assert run.trials["worker"].tolist() == ["worker-1", "worker-2"]


def test_one_name_over_two_configurations_becomes_two_labels(folder):
    trials = (synthetic.trial("same", lora_rank=8), synthetic.trial("same", lora_rank=16))
    plans = [
        replace(plan, trial_id=f"same-{number}")
        for number, plan in enumerate(synthetic.planned(trials, ["worker-1"], "shard"))
    ]
    synthetic.write_run(folder, synthetic.record(trials, planned=plans))
    labels = {configuration.label for configuration in load(folder).configurations}
    assert len(labels) == 2
    assert all(label.startswith("same (") for label in labels)


def a_share_of_peak(one):
    return replace(one, measurements=[synthetic.measurement("mfu_percent", 31.0, share=31.0)])


def test_the_share_of_peak_of_profile_tiny_is_not_shown_and_says_why(folder):
    run = synthetic.write_run(folder)
    synthetic.write_result(folder, a_share_of_peak(synthetic.result(plan_of(run, FIRST))))
    loaded = load(folder)
    (row,) = loaded.measurements[loaded.measurements["name"] == "mfu_percent"].to_dict(orient="records")
    assert row["value"] != row["value"]  # NaN
    assert row["note"].startswith("not shown for profile tiny")
    assert TrialResult.read(folder / "trials" / FIRST / RESULT_FILE).measurements[0].value == 31.0


@pytest.mark.parametrize(("threads", "shown"), [(1, True), (4, False)])
def test_the_share_of_peak_is_not_shown_where_workers_share_too_few_cores(folder, threads, shown):
    run = synthetic.record(profile="gpu")  # 4 workers on one machine of 8 cores
    folder.mkdir(parents=True)
    run.write(folder)
    told = synthetic.fingerprint(torch_threads=threads)
    synthetic.write_result(folder, a_share_of_peak(synthetic.result(plan_of(run, FIRST), fingerprint=told)))
    assert (load(folder).results[0].measurements[0].value == 31.0) is shown


def test_a_run_of_one_trial_one_step_and_one_node_is_loaded(folder):
    one = synthetic.trial(measured_steps=1, warmup_steps=0)
    synthetic.write_run(folder, synthetic.record((one,), workers=1))
    run = load(folder)
    assert (len(run.trials), len(run.steps), run.missing, run.rejected) == (1, 1, (), ())
