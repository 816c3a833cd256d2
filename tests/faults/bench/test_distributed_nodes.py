"""One trial on two machines, both of them this one: real ranks, each under a parent of its own that must hear of all.

Not covered: two kernels, two clocks, a network that loses packets; and the start of a process (tests.support.forked).
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.result import TrialResult, TrialStatus
from bench.workloads.distributed.torchrun import descendants
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import SILENCE_SEC, alive
from tests.support.machines.ports import free_ports

WAIT_SEC = 150.0
pytestmark = pytest.mark.slow


@pytest.fixture
def start_nodes(start_ranks, tiny_data: Path, tmp_path: Path) -> Callable[..., list[subprocess.Popen[str]]]:
    meeting = {
        NODE_COUNT: "2",
        NODE_ADDRESS: "127.0.0.1",
        NODE_PORT: str(free_ports(2)),
        NODE_TOKEN: "word",
        "GLOO_SOCKET_IFNAME": "lo",
    }

    def run(*, broken_on: int | None = None, **changes: object) -> list[subprocess.Popen[str]]:
        data = ["/no/data" if node == broken_on else str(tiny_data) for node in range(2)]
        variables = [meeting | {NODE_RANK: str(node)} for node in range(2)]
        return [
            start_ranks(tmp_path / f"node-{node}", variables=variables[node], data=data[node], **changes)
            for node in range(2)
        ]

    return run


def in_measure(nodes: list[subprocess.Popen], folder: Path) -> None:
    """Wait until the first machine knows both ranks to be measuring."""

    def measuring() -> bool:
        assert all(node.poll() is None for node in nodes), [node.communicate() for node in nodes if node.poll()]
        signs = list((folder / "node-0" / "tmp").glob("qlora-fleet-ranks-*/rank-*.json"))
        return len(signs) == 2 and all('"measure", "step": ' in sign.read_text() for sign in signs)

    wait_for(measuring, "measured steps", WAIT_SEC)


def rank_of(node: subprocess.Popen) -> int:
    """The pid of a machine's only rank."""
    for pid in descendants(node.pid):
        with contextlib.suppress(OSError):
            if (
                b"bench.workloads.distributed.rank" in (words := Path(f"/proc/{pid}/cmdline").read_bytes())
                and b"torchrun" not in words
            ):
                return pid
    raise AssertionError("no rank is running")


def ends(nodes: list[subprocess.Popen], folder: Path, *, tidy: str = "node-*") -> TrialResult:
    """Both machines' ends: nothing runs, `tidy` ones leave nothing lying, only the first has written a result."""
    below = [pid for node in nodes for pid in descendants(node.pid)]
    for node in nodes:
        node.communicate(timeout=WAIT_SEC)
    assert alive(below) == []
    assert not list(folder.glob(f"{tidy}/tmp/qlora-fleet-*"))
    assert not (folder / "node-1" / "result.json").exists()
    return TrialResult.read(folder / "node-0" / "result.json")


def test_two_machines_train_one_model_and_the_first_tells_of_it(start_nodes, tmp_path):
    nodes = start_nodes(measured_steps=3)
    result = ends(nodes, tmp_path)
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    assert [node.returncode for node in nodes] == [0, 0]
    found = {(m.name, m.context.get("rank")) for m in result.measurements}
    assert {("step_time_sec", 0), ("step_time_sec", 1), ("efficiency_percent", None)} <= found


@pytest.mark.parametrize(
    ("node", "number", "fate"),
    [
        (1, signal.SIGKILL, "was killed by SIGKILL"),
        (0, signal.SIGKILL, "was killed by SIGKILL"),
        (1, signal.SIGSTOP, f"has been silent for {SILENCE_SEC} s"),
    ],
    ids=["killed on the other machine", "killed on the first", "hangs on the other"],
)
def test_a_rank_that_fails_on_any_machine_is_named_and_all_are_stopped(start_nodes, tmp_path, node, number, fate):
    nodes = start_nodes(measured_steps=100_000)
    in_measure(nodes, tmp_path)
    os.kill(rank_of(nodes[node]), number)
    result = ends(nodes, tmp_path)
    assert result.status is TrialStatus.FAILED
    assert str(result.reason).startswith(f"RankKilled: rank {node} {fate} in measure step ")


def test_a_machine_that_goes_is_not_the_trials_fault(start_nodes, tmp_path):
    nodes = start_nodes(measured_steps=100_000)
    in_measure(nodes, tmp_path)
    for pid in [nodes[1].pid, *descendants(nodes[1].pid)]:
        os.kill(pid, signal.SIGKILL)
    result = ends(nodes, tmp_path, tidy="node-0")
    assert result.status is TrialStatus.LOST  # and so tried again
    assert str(result.reason).startswith("rank 1 is gone with its machine in measure")


def test_when_the_first_machine_goes_the_others_stop(start_nodes, tmp_path):
    nodes = start_nodes(measured_steps=100_000)
    in_measure(nodes, tmp_path)
    below = descendants(nodes[1].pid)
    for pid in [nodes[0].pid, *descendants(nodes[0].pid)]:
        os.kill(pid, signal.SIGKILL)
    _, err = nodes[1].communicate(timeout=WAIT_SEC)
    assert (nodes[1].returncode, alive(below)) == (1, [])
    assert err.endswith("ranks 1 to 1 were ended\n")


def test_input_missing_on_one_machine_is_said_by_the_first(start_nodes, tmp_path):
    nodes = start_nodes(broken_on=1)
    said = [node.communicate(timeout=WAIT_SEC)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [2, 2]
    assert all("/no/data" in words for words in said)
    assert not (tmp_path / "node-0" / "result.json").exists()
