"""Real ranks: two that succeed, one that is killed, one that hangs. Whatever happens, no process is left.

One trial that is killed outright is a process of its own; a server that has imported the stack starts the others.
"""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from bench.records.result import TrialResult, TrialStatus
from bench.workloads.distributed.torchrun import descendants
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import SILENCE_SEC, alive

WAIT_SEC = 150.0
pytestmark = pytest.mark.slow


def in_measure(process: subprocess.Popen, folder: Path, ranks: int = 2) -> dict[int, int]:
    """Wait until steps are measured; the pids of ranks by rank."""

    def measuring() -> dict[int, int]:
        assert process.poll() is None, process.communicate()
        signs = sorted((folder / "tmp").glob("qlora-fleet-ranks-*/rank-*.json"))
        said = [json.loads(path.read_text()) for path in signs]
        is_so = len(said) == ranks and all(sign["phase"] == "measure" and sign["step"] > 2 for sign in said)
        return {rank: sign["pid"] for rank, sign in enumerate(said)} if is_so else {}

    return wait_for(measuring, "measured steps", WAIT_SEC)


def left_in(folder: Path) -> list[Path]:
    """Folders of ours that should be gone; torch's own caches are its business."""
    return list((folder / "tmp").glob("qlora-fleet-*"))


def test_two_ranks_train_one_model_and_say_what_talking_costs(start_ranks, tmp_path):
    process = start_ranks(tmp_path, measured_steps=4, gradient_accumulation_steps=2)
    _, err = process.communicate(timeout=WAIT_SEC)
    assert (process.returncode, err) == (0, "")
    result = TrialResult.read(tmp_path / "result.json")
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    assert result.metrics is not None
    assert result.steps.samples == [4] * 4  # of one device
    found = {(m.name, m.context.get("rank"), m.context.get("size_bytes")): m for m in result.measurements}
    values = {name: m.value for (name, _, _), m in found.items()}
    assert values["global_samples_per_sec"] == pytest.approx(2 * result.metrics.samples_per_sec)
    assert values["global_tokens_per_sec"] == pytest.approx(2 * result.metrics.tokens_per_sec)
    assert values["efficiency_percent"] + values["communication_share_no_sync_percent"] == pytest.approx(100)
    assert {("step_time_sec", 0, None), ("step_time_sec", 1, None)} <= set(found)
    gradient = result.fingerprint["gradient_bytes"]
    bandwidth = found["all_reduce_gb_per_sec", None, gradient].value
    assert values["communication_bound_sec"] == pytest.approx(gradient / 1e9 / bandwidth)
    assert 0 < values["communication_time_sec"] < result.metrics.step_time_sec.p90
    assert sum(result.fingerprint["gradient_buckets_bytes"]) == gradient  # each bucket once in a step of two batches
    assert len(result.fingerprint["lora_weights_sha256"]) == 64
    assert result.metrics.peak_rss_bytes == max(result.fingerprint["rank_peak_rss_bytes"]) > 200 << 20
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "fate", "more"),
    [
        (signal.SIGKILL, "was killed by SIGKILL", ""),
        (signal.SIGSTOP, f"has been silent for {SILENCE_SEC} s", "(its process is stopped)"),
    ],
    ids=["killed", "hangs"],
)
def test_a_rank_that_is_killed_or_hangs_fails_the_trial_by_its_name(start_ranks, tmp_path, number, fate, more):
    process = start_ranks(tmp_path, measured_steps=100_000)
    ranks = in_measure(process, tmp_path)
    below = descendants(process.pid)
    assert set(ranks.values()) <= set(below)
    os.kill(ranks[1], number)
    process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 1
    result = TrialResult.read(tmp_path / "result.json")
    assert result.status is TrialStatus.FAILED
    assert str(result.reason).startswith(f"RankKilled: rank 1 {fate} in measure step ")
    assert more in str(result.reason)
    assert result.metrics is not None  # what was measured until then
    assert (alive(below), left_in(tmp_path)) == ([], [])


def test_a_rendezvous_port_in_use_is_refused_in_one_line(start_ranks, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start_ranks(tmp_path, variables={"QLORA_FLEET_RDZV_PORT": str(port)})
        _, err = process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 2
    assert err == (
        f"QLORA_FLEET_RDZV_PORT: port {port} cannot be used for the rendezvous: Address already in use; "
        "choose another, or unset it and a free one is found\n"
    )
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    ("ranks", "from_nothing"), [(2, False), (1, True)], ids=["two ranks", "one rank, started from nothing"]
)
def test_a_trial_killed_outright_takes_its_ranks_with_it(start_ranks, tmp_path, ranks, from_nothing):
    process = start_ranks(tmp_path, measured_steps=100_000, world_size=ranks, from_nothing=from_nothing)
    in_measure(process, tmp_path, ranks)
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(below), "the ranks' end", WAIT_SEC)
