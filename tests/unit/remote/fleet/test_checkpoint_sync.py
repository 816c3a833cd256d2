"""Recorded costs of a training's restart, and completeness of checkpoints."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.records.run import Progress
from remote.fleet.checkpoint_sync import CheckpointSync, is_complete
from remote.fleet.ledger import Ledger

PLANNED: Any = SimpleNamespace(trial_id="train", trial=SimpleNamespace(training=object(), world_size=4))
AGENT: Any = SimpleNamespace(host=SimpleNamespace(workdir="/w"))


def progress_at(step: int, checkpoint: int | None) -> Progress:
    loss = None if step in (0, checkpoint) else 1.0
    return Progress(phase="train", step=step, steps=90, elapsed_sec=1.0, checkpoint_step=checkpoint, loss=loss)


def restart_events(ledger: Ledger) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in ledger.path.read_text().splitlines()]
    return [event for event in events if event["event"] == "restarted"]


def make_ledger(folder: Path) -> Ledger:
    ledger = Ledger.create(folder / "ledger.jsonl", ["train"])
    for number in (1, 2):
        ledger.record_start("train", number, "worker-0", f"/w/{number}", 4)
    return ledger


def test_a_restart_costs_the_time_since_its_checkpoint(tmp_path: Path) -> None:
    ledger, now = make_ledger(tmp_path), [0.0]
    checkpoint_sync = CheckpointSync(
        ledger=ledger, remote_folder=lambda workdir: workdir, usd_per_sec=0.5, clock=lambda: now[0]
    )
    for second, attempt, step, checkpoint in (
        (0.0, 1, 9, None),
        (10.0, 1, 12, 10),
        (20.0, 1, 18, 10),
        (60.0, 2, 10, 10),  # loaded, before its first step
        (70.0, 2, 11, 10),
        (80.0, 2, 12, 10),
    ):
        now[0] = second
        checkpoint_sync.on_progress(AGENT, PLANNED, attempt, progress_at(step, checkpoint))
    (cost,) = restart_events(ledger)
    assert {name: cost[name] for name in ("attempt", "step", "lost_sec", "workers", "usd")} == {
        "attempt": 2, "step": 10, "lost_sec": 60.0, "workers": 4, "usd": 30.0,
    }  # fmt: skip


def test_a_restart_without_earlier_progress_has_no_price(tmp_path: Path) -> None:
    ledger = make_ledger(tmp_path)
    checkpoint_sync = CheckpointSync(ledger=ledger, remote_folder=lambda workdir: workdir, usd_per_sec=0.5)
    for step, checkpoint in ((0, None), (10, 10), (12, 10)):  # it reads its data, has loaded, has trained
        checkpoint_sync.on_progress(AGENT, PLANNED, 2, progress_at(step, checkpoint))
    (cost,) = restart_events(ledger)
    assert (cost["step"], cost["lost_sec"], cost["usd"]) == (10, None, None)


def test_a_checkpoint_is_complete_only_with_every_file_of_its_manifest(tmp_path: Path) -> None:
    assert not is_complete(tmp_path)
    (tmp_path / "state.json").write_bytes(b"12")
    facts = {"sha256": hashlib.sha256(b"12").hexdigest(), "bytes": 2}
    manifest = tmp_path / "MANIFEST.json"
    manifest.write_text(json.dumps({"files": {"state.json": facts}}))
    assert is_complete(tmp_path)
    (tmp_path / "state.json").write_bytes(b"13")
    assert not is_complete(tmp_path)
    for torn in ("", "[]", '{"files": {}}', '{"files": {"../x": {}}}'):
        manifest.write_text(torn)
        assert not is_complete(tmp_path)
