"""Real ranks: two that succeed, one that is killed, one that hangs. Whatever happens, no process is left.

One trial that is killed outright is a process of its own; a server that has imported the stack starts the others.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.kinds.distributed.torchrun import descendants
from bench.records import Trial
from bench.records.result import End, TrialResult
from tests.support.hosts.rankpids import alive, end

WAIT_SEC = 150.0
SILENCE_SEC = 15  # where many processes share few cores, a rank that imports is silent for seconds
pytestmark = pytest.mark.slow


@pytest.fixture
def start(
    bench_environment, bench_server, make_trial, tiny_model, tiny_data, tmp_path
) -> Iterator[Callable[..., subprocess.Popen]]:
    started: list[subprocess.Popen] = []
    (tmp_path / "tmp").mkdir()
    environment = bench_environment | {"TMPDIR": str(tmp_path / "tmp"), "QLORA_FLEET_SILENCE_SEC": str(SILENCE_SEC)}

    def run(
        *, variables: dict[str, str] | None = None, from_nothing: bool = False, **changes: object
    ) -> subprocess.Popen:
        fields = {"kind": "distributed", "world_size": 2, "model": str(tiny_model), "data": str(tiny_data)}
        trial: Trial = make_trial(**(fields | changes))
        (tmp_path / "trial.json").write_text(trial.to_text())
        words = ("-m", "bench", "run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path))
        options = {
            "env": environment | (variables or {}),
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            "start_new_session": True,
        }
        if from_nothing:
            process = subprocess.Popen((sys.executable, *words), **options)
        else:
            process = bench_server.start(*words, **options)
        started.append(process)
        return process

    yield run
    end(started)


def in_measure(process: subprocess.Popen, folder: Path, ranks: int = 2) -> dict[int, int]:
    """Wait until steps are measured; the pids of ranks by rank."""
    deadline = time.monotonic() + WAIT_SEC
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        signs = list((folder / "tmp").glob("qlora-fleet-ranks-*/rank-*.json"))
        said = [json.loads(path.read_text()) for path in sorted(signs)]
        if len(said) == ranks and all(sign["phase"] == "measure" and sign["step"] > 2 for sign in said):
            return {rank: sign["pid"] for rank, sign in enumerate(said)}
        time.sleep(0.05)
    raise AssertionError(f"measured nothing within {WAIT_SEC} s")


def left_in(folder: Path) -> list[Path]:
    """Folders of ours that should be gone; torch's own caches are its business."""
    return list((folder / "tmp").glob("qlora-fleet-*"))


def test_two_ranks_train_one_model_and_say_what_talking_costs(start, tmp_path):
    process = start(measured_steps=4, gradient_accumulation_steps=2)
    _, err = process.communicate(timeout=WAIT_SEC)
    assert (process.returncode, err) == (0, "")
    result = TrialResult.read(tmp_path / "result.json")
    assert (result.status, result.reason) == (End.SUCCEEDED, None)
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
def test_a_rank_that_is_killed_or_hangs_fails_the_trial_by_its_name(start, tmp_path, number, fate, more):
    process = start(measured_steps=100_000)
    ranks = in_measure(process, tmp_path)
    below = descendants(process.pid)
    assert set(ranks.values()) <= set(below)
    os.kill(ranks[1], number)
    process.communicate(timeout=WAIT_SEC)
    assert process.returncode == 1
    result = TrialResult.read(tmp_path / "result.json")
    assert result.status is End.FAILED
    assert str(result.reason).startswith(f"RankKilled: rank 1 {fate} in measure step ")
    assert more in str(result.reason)
    assert result.metrics is not None  # what was measured until then
    assert (alive(below), left_in(tmp_path)) == ([], [])


def test_a_rendezvous_port_in_use_is_refused_in_one_line(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(variables={"QLORA_FLEET_RDZV_PORT": str(port)})
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
def test_a_trial_killed_outright_takes_its_ranks_with_it(start, tmp_path, ranks, from_nothing):
    process = start(measured_steps=100_000, world_size=ranks, from_nothing=from_nothing)
    in_measure(process, tmp_path, ranks)
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + WAIT_SEC
    while alive(below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(below) == []
