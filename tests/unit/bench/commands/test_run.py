"""The process of one trial before it measures: what others see of it while it reads the data."""

import json
from pathlib import Path

import pytest

from bench.commands import run
from bench.data.inputs import InputError
from bench.harness.record import Request
from bench.records import suite
from bench.records.paths import PROGRESS_FILE


@pytest.mark.usefixtures("restored_signals")
def test_progress_is_written_before_the_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, phases = tmp_path / "out", []

    def check(_: object) -> None:
        phases.append(json.loads((out / PROGRESS_FILE).read_text())["phase"])
        raise InputError("no data")

    monkeypatch.setattr(run, "_check", check)
    trial = suite("quick", "tiny", "model", "data")[0]
    assert run.run(Request(trial_file=tmp_path / "trial.json", trial=trial, out=out)) == 2
    assert phases == ["check"]
