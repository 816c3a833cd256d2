"""Checkpoints on their way: from a leader's own disk home, and from here to a replacement with an empty disk.

The hosts are folders of this machine with the real program of jobs and files; not covered: pods.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.records.run import Progress
from remote.fleet.checkpoint_sync import KEPT, CheckpointSync, is_whole
from remote.fleet.ledger import Ledger
from remote.hosts.local import LocalHost
from remote.jobs.agent import Agent

PLANNED: Any = SimpleNamespace(trial_id="train", trial=SimpleNamespace(training=object(), world_size=1))


def a_checkpoint(folder: Path, step: int, *, is_torn: bool = False) -> None:
    place, content = folder / f"step-{step:08}", f"step {step}".encode()
    place.mkdir(parents=True)
    (place / "adapter.safetensors").write_bytes(content[: 3 if is_torn else None])
    facts = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (place / "MANIFEST.json").write_text(json.dumps({"files": {"adapter.safetensors": facts}}))


def heard(keeper: CheckpointSync, agent: Agent, step: int) -> None:
    progress = Progress(phase="train", step=step + 1, steps=99, elapsed_sec=1.0, checkpoint_step=step)
    keeper.hear(agent, PLANNED, 1, progress)
    keeper.wait()


def test_the_newest_whole_checkpoints_come_home_and_go_to_a_replacement(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", ["train"])
    ledger.started("train", 1, "worker-0", "/w", 1)
    home = tmp_path / "home"
    keeper = CheckpointSync(ledger=ledger, place=lambda workdir: f"{workdir}/checkpoints", home=home)
    lost, replacement = (Agent(LocalHost(name="worker-0", workdir=str(tmp_path / name))) for name in ("lost", "new"))
    there = tmp_path / "lost" / "checkpoints"
    for step in (5, 10, 15):
        a_checkpoint(there, step)
        heard(keeper, lost, step)
    a_checkpoint(there, 20, is_torn=True)
    heard(keeper, lost, 20)
    heard(keeper, lost, 25)  # pruned before it was asked for
    assert sorted(path.name for path in home.iterdir()) == ["step-00000010", "step-00000015"][:KEPT]

    keeper.provide(replacement, PLANNED)
    given = tmp_path / "new" / "checkpoints" / "step-00000015"
    assert is_whole(given)
    assert [path.name for path in given.parent.iterdir()] == [given.name]

    a_checkpoint(given.parent, 30)
    a_checkpoint(home, 18)
    keeper.provide(replacement, PLANNED)
    assert not (given.parent / "step-00000018").exists(), "it has a newer one"
