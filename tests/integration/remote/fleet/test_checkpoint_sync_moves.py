"""Checkpoint transfer: from a leader's own disk to this machine, and from here to a replacement with an empty disk.

The hosts are folders of this machine with the real host agent. Not covered: pods.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.records.run import Progress
from remote.fleet.checkpoint_sync import MAX_LOCAL_CHECKPOINTS, CheckpointSync, is_complete
from remote.fleet.ledger import Ledger
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent

PLANNED: Any = SimpleNamespace(trial_id="train", trial=SimpleNamespace(training=object(), world_size=1))


def write_checkpoint(folder: Path, step: int, *, is_torn: bool = False) -> None:
    checkpoint, content = folder / f"step-{step:08}", f"step {step}".encode()
    checkpoint.mkdir(parents=True)
    (checkpoint / "adapter.safetensors").write_bytes(content[: 3 if is_torn else None])
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (checkpoint / "MANIFEST.json").write_text(json.dumps({"files": {"adapter.safetensors": facts}}))


def report_progress(checkpoint_sync: CheckpointSync, agent: Agent, step: int) -> None:
    progress = Progress(phase="train", step=step + 1, steps=99, elapsed_sec=1.0, checkpoint_step=step)
    checkpoint_sync.on_progress(agent, PLANNED, 1, progress)
    checkpoint_sync.wait()


def test_the_newest_complete_checkpoints_are_downloaded_and_uploaded_to_a_replacement(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", ["train"])
    ledger.record_start("train", 1, "worker-0", "/w", 1)
    local_folder = tmp_path / "local_folder"
    checkpoint_sync = CheckpointSync(
        ledger=ledger, remote_folder=lambda workdir: f"{workdir}/checkpoints", local_folder=local_folder
    )
    lost, replacement = (Agent(LocalHost(name="worker-0", workdir=str(tmp_path / name))) for name in ("lost", "new"))
    remote_folder = tmp_path / "lost" / "checkpoints"
    for step in (5, 10, 15):
        write_checkpoint(remote_folder, step)
        report_progress(checkpoint_sync, lost, step)
    write_checkpoint(remote_folder, 20, is_torn=True)
    report_progress(checkpoint_sync, lost, 20)
    report_progress(checkpoint_sync, lost, 25)  # pruned before the download
    assert (
        sorted(path.name for path in local_folder.iterdir())
        == ["step-00000010", "step-00000015"][:MAX_LOCAL_CHECKPOINTS]
    )

    checkpoint_sync.upload_newest(replacement, PLANNED)
    uploaded = tmp_path / "new" / "checkpoints" / "step-00000015"
    assert is_complete(uploaded)
    assert [path.name for path in uploaded.parent.iterdir()] == [uploaded.name]

    write_checkpoint(uploaded.parent, 30)
    write_checkpoint(local_folder, 18)
    checkpoint_sync.upload_newest(replacement, PLANNED)
    assert not (uploaded.parent / "step-00000018").exists(), "it has a newer one"
