"""Fixture of a collected training with an adapter of three bytes."""

import dataclasses
import hashlib
from pathlib import Path

import pytest

from bench.records.adapter import AdapterCheck, ServedForm
from bench.records.run import RunRecord
from tasks.adapter.artifact import TrainedAdapter
from tests.support.reports.training_run import RECORD, write_run

WEIGHTS = b"abc"
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def trained(tmp_path: Path) -> TrainedAdapter:
    record = dataclasses.replace(RECORD, adapter_sha256=SHA256)
    folder = write_run(tmp_path / "r", record)
    record.write(folder)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_model.safetensors").write_bytes(WEIGHTS)
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    run = RunRecord.read(folder / "run.json")
    inputs = {"model": {"sha256": "m" * 64}, "files": {"d.jsonl": "f" * 64}}
    return TrainedAdapter(run=dataclasses.replace(run, provenance={"inputs": inputs}), folder=folder, record=record)


def form(name: str, change: float | None = None, half: float = 0.001, **changes: object) -> ServedForm:
    ends = (None, None) if change is None else (change - half, change + half)
    served_form = ServedForm(
        name=name, loss=1.5 + (change or 0.0), low=1.4, high=1.6, change=change, change_low=ends[0],
        change_high=ends[1], answers=["yes", "no"], unended=0,
    )  # fmt: skip
    return dataclasses.replace(served_form, **changes)  # type: ignore[arg-type]


def adapter_check(*forms: ServedForm, **changes: object) -> AdapterCheck:
    check = AdapterCheck(
        adapter_sha256=SHA256, merged=None, end_ids=[2],
        prompts=["?"], questions=[None],
        forms=[form("trained"), *forms], examples=["e"], losses=[3.0], targets=[2], device="CPU",
        arithmetic="float32",
    )  # fmt: skip
    return dataclasses.replace(check, **changes)  # type: ignore[arg-type]


def save_check(trained: TrainedAdapter, check: AdapterCheck) -> None:
    check.write(trained.folder)
