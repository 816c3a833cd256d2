"""One trial on two simulated machines: real ranks, each below its own parent process, on this machine.

Not covered: two kernels, two clocks, a network that loses packets; the start of a process (tests.support.forked).
"""

import contextlib
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
pytestmark = pytest.mark.slow


@pytest.fixture
def start_nodes(start_ranks, tiny_data: Path, tmp_path: Path) -> Callable[..., list[subprocess.Popen[str]]]:
    shared = {
        NODE_COUNT: "2",
        NODE_ADDRESS: "127.0.0.1",
        NODE_PORT: str(free_ports(2)),
        NODE_TOKEN: "word",
        "GLOO_SOCKET_IFNAME": "lo",
    }

    def run(*, broken_on: tuple[int, ...] = (), **changes: object) -> list[subprocess.Popen[str]]:
        data = ["/no/data" if node in broken_on else str(tiny_data) for node in range(2)]
        variables = [shared | {NODE_RANK: str(node)} for node in range(2)]
        return [
            start_ranks(tmp_path / f"node-{node}", variables=variables[node], data=data[node], **changes)
            for node in range(2)
        ]

    return run


def wait_for_measure(nodes: list[subprocess.Popen], folder: Path) -> None:
    """Wait until the first machine has heartbeats of both ranks while measuring."""

    def are_measuring() -> bool:
        assert all(node.poll() is None for node in nodes), [node.communicate() for node in nodes if node.poll()]
        paths = list((folder / "node-0" / "tmp").glob("qlora-fleet-ranks-*/rank-*.json"))
        return len(paths) == 2 and all('"measure", "step": ' in path.read_text() for path in paths)

    wait_for(are_measuring, "measured steps", WAIT_SEC)


def rank_of(node: subprocess.Popen) -> int:
    """Return the pid of a machine's only rank."""
    for pid in descendant_pids(node.pid):
        with contextlib.suppress(OSError):
            if b"bench.workloads.distributed_rank" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError("no rank is running")


def wait_for_result(nodes: list[subprocess.Popen], folder: Path, *, clean: str = "node-*") -> TrialResult:
    """Wait for both machines: no process runs, `clean` ones leave no folder, only the first has written a result."""
    descendants = [pid for node in nodes for pid in descendant_pids(node.pid)]
    for node in nodes:
        node.communicate(timeout=WAIT_SEC)
    assert alive(descendants) == []
    assert not list(folder.glob(f"{clean}/tmp/qlora-fleet-*"))
    assert not (folder / "node-1" / "result.json").exists()
    return TrialResult.read(folder / "node-0" / "result.json")


def test_a_rank_that_fails_on_another_machine_is_named_and_all_are_stopped(start_nodes, tmp_path):
    """One that hangs is found by its machine as in test_distributed_faults.py."""
    nodes = start_nodes(measured_steps=100_000)
    wait_for_measure(nodes, tmp_path)
    os.kill(rank_of(nodes[1]), signal.SIGKILL)
    result = wait_for_result(nodes, tmp_path)
    assert result.status is TrialStatus.FAILED
    assert re.match("RankKilled: rank 1 .*SIGKILL in measure step ", str(result.reason))


def test_a_lost_machine_is_not_a_failed_trial(start_nodes, tmp_path):
    nodes = start_nodes(measured_steps=100_000)
    wait_for_measure(nodes, tmp_path)
    for pid in [nodes[1].pid, *descendant_pids(nodes[1].pid)]:
        os.kill(pid, signal.SIGKILL)
    result = wait_for_result(nodes, tmp_path, clean="node-0")
    assert result.status is TrialStatus.LOST  # so that it is retried
    assert re.match("rank 1 .* machine in measure", str(result.reason))


def test_when_the_first_machine_is_lost_the_others_stop(start_nodes, tmp_path):
    nodes = start_nodes(measured_steps=100_000)
    wait_for_measure(nodes, tmp_path)
    descendants = descendant_pids(nodes[1].pid)
    for pid in [nodes[0].pid, *descendant_pids(nodes[0].pid)]:
        os.kill(pid, signal.SIGKILL)
    _, err = nodes[1].communicate(timeout=WAIT_SEC)
    assert (nodes[1].returncode, alive(descendants)) == (1, [])
    assert "ranks 1 to 1 " in err


def test_missing_input_of_one_is_reported_by_both_machines(start_nodes, tmp_path):
    nodes = start_nodes(broken_on=(1,))
    errors = [node.communicate(timeout=WAIT_SEC)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2]
    assert all("/no/data" in error for error in errors)
    assert not (tmp_path / "node-0" / "result.json").exists()
