"""`inv runs --delete` and `--keep`: only runs that are complete, collected and not needed are deleted."""

import dataclasses
import fcntl
import json
import os
import shutil
from types import SimpleNamespace

import pytest
from invoke.context import Context

from bench.records.atomic_files import sha256_of
from bench.records.nodes import NodesRecord, NodesState
from bench.records.paths import LEDGER_FILE, SUMS_FILE
from bench.records.run import RunRecord
from bench.records.status import ExitCode, Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.cli import lock
from tasks.cli.lock import acquire_lock
from tasks.commands import runs
from tasks.errors import TaskFailed, UsageError
from tasks.fleet.pending_results import DISCARDED_FILE
from tasks.fleet.run_store import find_run
from tasks.reports.runs import find_runs
from tests.support.reports import synthetic


@pytest.fixture
def results(tmp_path, monkeypatch):
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr("tasks.reports.runs.load", lambda _: SimpleNamespace(results_folder=folder))
    return folder


def make_run(results, day, *, ended=True, collected=True, **changes):
    """Write a run of one worker; `day` orders the runs."""
    name = f"2026030{day}-101500-quick"
    folder = results / name
    folder.mkdir()
    record = synthetic.record(run_id=name, workers=1, created_at=f"2026-03-0{day}T10:15:00+00:00")
    record = dataclasses.replace(record, **changes)
    record.write(folder)
    trial_ids = [planned.trial_id for planned in record.planned]
    ledger = Ledger.create(folder / LEDGER_FILE, trial_ids)
    for trial_id in trial_ids[: None if ended else 1]:
        ledger.record_start(trial_id, 1, "worker-1", "/jobs")
        ledger.record_end(trial_id, Outcome(TrialStatus.SUCCEEDED), 1)
    if collected:
        rows = [f"{sha256_of(folder / LEDGER_FILE)}  {LEDGER_FILE}", *(f"0  trials/{name}/x" for name in trial_ids)]
        (folder / SUMS_FILE).write_text("".join(f"{row}\n" for row in rows))
    return name


def names_in(results):
    return sorted(path.name for path in results.iterdir() if path.is_dir() and not path.is_symlink())


def test_the_newest_runs_stay_and_latest_follows(results, capsys):
    oldest, second, newest = (make_run(results, day) for day in (1, 2, 3))
    (results / "latest").symlink_to(newest)
    runs(Context(), keep="2", yes=True)
    assert names_in(results) == [second, newest]
    assert oldest in capsys.readouterr().out
    runs(Context(), delete=[newest], yes=True)
    assert (names_in(results), (results / "latest").readlink().name) == ([second], second)
    runs(Context(), delete=[second], yes=True)
    assert not (results / "latest").is_symlink()


def test_a_link_inside_a_run_is_removed_and_its_target_stays(results, tmp_path):
    run, outside = make_run(results, 1), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x" * 5000)
    (results / run / "link").symlink_to(outside)
    (info,) = find_runs(results)
    assert 0 < info.byte_count < 5000
    runs(Context(), delete=[run], yes=True)
    assert (names_in(results), (outside / "file").stat().st_size) == ([], 5000)


def nodes_record(run, state):
    return NodesRecord(run_id=run, state=state, provider="oci", cluster={}, ended_at="2999-01-01T00:00:00+00:00")


def held_back(results, case):
    """Make a run that must not be deleted."""
    if case == "unfinished":
        return make_run(results, 1, ended=False)
    if case == "uncollected":
        return make_run(results, 1, collected=False)
    run = make_run(results, 1, ended=case != "discarded and unfinished")
    if case == "discarded and unfinished":
        (results / run / DISCARDED_FILE).touch()
    elif case == "damaged":
        (results / run / "run.json").write_text("{")
    elif case == "nodes not given back":
        nodes_record(run, NodesState.REQUESTED).write(results / run)
    elif case == "reused":
        make_run(results, 2, ended=False, provenance={"reused": {"baseline": f"{run}/baseline"}})
    elif case == "named by a run that is named":
        second = make_run(results, 2, provenance={"reused": {"baseline": f"{run}/baseline"}})
        make_run(results, 3, ended=False, settings={"train": {"init_adapter": second}})
    elif case == "a path in a damaged plan":
        other = make_run(results, 2, ended=False)
        (results / other / "run.json").write_text(f'{{"init_adapter": "/r/{run}/adapter"')
    elif case == "unfinished search":
        search = results / "tune" / "20260304-101500"
        search.mkdir(parents=True)
        (search / "tune.json").write_text(json.dumps({"waves": [run]}))
    return run


