"""`inv runs`: lists every run's folder, also a damaged one."""

import dataclasses
import json
import os
from types import SimpleNamespace

import pytest
from invoke.context import Context

from bench.records.atomic_files import sha256_of
from bench.records.paths import LEDGER_FILE, SUMS_FILE
from bench.records.run import RunRecord
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.cli.lock import acquire_lock
from tasks.commands import runs
from tasks.reports import runs as listing
from tests.support.reports import synthetic, training_run


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr("tasks.reports.runs.load", lambda _: SimpleNamespace(results_folder=folder))
    return folder


def planned(results, name, *statuses, created="2026-03-01T10:15:00+00:00"):
    """Write a run whose first trials have these statuses."""
    folder = results / name
    folder.mkdir()
    record = synthetic.record(run_id=name, workers=1, created_at=created)
    record.write(folder)
    ledger = Ledger.create(folder / LEDGER_FILE, [plan.trial_id for plan in record.planned])
    for plan, status in zip(record.planned, statuses, strict=False):
        ledger.record_start(plan.trial_id, 1, "worker-1", "/jobs")
        ledger.record_end(plan.trial_id, Outcome(status), 1)
    return folder


def test_the_newest_run_is_first_with_its_state_and_recommendation(results, capsys):
    planned(results, "first", TrialStatus.SUCCEEDED, TrialStatus.FAILED)
    headline = "Train with [red]x[/red].\n\x1b[31m" + " More words." * 20  # stays on its line, and cuts no id
    second = planned(results, "20260302-101500-quick", TrialStatus.SUCCEEDED, created="2026-03-02T10:15:00+00:00")
    (second / "report").mkdir()
    (second / "report" / "summary.json").write_text(json.dumps({"recommendation": headline}))
    (results / "latest").symlink_to(second.name)
    runs(Context())
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = [second.name, "1", "1", "of", "2", "succeeded"]
    assert (lines[1][:6], lines[1][7:]) == (cells, ["kB", "abandoned"])
    assert lines[2] == headline.replace("\n", "\\n").replace("\x1b", "\\x1b").split()
    assert lines[3][:8] == ["first", "1", "1", "of", "2", "succeeded", "(1", "FAILED)"]
    assert len(lines) == 4


def test_programs_get_one_object_without_the_recommendation_of_a_report_before_the_last_trials(results, capsys):
    folder = planned(results, "one", TrialStatus.SUCCEEDED, TrialStatus.SUCCEEDED)
    (folder / "report").mkdir()
    summary = {"recommendation": "Stay.", "counts": {"planned": 2, "missing": 2}}
    (folder / "report" / "summary.json").write_text(json.dumps(summary))
    runs(Context(), json=True)
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["run_id"], run["state"], run["ends"], run["headline"]) == ("one", "complete", {"SUCCEEDED": 2}, None)
    assert run["collected"] is False


def test_a_run_that_has_ended_is_shown_as_complete_once_it_is_collected(results, capsys):
    planned(results, "none", *[TrialStatus.SUCCEEDED] * 2)
    folder, record = planned(results, "here", *[TrialStatus.SUCCEEDED] * 2), synthetic.record(run_id="here", workers=1)
    sums = [
        f"{sha256_of(folder / LEDGER_FILE)}  {LEDGER_FILE}",
        *(f"{'0' * 64}  trials/{it.trial_id}/x" for it in record.planned),
    ]
    (folder / SUMS_FILE).write_bytes("".join(f"{line}\n" for line in sums).encode())
    runs(Context())
    states = {line.split()[0]: line.split("kB")[-1].strip() for line in capsys.readouterr().out.splitlines()[1:]}
    assert states == {"here": "complete", "none": "not collected"}


def test_unreadable_files_are_reported_without_blocking(results):
    broken = planned(results, "broken")
    (broken / "run.json").write_text("{")
    piped = planned(results, "piped")
    (piped / LEDGER_FILE).unlink()
    os.mkfifo(piped / LEDGER_FILE)
    planned(results, "whole")
    plan = planned(results, "of-1") / "run.json"
    plan.write_text(plan.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    states = {run.run_id: run.state for run in listing.find_runs(results)}
    assert states["broken"].startswith("unreadable: run.json: ")
    assert states["piped"].startswith("unreadable: ledger.jsonl: ")
    assert states["of-1"].startswith("unreadable: run.json: written by qlora-fleet 1.x; ")
    assert states["whole"] == "abandoned"


def test_a_run_that_a_command_follows_is_running(results):
    for name in ("left", "followed"):
        planned(results, name)
    with acquire_lock(results, "bench --resume (run followed)"):
        states = {run.run_id: run.state for run in listing.find_runs(results)}
    assert states == {"left": "abandoned", "followed": "running"}
    assert {run.state for run in listing.find_runs(results)} == {"abandoned"}


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (training_run.SCORED, "d.jsonl: score 0 \u2192 75 %"),
        (training_run.RECORD, "d.jsonl: held-out loss 2.00 \u2192 1.50"),
        (dataclasses.replace(training_run.RECORD, evaluations=[]), "d.jsonl"),
        (None, "d.jsonl"),
    ],
)
def test_a_training_has_its_data_and_its_score_or_loss(results, record, expected):
    folder = training_run.write_run(results / "r", record or training_run.RECORD)
    if record is not None:
        record.write(folder)
    (run,) = listing.find_runs(results)
    assert run.headline == expected


@pytest.mark.parametrize(
    ("kind", "is_active", "state"),
    [("local", False, "abandoned"), ("local", True, "running"), ("pods", False, "in pods")],
)
def test_a_training_that_no_command_follows_may_go_on(results, kind, is_active, state, monkeypatch):
    monkeypatch.setattr(listing, "is_job_active", lambda _: is_active)
    folder = training_run.write_run(results / "r")
    record = RunRecord.read(folder / "run.json")
    dataclasses.replace(record, fleet_kind=kind).write(folder)
    (folder / LEDGER_FILE).unlink(missing_ok=True)
    Ledger.create(folder / LEDGER_FILE, ["train"])
    assert [run.state for run in listing.find_runs(results)] == [state]


@pytest.mark.usefixtures("results")
def test_without_a_run_it_says_what_to_type(capsys):
    runs(Context())
    assert "; type `inv bench --quick`" in capsys.readouterr().out


def test_a_cancelled_run_is_not_complete_and_a_linked_folder_is_listed_once(results):
    planned(results, "cancelled", TrialStatus.SUCCEEDED, TrialStatus.CANCELLED)
    (results / "a-link").symlink_to("cancelled")
    elsewhere = results.parent / "elsewhere"
    planned(results, "moved", TrialStatus.SUCCEEDED, TrialStatus.FAILED).rename(elsewhere)
    (results / "moved").symlink_to(elsewhere)
    assert {run.run_id: run.state for run in listing.find_runs(results)} == {
        "cancelled": "cancelled",
        "moved": "complete",
    }
