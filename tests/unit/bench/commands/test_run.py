"""The process of one trial before it measures: what others see of it while it reads the data."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.commands import cli, run
from bench.data.inputs import InputError
from bench.harness.record import Request
from bench.records import Trial, suite
from bench.records.paths import PROGRESS_FILE
from bench.records.result import TrialResult
from bench.records.status import ExitCode, TrialStatus


@pytest.mark.usefixtures("restored_signals")
@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, ExitCode.NOT_WRITTEN), (errno.EACCES, ExitCode.BAD_INPUT)],
)
def test_a_full_disk_is_the_workers_fault_and_a_closed_folder_the_callers(
    number: int, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", write)
    flags = ("--suite", "quick", "--trial-name", "baseline", "--profile", "tiny", "--model", "m", "--data", "d")
    assert cli.main(["run", *flags, "--out", str(tmp_path / "out")]) == code


@pytest.mark.usefixtures("restored_signals")
def test_progress_is_written_before_the_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, phases = tmp_path / "out", []

    def check(_: object) -> None:
        phases.append(json.loads((out / PROGRESS_FILE).read_text())["phase"])
        raise InputError("no data")

    monkeypatch.setattr(run, "_check", check)
    trial = suite("quick", "tiny", "model", "data")[0]
    with pytest.raises(InputError):
        run.run(trial, Request(out=out))
    assert phases == ["check"]


@pytest.mark.usefixtures("restored_signals")
def test_an_unknown_key_and_a_finished_result_are_refused(
    tmp_path: Path, make_trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    file, argv = tmp_path / "t.json", ["run", "--trial", str(tmp_path / "t.json"), "--out", str(tmp_path)]
    file.write_text(json.dumps(make_trial().to_json() | {"sede": 1}))
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith(f"{file}: sede: unknown field; ")
    file.write_text(make_trial().to_text())
    finished = TrialResult(trial_id="done", trial=make_trial(), status=TrialStatus.SUCCEEDED, reason=None)
    before = finished.write(tmp_path).read_bytes()
    assert cli.main(argv) == 2
    assert "'done'" in capsys.readouterr().err
    assert (tmp_path / "result.json").read_bytes() == before
