"""Loading of a run's folder: each planned trial is a result or missing, each unusable file named; attempts; workers."""

import dataclasses
import os
import shutil
from dataclasses import replace

import pytest

from bench.records.paths import LEDGER_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from reports.read import attempts, measurements
from reports.read.loaded_run import ReportError
from reports.read.run_folder import load
from reports.read.worker_fingerprints import describe_hosts
from reports.summary.prices import PriceError, Pricing
from reports.summary.summarize import summarize
from tests.support.reports import hostile, synthetic
from tests.support.reports.synthetic import plan_of

FIRST = "baseline.worker-1"


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


def link(trial):
    trial.rename(trial.parent.parent / "elsewhere")
    trial.symlink_to(trial.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "rejected", "reason"),
    [
        (shutil.rmtree, "", "collected"),
        (lambda trial: (trial / RESULT_FILE).unlink(), "", "result.json"),
        (link, f"trials/{FIRST}/result.json", "symbolic link"),
        (
            lambda trial: shutil.copy(trial.with_name("baseline.worker-2") / RESULT_FILE, trial / RESULT_FILE),
            *(f"trials/{FIRST}/result.json", f"'baseline.worker-2', but is in the folder of '{FIRST}'"),
        ),
        (lambda trial: trial.rename(trial.with_name("stranger")), "trials/stranger/result.json", "'stranger'"),
        (lambda trial: trial.with_name("leftover").mkdir(), "trials/leftover", "plan"),
    ],
)
def test_a_planned_trial_is_a_result_or_missing_and_every_other_file_rejected(folder, damage, rejected, reason):
    synthetic.write_run(folder)
    damage(folder / "trials" / FIRST)
    run = load(folder)
    assert [file.file for file in run.rejected] == ([rejected] if rejected else [])
    is_missing = rejected != "trials/leftover"
    assert [(each.trial_id, each.configuration, each.worker) for each in run.missing] == [
        *([(FIRST, "baseline", "worker-1")] if is_missing else [])
    ]
    assert reason in (run.rejected or run.missing)[0].reason
    assert len(run.results) == 8 - is_missing


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (("run_id",), "yesterday", f"'yesterday', not to '{synthetic.RUN_ID}'"),
        (("worker",), "worker-4", "'worker-4', but was planned for 'worker-1'"),
        (("trial", "lora_rank"), 64, "lora_rank is 64, planned 16"),
        (("steps", "step_time_sec", 6), 0.0, "steps: step_time_sec is 0.0"),
        (("steps", "samples"), [4], "differ in length: step_time_sec 15, loss 15, samples 1"),
        (("steps", "useful_tokens", 0), 513, "steps: step 1 counts 512 tokens, 513 of them useful"),
        (("steps", "useful_tokens"), [0] * 15, "steps: no step has a useful token"),
    ],
)
def test_a_record_that_must_not_be_averaged_in_is_rejected_although_its_checksum_is_valid(folder, key, value, reason):
    synthetic.write_run(folder)
    path = folder / "trials" / FIRST / RESULT_FILE
    hostile.rewrite_checksummed(path, lambda document: hostile.set_value(document, key, value))
    (rejected,) = load(folder).rejected
    assert reason in rejected.reason


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


def test_equal_gpus_are_one_condition_and_recipes_may_differ_between_configurations(a10):
    _, run = a10
    hosts = describe_hosts(run.record, run.results)
    assert hosts.differences == {}
    assert hosts.device == "NVIDIA A10"
    assert "gpu_uuid" not in hosts.common
    assert hosts.common["memory_total_bytes"].startswith("252")


@pytest.mark.parametrize(
    ("key", "value"),
    [("recipe", "stock"), ("recipe_notes", "triton is not installed"), ("memory_total_bytes", 126_000_000_000)],
)
def test_a_node_that_differs_from_the_others_is_named(a10, key, value):
    _, run = a10
    results = [
        replace(result, fingerprint=result.fingerprint | {key: value})
        if result.worker == "gpu-node-2" and key in result.fingerprint
        else result
        for result in run.results
        if not result.trial.is_usual  # its recipe is another one
    ]
    differences = describe_hosts(run.record, results).differences
    assert list(differences) == [key]
    assert differences[key][str(value)] == ("gpu-node-2",)


def test_the_report_reads_starts_from_the_ledger_that_a_fleet_writes(tmp_path):
    ledger = Ledger.create(tmp_path / LEDGER_FILE, ["a", "b"])
    ledger.record_start("a", 1, "worker-1", "/jobs/a.1")
    ledger.record_retry("a", 1, Outcome(TrialStatus.LOST, reason="the pod was gone; it had started"))
    ledger.record_start("a", 2, "worker-2", "/jobs/a.2")
    ledger.record_end("a", Outcome(TrialStatus.SUCCEEDED), 2)
    assert attempts.ledger_fault(tmp_path, [("a", 1), ("a", 2)]) is None
    assert "1 of 2 results" in (attempts.ledger_fault(tmp_path, [("a", 2), ("b", 1)]) or "")


