"""Two ranks on two GPUs exchange gradients by NCCL: a rank killed, the leader killed, the link cut, and captured steps.

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_finetune_nccl.py

Each rank has a machine of its own (namespaces of this host) and one GPU; NCCL uses sockets only, over a cable between
the two. Prints how long each fault takes to be found, and how long after a restart the first new step ends. Needs root
and two GPUs. Not covered: InfiniBand and RoCE.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import torch_stack
from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.records.training import TrainingRecord
from tests.support import tiny_training
from tests.support.gpu import environment, on_gpu
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import alive, descendant_pids, kill_trials
from tests.support.machines.machine import SOCKETS_ONLY, Link, Machine, require
from tests.support.paths import ROOT
from tests.support.tiny_training import HELD_SAVES

ADDRESSES = ("10.79.8.1", "10.79.8.2")
WAIT_SEC, SILENCE_SEC, SHORT_CUT_SEC = 120.0, 8, 3.0
STEPS = 12
# Found on PYTHONPATH by every process of a training. HELD_AFTER: no checkpoint after this step until the gate exists.
SITE = f"""
import os
from pathlib import Path

if "HELD_AFTER" in os.environ:
    last, gate = int(os.environ["HELD_AFTER"]), Path(os.environ["HELD_GATE"])
    exec({HELD_SAVES!r})
if "UNCAPTURED" in os.environ:
    from bench.qlora.recipes import cuda_graph

    cuda_graph.CapturedStep._graph_for = lambda step, inputs: None
"""
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu]


class Pair:
    """Two machines with a GPU each, a cable between them, and the attempts of trainings of two ranks."""

    def __init__(self, home: Path, machines: list[Machine], link: Link) -> None:
        self.home, self.machines, self.link = home, machines, link
        folder = tiny_training.make_folder(torch_stack.load(), home / "models" / "tiny--tiny", width=256)
        self.inputs = folder, tiny_training.make_data(home / "chats.jsonl")
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(SITE)
        self.name, self.number, self.started = "", 0, list[subprocess.Popen[str]]()

    def begin(self, name: str) -> None:
        """Begin another training, with checkpoints of its own."""
        self.name, self.number = name, 0

    @property
    def folder(self) -> Path:
        return self.home / self.name

    @property
    def out(self) -> Path:
        return self.folder / f"out-{self.number}-0"

    @property
    def gate(self) -> Path:
        return self.folder / f"gate-{self.number}"

    def start(self, *, held_after: int | None = None, **variables: str) -> list[subprocess.Popen[str]]:
        self.number += 1
        training = {"epochs": 2.0, "max_steps": STEPS, "rows_per_step": 4, "evaluate_every": 0}
        trial = tiny_training.plan(*self.inputs, world_size=2, training=training)
        self.folder.mkdir(exist_ok=True)
        (self.folder / "trial.json").write_text(trial.to_text())
        if held_after is not None:
            variables |= {"HELD_AFTER": str(held_after), "HELD_GATE": str(self.gate)}
        return [self._start_node(node, variables) for node in (0, 1)]

    def _start_node(self, node: int, variables: dict[str, str]) -> subprocess.Popen[str]:
        temporary = self.folder / f"tmp-{self.number}-{node}"
        temporary.mkdir()
        card = (self.link.card, self.link.other_card)[node]
        known = environment()
        variables = known | variables | {
            NODE_COUNT: "2", NODE_RANK: str(node), NODE_ADDRESS: ADDRESSES[0], NODE_TOKEN: "word",
            NODE_PORT: str(29400 + len(self.started) // 2 * 2), "GLOO_SOCKET_IFNAME": card, "NCCL_SOCKET_IFNAME": card,
            "TMPDIR": str(temporary), "QLORA_FLEET_SILENCE_SEC": str(SILENCE_SEC), "CUDA_VISIBLE_DEVICES": str(node),
            "PYTHONPATH": os.pathsep.join([str(self.home / "site"), known["PYTHONPATH"]]), **SOCKETS_ONLY,
        }  # fmt: skip
        argv = (
            *(sys.executable, "-m", "bench", "run", "--trial", str(self.folder / "trial.json")),
            *("--out", str(self.folder / f"out-{self.number}-{node}"), "--attempt", str(self.number)),
            *("--checkpoints", str(self.folder / "checkpoints")),
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.machines[node].start(*argv, env=variables, cwd=ROOT, start_new_session=True, **pipes)
        self.started.append(process)
        return process

    def wait_for_checkpoint(self, nodes: list[subprocess.Popen[str]], step: int) -> None:
        def is_written() -> bool:
            assert all(node.poll() is None for node in nodes), [node.communicate() for node in nodes if node.poll()]
            return (self.folder / "checkpoints" / f"step-{step:08}").is_dir()

        wait_for(is_written, f"a checkpoint of step {step}", WAIT_SEC)

    def newest_checkpoint(self) -> int:
        return max(int(path.name.removeprefix("step-")) for path in (self.folder / "checkpoints").glob("step-*"))

    def wait(self, nodes: list[subprocess.Popen[str]]) -> TrialResult:
        descendants = [pid for node in nodes for pid in (node.pid, *descendant_pids(node.pid))]
        for node in nodes:
            print(node.communicate(timeout=WAIT_SEC)[0][-1500:])
        assert alive(descendants) == []
        return TrialResult.read(self.out / "result.json")

    def finished(self, **variables: str) -> TrainingRecord:
        assert self.wait(self.start(**variables)).status is TrialStatus.SUCCEEDED
        return TrainingRecord.read(self.out / "training.json")

    def rank_of(self, node: subprocess.Popen[str]) -> int:
        """Return the pid of a node's rank, which writes the heartbeat."""
        index = self.started[-2:].index(node)
        (heartbeat,) = (self.folder / f"tmp-{self.number}-{index}").glob(f"qlora-fleet-ranks-*/rank-{index}.json")
        match = re.search(r'"pid": ?(\d+)', heartbeat.read_text())
        assert match is not None
        return int(match[1])