CASES = ["unfinished", "uncollected", "damaged", "nodes not given back", "reused", "named by a run that is named"]
CASES += ["a path in a damaged plan", "unfinished search", "discarded and unfinished"]


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_needed_stays(results, case):
    run = held_back(results, case)
    before = names_in(results)
    with pytest.raises(TaskFailed) as raised:
        runs(Context(), delete=[run], yes=True)
    assert raised.value.code == ExitCode.REFUSED
    newest = make_run(results, 9)
    runs(Context(), keep="1", yes=True)
    assert names_in(results) == sorted([*before, newest])


@pytest.mark.parametrize("case", ["discarded", "nodes given back", "its user is deleted too", "finished search"])
def test_a_run_that_nothing_needs_is_deleted(results, case):
    run = make_run(results, 1, collected=case != "discarded")
    if case == "discarded":
        (results / run / DISCARDED_FILE).touch()
    elif case == "nodes given back":
        nodes_record(run, NodesState.DONE).write(results / run)
    elif case == "its user is deleted too":
        make_run(results, 2, provenance={"reused": {"baseline": f"{run}/baseline"}})
    else:
        search = results / "tune" / "20260304-101500"
        search.mkdir(parents=True)
        (search / "tune.json").write_text(json.dumps({"waves": [run]}))
        (search / "answer.json").write_text("{}")
    newest = make_run(results, 9)
    runs(Context(), keep="1", yes=True)
    assert [name for name in names_in(results) if name != "tune"] == [newest]


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        ({"delete": ["absent"]}, ExitCode.BAD_INPUT),
        ({"delete": ["../results/x"]}, ExitCode.BAD_INPUT),
        ({"delete": ["latest"]}, ExitCode.BAD_INPUT),
        ({"delete": ["latest"], "keep": "1"}, ExitCode.BAD_INPUT),
        ({"keep": "0"}, ExitCode.BAD_INPUT),
        ({"yes": True}, ExitCode.BAD_INPUT),
        ({"keep": "1", "json": True}, ExitCode.REFUSED),
        ({"keep": "1"}, ExitCode.REFUSED),  # no terminal to confirm on
    ],
)
def test_what_is_refused_deletes_nothing(results, typed, code):
    expected = [make_run(results, 1), make_run(results, 2)]
    (results / "latest").symlink_to(expected[1])
    with pytest.raises(TaskFailed) as raised:
        runs(Context(), **typed)
    assert (raised.value.code, names_in(results)) == (code, expected)


def test_a_dry_run_and_a_command_in_progress_delete_nothing(results):
    run = make_run(results, 1)
    runs(Context(), delete=[run], dry_run=True)
    with acquire_lock(results, "bench"), pytest.raises(TaskFailed) as raised:
        runs(Context(), delete=[run], yes=True)
    assert (raised.value.code, names_in(results)) == (ExitCode.REFUSED, [run])


def test_a_run_that_another_command_reads_stays(results):
    run = make_run(results, 1)
    reader = lock._lock_run(results / run, os.O_RDONLY, fcntl.LOCK_SH)  # like another process
    RunRecord.read(results / run / "run.json").write(results / run)  # as a training that resumes with other settings
    with pytest.raises(TaskFailed) as raised:
        runs(Context(), delete=[run], yes=True)
    assert (raised.value.code, names_in(results)) == (ExitCode.REFUSED, [run])
    os.close(reader)
    assert find_run(results, run) == results / run  # as an earlier command of the same chain
    runs(Context(), delete=[run], yes=True)
    assert names_in(results) == []


def test_a_run_that_is_being_deleted_is_not_read(results):
    run = make_run(results, 1)
    with lock.own_run(results / run), pytest.raises(UsageError, match=run):
        find_run(results, run)


def test_a_run_is_gone_before_its_first_file_is_removed(results, monkeypatch):
    first, second = make_run(results, 1), make_run(results, 2)

    def interrupt(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            runs(Context(), delete=[first], yes=True)
    assert [run.run_id for run in find_runs(results)] == [second]
    runs(Context(), delete=[second], yes=True)  # also removes what was left
    assert names_in(results) == []
