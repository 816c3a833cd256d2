"""A training on simulated machines: one is told to stop, or the network between two of them is cut.

Real ranks below one parent for each machine. For a cut they share a network namespace: it drops the packets of all
connections between the processes of two machines, and a repair lets TCP go on. Needs root. Not covered: NCCL, whose
watchdog ends a rank.
"""

import dataclasses
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.records.training import TrainingRecord
from tests.support import tiny_training
from tests.support.hosts.attempts import WAIT_SEC, Attempts
from tests.support.hosts.rank_pids import alive, descendant_pids, kill_trials
from tests.support.machines.machine import Machine, require
from tests.support.machines.ports import free_ports
from tests.support.thorough import only_thorough

NODES, STEPS = 3, 10
SILENCE_SEC, SHORT_CUT_SEC = 8, 3.0  # a step may take 5 s longer than a rank may be silent
# A process enters the machines' network, with a short limit for a row. The test cuts the network while the ranks are
# connected and their training is held.
ENTER = """
import ctypes, os
from bench.workloads.ranks import launcher

network = os.open({path!r}, os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(network, 0x40000000) == 0, os.strerror(ctypes.get_errno())
launcher.MIN_TOKENS_PER_SEC["tiny"] = 1000.0
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Network:
    """The machines' common network: `cut` drops all packets between the processes of two machines."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.path = machine, f"/proc/{machine.pid}/ns/net"
        self._rules: list[tuple[str, ...]] = []

    def cut(self, first: set[int], second: set[int]) -> None:
        ports = self._connections(first, second)
        assert ports
        for local, peer in ports:
            for source, destination in ((local, peer), (peer, local)):
                rule = ("INPUT", "-p", "tcp", "--sport", source, "--dport", destination, "-j", "DROP")
                self.machine.run("iptables", "-w", "-I", *rule)
                self._rules.append(rule)

    def repair(self) -> None:
        for rule in self._rules:
            self.machine.run("iptables", "-w", "-D", *rule)
        self._rules.clear()

    def _connections(self, first: set[int], second: set[int]) -> set[tuple[str, str]]:
        """Return the ports of the connections between two sets of processes: of the first set's end, and the peer's."""
        ends: dict[tuple[str, str], set[int]] = {}
        for line in self.machine.run("ss", "-tnpH", "state", "established").stdout.splitlines():
            _, _, local, peer, *users = line.split()
            ports = local.rpartition(":")[2], peer.rpartition(":")[2]
            ends[ports] = {int(pid) for pid in re.findall(r"pid=(\d+)", " ".join(users))}
        return {
            (local, peer)
            for (local, peer), pids in ends.items()
            if pids & first and ends.get((peer, local), set()) & second
        }


class Training(Attempts):
    """The attempts of one training: a process for each of NODES machines."""

    inputs: tuple[Path, Path]
    network: Network

    def begin(self, *, held_after: int = STEPS) -> list[subprocess.Popen[str]]:
        training = {"epochs": 2.0, "max_steps": STEPS, "rows_per_step": NODES, "evaluate_every": 0}
        trial = tiny_training.plan(*self.inputs, world_size=NODES, training=training)
        trial = dataclasses.replace(trial, derive=("warmup_share",))
        shared = {
            NODE_COUNT: str(NODES), NODE_ADDRESS: "127.0.0.1", NODE_PORT: str(free_ports(2)), NODE_TOKEN: "word",
            "GLOO_SOCKET_IFNAME": "lo", "QLORA_FLEET_SILENCE_SEC": str(SILENCE_SEC),
        }  # fmt: skip
        machines = [{**shared, NODE_RANK: str(node)} for node in range(NODES)]
        before = ENTER.format(path=self.network.path)
        nodes = self.start(trial, held_after=held_after, before=before, machines=machines)
        if held_after < STEPS:
            self.wait_for_checkpoint(nodes, held_after)
        return nodes

    def wait(self, nodes: list[subprocess.Popen[str]]) -> TrialResult:
        descendants = [pid for node in nodes for pid in processes_of(node)]
        for node in nodes:
            node.communicate(timeout=WAIT_SEC)
        assert alive(descendants) == []
        return TrialResult.read(self.out / "result.json")


def processes_of(node: subprocess.Popen[str]) -> set[int]:
    return {node.pid, *descendant_pids(node.pid)}


@pytest.fixture
def trainings(bench_environment, bench_server, tiny_inputs, tmp_path) -> Iterator[Callable[[str], Training]]:
    """Return a function that makes trainings by name."""
    require("iptables", "ss")
    made: list[Training] = []
    with Machine("machines", tmp_path) as machine:

        def make(name: str) -> Training:
            made.append(Training(tmp_path / name, bench_server, bench_environment))
            made[-1].inputs, made[-1].network = tiny_inputs, Network(machine)
            return made[-1]

        yield make
        kill_trials([process for training in made for process in training.started])


def stop_group(node: subprocess.Popen[str]) -> None:
    os.killpg(node.pid, signal.SIGTERM)


def stop_every_process(node: subprocess.Popen[str]) -> None:
    for pid in processes_of(node):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("first", "second", "stop"),
    [
        pytest.param(0, 1, stop_group, id="leader and follower"),
        pytest.param(1, 2, stop_every_process, id="followers", marks=only_thorough),
    ],
)
def test_a_cut_network_or_a_stopped_machine_costs_no_step(trainings, first: int, second: int, stop) -> None:
    undisturbed = trainings("undisturbed")
    assert undisturbed.wait(undisturbed.begin()).status is TrialStatus.SUCCEEDED
    training = trainings(f"{first}-{second}")
    nodes = training.begin(held_after=2)
    training.network.cut(processes_of(nodes[first]), processes_of(nodes[second]))
    training.gate.touch()
    lost = training.wait(nodes)  # longer than a step
    training.network.repair()
    assert lost.status is TrialStatus.LOST, lost.reason

    nodes = training.begin(held_after=4)
    stop(nodes[1])
    training.gate.touch()
    stopped = training.wait(nodes)
    assert stopped.status is TrialStatus.PREEMPTED, stopped.reason  # after SILENCE_SEC it would be lost

    nodes = training.begin(held_after=training.newest_step + 1)
    training.network.cut(processes_of(nodes[first]), processes_of(nodes[second]))
    training.gate.touch()
    time.sleep(SHORT_CUT_SEC)
    training.network.repair()
    assert training.wait(nodes).status is TrialStatus.SUCCEEDED
    record = TrainingRecord.read(training.out / "training.json")
    assert [restart.attempt for restart in record.restarts] == [2, 3]
    assert record.adapter_sha256 == TrainingRecord.read(undisturbed.out / "training.json").adapter_sha256
    assert record.steps.step == list(range(1, STEPS + 1))