@pytest.fixture(scope="module")
def pair(gpus: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    require("tc")
    if gpus < 2:
        pytest.skip(f"two ranks need two GPUs; this machine has {gpus}")
    root = tmp_path_factory.mktemp("nccl")
    with contextlib.ExitStack() as opened:
        machines = [opened.enter_context(Machine(name, root)) for name in ("one", "two")]
        link = opened.enter_context(Link(machines[0], ADDRESSES[0], machines[1], ADDRESSES[1]))
        made = Pair(root, machines, link)
        yield made
        kill_trials(made.started)


@pytest.fixture(scope="module")
def undisturbed(pair: Pair) -> TrainingRecord:
    pair.begin("undisturbed")
    record = pair.finished()
    fingerprint = TrialResult.read(pair.out / "result.json").fingerprint
    assert (fingerprint["backend"], fingerprint["device"]) == ("nccl", "cuda")
    return record


def kill_follower(pair: Pair, nodes: list[subprocess.Popen[str]]) -> None:
    os.kill(pair.rank_of(nodes[1]), signal.SIGKILL)


def kill_leader(pair: Pair, nodes: list[subprocess.Popen[str]]) -> None:
    os.kill(pair.rank_of(nodes[0]), signal.SIGKILL)


def cut_link(pair: Pair, _: list[subprocess.Popen[str]]) -> None:
    pair.link.cut("down")


FAULTS = (kill_follower, kill_leader, cut_link)


def test_faults_lose_attempts_and_no_step(pair, undisturbed):
    """Kill a rank, kill the leader, cut the link for longer than a rank may be silent, and for less."""
    pair.begin("disturbed")
    newest, restarted = 1, time.monotonic()
    for fault in FAULTS:
        step = newest + 1
        nodes = pair.start(held_after=step)
        pair.wait_for_checkpoint(nodes, step)
        print(f"MEASURED step {step} ended {time.monotonic() - restarted:.1f} s after the start")
        fault(pair, nodes)
        began = time.monotonic()
        pair.gate.touch()
        lost = pair.wait(nodes)
        print(f"MEASURED {fault.__name__}: ended after {time.monotonic() - began:.1f} s: {lost.reason}")
        pair.link.repair()
        assert lost.status is TrialStatus.LOST, lost.reason
        newest, restarted = pair.newest_checkpoint(), time.monotonic()
    last = newest + 1
    nodes = pair.start(held_after=last)
    pair.wait_for_checkpoint(nodes, last)
    pair.link.cut("down")
    pair.gate.touch()
    time.sleep(SHORT_CUT_SEC)
    pair.link.repair()
    result = pair.wait(nodes)
    assert result.status is TrialStatus.SUCCEEDED, result.reason
    record = TrainingRecord.read(pair.out / "training.json")
    assert record.adapter_sha256 == undisturbed.adapter_sha256
    assert record.steps.loss == undisturbed.steps.loss
    assert [restart.from_step > 1 for restart in record.restarts] == [True] * len(FAULTS)


def test_captured_steps_of_two_ranks_have_the_bits_of_uncaptured_ones(pair, undisturbed):
    captured = TrialResult.read(pair.home / "undisturbed" / "out-1-0" / "result.json")
    assert captured.fingerprint["step_captured"] == "yes"
    pair.begin("uncaptured")
    record = pair.finished(UNCAPTURED="yes")
    assert TrialResult.read(pair.out / "result.json").fingerprint.get("step_captured") is None
    assert record.adapter_sha256 == undisturbed.adapter_sha256
    assert record.steps.loss == undisturbed.steps.loss