def test_a_trial_that_was_cancelled_before_it_started_lacks_no_start(tmp_path):
    record = synthetic.write_run(tmp_path, synthetic.record(workers=2))
    ledger = Ledger.create(tmp_path / LEDGER_FILE, [plan.trial_id for plan in record.planned])
    for plan in record.planned[1:]:
        ledger.record_start(plan.trial_id, 1, plan.worker, "/jobs")
    first = tmp_path / "trials" / record.planned[0].trial_id
    result = TrialResult.read(first / RESULT_FILE)
    assert [rejected.file for rejected in load(tmp_path).rejected] == [LEDGER_FILE]
    dataclasses.replace(
        result, status=TrialStatus.CANCELLED, reason_code=ReasonCode.CANCELLED, written_by="collect", started_at=None
    ).write(first)
    assert list(load(tmp_path).rejected) == []


LINES = [
    f'{{"time": "2026-03-01T10:00:0{number}.500+00:00", "event": "started", "trial_id": "{name}", "attempt": 1}}\n'
    for number, name in enumerate("abcd")
]


@pytest.mark.parametrize(
    ("content", "token"),
    [
        ("".join(LINES).encode()[:-30], "1 of 4 lines"),
        ((LINES[0] + '{"event": "started", "trial_id": "b"}\n["started"]\n').encode(), "2 of 3 lines"),
        ("".join(LINES + LINES[:2]).encode(), "2 lines are repeated"),
        ("".join(LINES[:2]).encode() + b"\xff\x00 not JSON\n" + LINES[2].encode(), "1 of 4 lines"),
        (b"", "is empty"),
    ],
)
def test_a_damaged_ledger_is_named_and_read_as_far_as_possible(content, token, tmp_path):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    assert token in attempts.ledger_fault(tmp_path, [("a", 1)])


CASES = dict(hostile.named_cases())


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "run"
    hostile.write(folder)
    return folder


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (("planned",), [], r"run\.json: [^\n]* no trial"),
        (("planned", 0, "trial_id"), "../../elsewhere", r"trial_id: .*'\.\./\.\./elsewhere'"),
        (("planned", 0, "trial_id"), "ddp-2.worker-1", r"run\.json: .*'ddp-2\.worker-1'"),  # twice
    ],
)
def test_an_impossible_plan_is_refused(good, tmp_path, key, value, message):
    path = shutil.copytree(good, tmp_path / "run") / "run.json"
    hostile.rewrite_checksummed(path, lambda document: hostile.set_value(document, key, value))
    with pytest.raises(ReportError, match=message):
        load(path.parent)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", CASES)
def test_a_hostile_file_is_rejected_by_name_and_the_rest_is_reported(good, tmp_path, case):
    folder = shutil.copytree(good, tmp_path / "run")
    CASES[case](folder)
    if case.startswith("run.json"):
        with pytest.raises(ReportError, match=r"^[^\n]*run\.json: [^\n]*$"):
            load(folder)
        return
    run = load(folder)
    summary = summarize(run)
    assert len(run.results) + len(run.missing) == len(run.record.planned)
    assert len(summary.measured_rows) >= 1
    files = [rejected.file for rejected in run.rejected]
    is_lenient = case.startswith("ledger")  # its invalid lines are skipped, and the rest is read
    assert len(files) == 1 or (is_lenient and not files)
    assert all(case.startswith((name, "(")) for name in files)


def test_a_folder_name_that_is_not_utf8_is_shown_with_escapes(good, tmp_path):
    folder = shutil.copytree(good, tmp_path / "run")
    os.mkdir(os.fsencode(folder / "trials") + b"/caf\xe9")
    (rejected,) = load(folder).rejected
    assert rejected.file.encode() == b"trials/caf\\xe9"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: &a [x, x]\n" + "\n".join(f"b{n}: &b{n} [*a, *a]" for n in range(30)), r"prices\.yaml: a: unknown field"),
        ("[" * 1000, "nested too"),
        ("# " + "x" * 1_200_000, "1,000,000 bytes"),
    ],
)
def test_prices_that_would_fill_the_memory_are_refused(good, tmp_path, content, message):
    table = tmp_path / "prices.yaml"
    table.write_text(content)
    with pytest.raises(PriceError, match=message):
        summarize(load(good), Pricing(table=table))
