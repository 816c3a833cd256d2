"""Every run is collected, and what is still missing is counted."""

import dataclasses
import os
from pathlib import Path

import pytest

from bench.records.atomic_files import sha256_of
from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.local import LocalHost
from tasks.errors import RetryableError
from tasks.fleet import collect
from tests.support.reports import synthetic, training_run


@pytest.fixture
def gone_run(tmp_path: Path) -> tuple[RunRecord, Path]:
    """A collected run whose workers are in no fleet any more, with foreign files."""
    run = synthetic.write_run(tmp_path / "r", synthetic.record(run_id="r", workers=2))
    ledger = Ledger.create(tmp_path / "r" / LEDGER_FILE, [planned.trial_id for planned in run.planned])
    for planned in run.planned:
        ledger.record_start(planned.trial_id, 1, str(planned.worker), f"/gone/{planned.trial_id}")
        ledger.record_end(planned.trial_id, Outcome(TrialStatus.SUCCEEDED), 1)
    for name in (b"a\nb", b"\xff"):
        (tmp_path / "r/trials/baseline.worker-1" / os.fsdecode(name)).touch()
    collect._write_checksums(tmp_path / "r")
    return run, tmp_path / "r"


def collect_again(run: RunRecord, folder: Path) -> None:
    collect._fetch_results(run, folder, [LocalHost(name="worker-0", workdir="/gone")], None)


def test_a_complete_run_stays_complete_without_its_workers(
    gone_run: tuple[RunRecord, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = gone_run
    collect_again(run, folder)
    output = capsys.readouterr().out
    assert "missing" not in output
    assert f"{len(run.planned)} already present" in output
    plan = collect._plan(run, folder)
    assert (plan.data["missing"], plan.data["ends"]) == (None, {"SUCCEEDED": plan.data["planned"]})


@pytest.mark.parametrize("change", ["file", "absent", "sums", "ledger"])
def test_a_run_that_changed_since_its_collection_is_not_complete(change: str, gone_run: tuple[RunRecord, Path]) -> None:
    run, folder = gone_run
    path = folder / "trials" / run.planned[0].trial_id / "result.json"
    if change == "file":
        path.write_text(path.read_text() + " ")
    elif change == "absent":
        path.unlink()
    elif change == "sums":
        (folder / "SHA256SUMS").unlink()
    else:
        sums = (folder / "SHA256SUMS").read_text()
        digest = sha256_of(folder / LEDGER_FILE)
        (folder / "SHA256SUMS").write_text(sums.replace(digest, "0" * 64))
    with pytest.raises(RetryableError, match="inv collect --run=r"):
        collect_again(run, folder)


def test_a_training_without_its_adapter_is_not_collected(tmp_path: Path) -> None:
    folder = training_run.write_run(tmp_path / "r")
    run = RunRecord.read(folder / RUN_FILE)
    with pytest.raises(RetryableError, match="inv collect --run=r"):
        collect.install(run, folder)
    (folder / "trials" / "train" / "training.json").unlink()
    without = dataclasses.replace(training_run.RECORD, adapter_step=None, adapter_sha256=None, adapter_files={})
    without.write(folder / "trials" / "train")
    assert collect.install(run, folder) is not None


def test_the_cause_of_a_training_that_failed_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = training_run.write_run(tmp_path / "r")
    run = RunRecord.read(folder / RUN_FILE)
    ledger = Ledger.create(tmp_path / LEDGER_FILE, ["train"])
    ledger.record_end("train", Outcome.of(ReasonCode.NON_FINITE_LOSS, "loss is nan", "try a lower learning_rate"))
    collect._report_outcome(run, folder, ledger.entries, [])
    assert "FAILED: loss is nan; try a lower learning_rate\n" in capsys.readouterr().out
