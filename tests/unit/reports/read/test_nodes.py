"""Nodes of a run after its end: what is said of them, and their cost."""

import datetime
from pathlib import Path

import pytest

from bench.records.nodes import NodesRecord, NodesState
from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode
from remote.fleet.ledger import Ledger
from reports.read import attempts
from reports.read.nodes import describe, describe_nodes
from tests.support.cases import Case, load_cases
from tests.support.reports.training_run import write_run

END = "2026-11-22T02:00:00+00:00"
RECORD = NodesRecord(
    run_id="r", state=NodesState.PLANNED, provider="oci", cluster={}, pool_id="p", pool="gpus", from_size=4, to_size=0,
    usd_per_hour=8.0, price="$2.00",
)  # fmt: skip


@pytest.mark.parametrize("case", load_cases(__file__, "nodes.yaml"))
def test_nodes_are_given_back_or_still_rented(case: Case) -> None:
    fields = {"ended_at": END, **case["fields"]}
    if "state" in fields:
        fields["state"] = NodesState(fields["state"])
    now = datetime.datetime.fromisoformat(END).timestamp() + 3600.0 * case["hours"]
    assert describe(NodesRecord(**{**vars(RECORD), **fields}), now) == case["expected"]


def test_a_runs_nodes_are_described_from_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "r")
    run = RunRecord.read(folder / "run.json")
    now = datetime.datetime.fromisoformat(END).timestamp() + 1800.0
    assert describe_nodes(folder, run, now) is None
    RECORD.write(folder)
    text = describe_nodes(folder, run, now)
    assert text is not None
    assert "30 min 0 s since the end, $4.00" in text
    (folder / "nodes.json").write_text("{}")
    text = describe_nodes(folder, run, now)
    assert text is not None
    assert text.startswith("unknown: ")


def test_workers_are_held_while_they_wait_for_a_restart(tmp_path: Path) -> None:
    first, second = attempts.read(write_run(tmp_path / "r"), "train")
    began = first.began
    spans = [first, attempts.replace(second, began=second.began + 600.0)]  # a replacement took ten minutes
    assert attempts.worker_sec(spans, began + 3600.0) == 2 * (3600.0 - 600.0)
    assert attempts.held_sec(spans, began + 3600.0) == 2 * 3600.0
    assert attempts.held_sec([], began) == 0.0, "it waits for its workers"


@pytest.mark.parametrize("last", [1, None])
def test_workers_are_not_held_after_the_end_of_a_wait(tmp_path: Path, last: int | None) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", ["train"])
    ledger.record_start("train", 1, "worker-0", "/f", 2, at=0.0)
    ledger.record_retry("train", 1, Outcome.of(ReasonCode.WORKER_LOST, "lost"), at=600.0)
    assert attempts.held_sec(attempts.read(tmp_path, "train"), 900.0) == 2 * 900.0
    ledger.record_end("train", Outcome.of(ReasonCode.CANCELLED, "cancelled"), last, at=900.0)
    assert attempts.held_sec(attempts.read(tmp_path, "train"), 86_400.0) == 2 * 900.0
    ledger.reopen("train")
    ledger.record_start("train", 2, "worker-0", "/g", 2, at=80_000.0)
    assert attempts.held_sec(attempts.read(tmp_path, "train"), 80_060.0) == 2 * 960.0
