"""Real ranks of distributed trials, on one machine or on two simulated ones: no process is ever left.

Not covered: ranks that hang (tests/integration/bench/workloads/test_distributed.py); a machine told to stop or cut off
(test_finetune_ranks.py); two kernels, two clocks, a GPU allocator's messages.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import alive, descendant_pids
from tests.support.machines.ports import free_ports

WAIT_SEC = 150.0
LIMIT_BYTES = 3 << 30  # a process's address space; importing the stack takes 2 GiB
pytestmark = pytest.mark.slow


def end(process: subprocess.Popen[str], folder: Path, code: int, status: TrialStatus) -> TrialResult:
    """Wait for a trial that leaves no folder of ours; return its result."""
    _, err = process.communicate(timeout=WAIT_SEC)
    assert (process.returncode, err) == (code, "")
    assert not list((folder / "tmp").glob("qlora-fleet-*"))
    result = TrialResult.read(folder / "result.json")
    assert result.status is status, result.reason
    return result


def test_two_ranks_train_one_model_and_report_their_rates(start_ranks, tmp_path):
    process = start_ranks(tmp_path, measured_steps=4, gradient_accumulation_steps=2)
    result = end(process, tmp_path, 0, TrialStatus.SUCCEEDED)
    assert result.metrics is not None
    assert result.steps.samples == [4] * 4  # per device
    values = {(m.name, m.context.get("rank")): m.value for m in result.measurements}
    assert values["global_samples_per_sec", None] == pytest.approx(2 * result.metrics.samples_per_sec)
    assert values["global_tokens_per_sec", None] == pytest.approx(2 * result.metrics.tokens_per_sec)
    assert {("step_time_sec", 0), ("step_time_sec", 1)} <= set(values)
    assert result.metrics.peak_rss_bytes > 200 << 20, "the parent, which computes nothing, has 50 MB"


def test_a_rank_out_of_memory_ends_the_trial_with_its_name_and_peak(start_ranks, demo_data, tmp_path):
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))"
    large = {"data": str(demo_data), "max_seq_len": 4096, "micro_batch_size": 512}
    result = end(start_ranks(tmp_path, before=limit, **large), tmp_path, 1, TrialStatus.OUT_OF_MEMORY)
    assert re.match("[^;]*: rank [01]: ", str(result.reason))
    assert "micro_batch_size" in str(result.remedy)
    amount, unit = re.findall(r"peak RSS ([\d.]+) (MiB|GiB)", str(result.reason))[0]
    assert unit == "GiB" or float(amount) > 200


@pytest.fixture
def measuring(start_ranks, tmp_path: Path) -> tuple[list[subprocess.Popen[str]], Callable[[int], int]]:
    """Return two machines that measure steps, and a function that returns the pid of a rank."""
    shared = {
        NODE_COUNT: "2", NODE_ADDRESS: "127.0.0.1", NODE_PORT: str(free_ports(2)), NODE_TOKEN: "word",
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    machines = [
        start_ranks(tmp_path / f"node-{node}", variables=shared | {NODE_RANK: str(node)}, measured_steps=100_000)
        for node in range(2)
    ]

    def heartbeats() -> list[dict[str, object]]:
        """Return both ranks' heartbeats as the first machine has them, once both measure."""
        assert all(machine.poll() is None for machine in machines), [each.communicate() for each in machines]
        paths = sorted((tmp_path / "node-0" / "tmp").glob("qlora-fleet-ranks-*/rank-*.json"))
        beats = [json.loads(path.read_text()) for path in paths]
        return beats if len(beats) == 2 and all(beat["phase"] == "measure" for beat in beats) else []

    beats = wait_for(heartbeats, "measured steps", WAIT_SEC)
    return machines, lambda rank: beats[rank]["pid"]


def test_a_rank_killed_on_another_machine_is_named_and_all_are_stopped(measuring, tmp_path):
    machines, pid_of = measuring
    descendants = [pid for machine in machines for pid in descendant_pids(machine.pid)]
    os.kill(pid_of(1), signal.SIGKILL)
    result = end(machines[0], tmp_path / "node-0", 1, TrialStatus.FAILED)
    machines[1].communicate(timeout=WAIT_SEC)
    assert re.match("RankKilled: rank 1 .*SIGKILL in measure", str(result.reason))
    assert alive(descendants) == []
    assert not (tmp_path / "node-1" / "result.json").exists()


def test_when_the_first_machine_is_lost_the_others_stop(measuring):
    (first, second), _ = measuring
    descendants = descendant_pids(second.pid)
    for pid in [first.pid, *descendant_pids(first.pid)]:
        os.kill(pid, signal.SIGKILL)
    _, err = second.communicate(timeout=WAIT_SEC)
    assert (second.returncode, alive(descendants)) == (1, [])
    assert "ranks 1 to 1 " in err
