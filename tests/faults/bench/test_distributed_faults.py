"""Real ranks: two that succeed, one that hangs. No process is ever left.

Not covered: ranks and trials that are killed (test_finetune_ranks.py).
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import SILENCE_SEC, alive, descendant_pids

WAIT_SEC = 150.0
pytestmark = pytest.mark.slow


def wait_for_measure(process: subprocess.Popen, folder: Path, ranks: int = 2) -> dict[int, int]:
    """Wait until steps are measured; return the ranks' pids by rank."""

    def measuring_pids() -> dict[int, int]:
        assert process.poll() is None, process.communicate()
        paths = sorted((folder / "tmp").glob("qlora-fleet-ranks-*/rank-*.json"))
        beats = [json.loads(path.read_text()) for path in paths]
        is_measuring = len(beats) == ranks and all(beat["phase"] == "measure" and beat["step"] > 2 for beat in beats)
        return {rank: beat["pid"] for rank, beat in enumerate(beats)} if is_measuring else {}

    return wait_for(measuring_pids, "measured steps", WAIT_SEC)


def leftover_folders(folder: Path) -> list[Path]:
    """Return our temporary folders, which should be removed; torch's caches may stay."""
    return list((folder / "tmp").glob("qlora-fleet-*"))


def test_two_ranks_train_one_model_and_report_their_rates(start_ranks, tmp_path):
    process = start_ranks(tmp_path, measured_steps=4, gradient_accumulation_steps=2)
    _, err = process.communicate(timeout=WAIT_SEC)
    assert (process.returncode, err) == (0, "")
    result = TrialResult.read(tmp_path / "result.json")
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    assert result.metrics is not None
    assert result.steps.samples == [4] * 4  # per device
    measurements = {(m.name, m.context.get("rank")): m for m in result.measurements}
    values = {name: m.value for (name, _), m in measurements.items()}
    assert values["global_samples_per_sec"] == pytest.approx(2 * result.metrics.samples_per_sec)
    assert values["global_tokens_per_sec"] == pytest.approx(2 * result.metrics.tokens_per_sec)
    assert {("step_time_sec", 0), ("step_time_sec", 1)} <= set(measurements)
    assert len(result.fingerprint["lora_weights_sha256"]) == 64
    assert result.metrics.peak_rss_bytes > 200 << 20, "the parent, which computes nothing, has 50 MB"
    assert leftover_folders(tmp_path) == []


def test_a_rank_that_hangs_fails_the_trial_and_is_named(start_ranks, tmp_path):
    process = start_ranks(tmp_path, measured_steps=100_000)
    ranks = wait_for_measure(process, tmp_path)
    descendants = descendant_pids(process.pid)
    assert set(ranks.values()) <= set(descendants)
    os.kill(ranks[1], signal.SIGSTOP)
    process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 1
    result = TrialResult.read(tmp_path / "result.json")
    assert result.status is TrialStatus.FAILED
    assert re.match(f"RankKilled: rank 1 .*{SILENCE_SEC} s in measure step ", str(result.reason))
    assert "(its process is stopped)" in str(result.reason)
    assert result.metrics is not None  # computed from the steps until then
    assert (alive(descendants), leftover_folders(tmp_path)) == ([], [])
