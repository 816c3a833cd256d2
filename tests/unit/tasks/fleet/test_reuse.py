"""Results that stand in for planned trials: which, why not, and their marks in plan, record and report."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from bench.records.paths import ENVIRONMENT_FILE, LEDGER_FILE, RESULT_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from remote.fleet.ledger import Ledger
from reports.comparison.comparability import NAMES
from reports.comparison.compare import compare
from reports.history.series import read_history
from reports.read.load import load as load_run
from reports.summary.summarize import summarize
from tasks.fleet import reuse
from tasks.settings.load import Settings, load
from tests.support.cases import Case, load_cases
from tests.support.reports import synthetic

FACTS: dict[str, Any] = {
    "python": "3.12.1",
    "cuda": "13.0",
    "cpu_model": "EPYC",
    "cpu_allowed_cores": 8,
    "code_sha256": "c",
    "image_digest": "sha256:1",
    "lock_digest": "sha256:1",
    "packages": {"torch": "2.11", "numpy": "2.0", "rich": "15"},
    "variables": {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "0"},
    "gpus": [{"uuid": "GPU-1", "name": "NVIDIA A10", "driver": "550.54", "power_cap_watts": 150}],
}
INPUTS = {"model": {"sha256": "m"}, "data": {"sha256": "d"}}
FINGERPRINT = {
    **{name: FACTS[name] for name in ("python", "cuda", "cpu_model", "cpu_allowed_cores")},
    "model_sha256": "m",
    "data_sha256": "d",
    "gpu_uuid": "GPU-1",
    "gpu_name": "NVIDIA A10",
    "device": "cuda",
}
ENVIRONMENT = {**FACTS, "kind": "environment", "imported": ["torch", "numpy"]}
WORKERS = ["worker-0", "worker-1"]


@pytest.fixture
def settings(context: Callable[..., Context]) -> Settings:
    settings = load(context())
    settings.results_folder.mkdir(parents=True, exist_ok=True)
    return settings


def write_run(settings: Settings, name: str, **changed: Any) -> RunRecord:
    """Write a collected run of two configurations on two workers with the facts above."""
    run = synthetic.record(workers=WORKERS, run_id=name)
    fields = {"run_id": name, "fingerprint": FINGERPRINT, **changed}
    synthetic.write_results(
        settings.results_folder / name, run, [synthetic.result(plan, **fields) for plan in run.planned]
    )
    for plan in run.planned:
        path = settings.results_folder / name / TRIALS_FOLDER / plan.trial_id / ENVIRONMENT_FILE
        path.write_text(json.dumps(ENVIRONMENT))
    return run


def find(settings: Settings, run: RunRecord, **changed: Any) -> reuse.Reuse:
    return reuse.find_reusable(settings, run.planned, dict.fromkeys(WORKERS, FACTS | changed), INPUTS)


@pytest.mark.parametrize("case", load_cases(__file__, "reuse.yaml"))
def test_a_changed_fact_refuses_and_is_named(case: Case) -> None:
    plan = synthetic.record(workers=WORKERS).planned[0]
    now = {**FACTS, "model_sha256": "m", "data_sha256": "d", **case["input"]}
    reason = reuse.unusable_reason(synthetic.result(plan, fingerprint=FINGERPRINT), ENVIRONMENT, now)
    assert (None if reason is None else reason.partition(":")[0]) == case["expected"]


def test_a_reused_result_is_marked_everywhere_and_never_compared_with_itself(settings: Settings) -> None:
    write_run(settings, "1-quick")
    run = synthetic.record(workers=WORKERS, run_id="2-quick")
    reusable = find(settings, run)
    assert reusable.provenance() == {plan.trial_id: f"1-quick/{plan.trial_id}" for plan in run.planned}
    assert next(reusable.lines()) == "reused: 4 of 4 trials"

    folder = settings.results_folder / "2-quick"
    folder.mkdir()
    run.write(folder)
    ledger = Ledger.create(folder / LEDGER_FILE, [plan.trial_id for plan in run.planned])
    reuse.write_reused(reusable, run, folder, ledger)
    assert not ledger.open_trials()
    assert not any(ledger.needs_work(plan.trial_id) for plan in run.planned)
    result = TrialResult.read(folder / TRIALS_FOLDER / run.planned[0].trial_id / RESULT_FILE)
    assert (result.run_id, result.reused_from) == ("2-quick", f"1-quick/{run.planned[0].trial_id}")

    loaded = load_run(folder)
    assert not loaded.rejected
    summary = summarize(loaded)
    assert any("4 of 1-quick" in caution for caution in summary.cautions)
    assert summary.billed is None
    compared = compare([load_run(settings.results_folder / "1-quick"), loaded], allow=NAMES)
    assert {(row.verdict, row.before) for row in compared.rows} == {("unknown", None)}
    assert [len(series.points) for series in read_history(settings.results_folder).series] == [1, 1]
    assert find(settings, run).provenance() == reusable.provenance(), "a reused result does not stand in again"


def test_each_result_stands_in_once_and_the_newest_first(settings: Settings) -> None:
    write_run(settings, "1-quick")
    write_run(settings, "2-quick")
    run = synthetic.record(workers=WORKERS)
    twice = [dataclasses.replace(plan, trial_id=f"{plan.trial_id}.r{n}") for n in (1, 2, 3) for plan in run.planned]
    reusable = find(settings, dataclasses.replace(run, planned=twice))
    sources = list(reusable.provenance().values())
    assert len(set(sources)) == len(sources) == 8
    assert all(source.startswith("2-quick") for source in sources[:4])
    assert set(reusable.reasons.values()) == {reuse.NO_RESULT}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"status": TrialStatus.OUT_OF_MEMORY, "reason": "no room"}, "the earlier result is OUT_OF_MEMORY"),
        ({"flags": ["throttled"]}, "the earlier result is flagged: throttled"),
        ({"worker": "worker-9"}, reuse.NO_RESULT),
        ({"reused_from": "0-quick/x"}, reuse.NO_RESULT),
        ({"run_id": "another"}, reuse.NO_RESULT),
    ],
)
def test_a_result_that_is_no_measurement_of_this_worker_is_not_reused(
    settings: Settings, changed: dict[str, Any], expected: str
) -> None:
    run = write_run(settings, "1-quick", **changed)
    if "worker" in changed:
        for plan in run.planned:
            moved = synthetic.result(plan, run_id="1-quick", fingerprint=FINGERPRINT)
            synthetic.write_result(settings.results_folder / "1-quick", dataclasses.replace(moved, **changed))
    reusable = find(settings, run)
    assert not reusable.results
    assert set(reusable.reasons.values()) == {expected}


def test_a_changed_seal_and_a_missing_environment_are_not_reused(settings: Settings) -> None:
    run = write_run(settings, "1-quick")
    folders = [settings.results_folder / "1-quick" / TRIALS_FOLDER / plan.trial_id for plan in run.planned]
    change_text(folders[0] / RESULT_FILE, '"SUCCEEDED"', '"FAILED"')
    (folders[1] / ENVIRONMENT_FILE).unlink()
    (folders[2] / ENVIRONMENT_FILE).write_text("{")
    reusable = find(settings, run)
    assert list(reusable.results) == [run.planned[3].trial_id]
    reasons = [reusable.reasons[plan.trial_id] for plan in run.planned[:3]]
    assert reasons[0] == reuse.NO_RESULT
    assert all("environment.json" in reason for reason in reasons[1:])


def change_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
