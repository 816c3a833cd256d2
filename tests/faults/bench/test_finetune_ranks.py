"""Real ranks of a fine-tuning: killed, stopped, cut off and resumed, they end with the adapter of an undisturbed one.

Trials and their ranks are forked from a server that has imported the stack, with a parent for each machine. For a cut,
machines share a network namespace: it drops the packets of all connections between the processes of two of them, and a
repair lets TCP go on. That needs root. Not covered: GPUs; NCCL, whose watchdog ends a rank.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from bench.records.paths import NODE_ADDRESS, NODE_COUNT, NODE_PORT, NODE_RANK, NODE_TOKEN
from bench.records.result import TrialResult
from bench.records.status import ExitCode, TrialStatus
from bench.records.training import DerivedSettings, TrainingRecord
from bench.workloads.finetune.derived import derive
from bench.workloads.ranks.launcher import STOP_FILE
from tests.support import tiny_training
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import alive, descendant_pids, kill_trials
from tests.support.machines.machine import Machine, require
from tests.support.machines.ports import free_ports
from tests.support.thorough import only_thorough
from tests.support.tiny_training import HELD_SAVES

WAIT_SEC = 240.0
STEPS, NODES = 9, 3
SILENCE_SEC, SHORT_CUT_SEC = 8, 3.0  # a step may take 5 s longer than a rank may be silent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RUN = "\nimport runpy, sys\nsys.argv[0] = 'bench'\nrunpy.run_module('bench', run_name='__main__')"


@dataclasses.dataclass(kw_only=True)
class Training:
    """The attempts of one training over the checkpoints in `home`, each with a process for every machine's variables.

    A process first runs the code `before`. The first machine of an attempt has the result in `out`; once `gate` exists,
    a held attempt continues.
    """

    home: Path
    start: Callable[..., subprocess.Popen[str]]
    inputs: tuple[Path, Path]
    machines: Sequence[Mapping[str, str]] = ({},)
    before: str = ""
    number: int = 0
    started: list[subprocess.Popen[str]] = dataclasses.field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.home / f"out-{self.number}-0"

    @property
    def gate(self) -> Path:
        return self.home / f"gate-{self.number}"

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint; 0 without one."""
        return max((int(path.name[5:]) for path in (self.home / "checkpoints").glob("step-*")), default=0)

    def plan(
        self, *, ranks: int = 2, rows: int = 4, derived: Sequence[str] = ("validation_share", "warmup_share")
    ) -> Trial:
        """Return the trial of STEPS steps, which derives settings from the data."""
        training: dict[str, Any] = {"epochs": 2.0, "max_steps": STEPS, "rows_per_step": rows, "evaluate_every": 0}
        if (self.home / "my.py").exists():
            training["score"] = str(self.home / "my.py")
        trial = tiny_training.plan(*self.inputs, world_size=ranks, training=training)
        return dataclasses.replace(trial, derive=tuple(derived))

    def begin(self, trial: Trial, *, held_after: int | None = None) -> list[subprocess.Popen[str]]:
        """Start an attempt; it is held after the step `held_after`, for whose checkpoint this waits."""
        self.number += 1
        (self.home / "trial.json").write_text(trial.to_text())
        held = f"\nfrom pathlib import Path\nlast, gate = {held_after}, Path({str(self.gate)!r})\n{HELD_SAVES}"
        processes = []
        for number, variables in enumerate(self.machines):
            (temporary := self.home / f"tmp-{self.number}-{number}").mkdir(exist_ok=True)
            argv = (
                *(
                    "-c",
                    self.before + ("" if held_after is None else held) + RUN,
                    "run",
                    "--trial",
                    str(self.home / "trial.json"),
                ),
                *("--out", str(self.home / f"out-{self.number}-{number}")),
                *("--checkpoints", str(self.home / "checkpoints"), "--attempt", str(self.number)),
            )
            processes.append(self.start(*argv, variables={"TMPDIR": str(temporary), **variables}))
        self.started += processes

        def is_held() -> bool:
            assert all(each.poll() is None for each in processes), [each.communicate() for each in processes]
            return held_after is None or self.newest_step >= held_after

        wait_for(is_held, f"a checkpoint of step {held_after}", WAIT_SEC)
        return processes

    def wait(self, processes: Sequence[subprocess.Popen[str]]) -> TrialResult:
        """Wait for an attempt's end, which leaves no process."""
        descendants = [pid for process in processes for pid in descendant_pids(process.pid)]
        for process in processes:
            process.communicate(timeout=WAIT_SEC)
        wait_for(lambda: not alive(descendants), "the end of ranks and score", WAIT_SEC)
        return TrialResult.read(self.out / "result.json")

    def finish(self, trial: Trial) -> TrainingRecord:
        result = self.wait(self.begin(trial))
        assert result.status is TrialStatus.SUCCEEDED, result.reason
        return TrainingRecord.read(self.out / "training.json")

    def rank_pids(self) -> dict[int, int]:
        """Return the pids of this attempt's ranks by rank."""
        heartbeats = self.home.glob(f"tmp-{self.number}-*/qlora-fleet-ranks-*/rank-*.json")
        return {int(path.stem[5:]): json.loads(path.read_text())["pid"] for path in heartbeats}


@pytest.fixture
def trainings(bench_environment, bench_server, tiny_inputs, tmp_path) -> Iterator[Callable[..., Training]]:
    """Return a function that makes trainings by name, over one model and one data file."""
    made = list[Training]()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def start(*argv: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
        return bench_server.start(*argv, env={**bench_environment, **variables}, start_new_session=True, **pipes)

    def make(name: str, **options: Any) -> Training:
        (home := tmp_path / name).mkdir()
        made.append(Training(home=home, start=start, inputs=tiny_inputs, **options))
        return made[-1]

    yield make
    kill_trials([process for training in made for process in training.started])


SCORE_FILE = """
import os, time
from pathlib import Path

def score(prompt, answer, expected):
    home = Path({home!r})
    with (home / "calls").open("a") as calls:
        calls.write("x")
    if (home / "calls").stat().st_size > {rows} and not (home / "score").exists():
        (home / "held").touch()
        time.sleep(20)
    return 0.25
"""


def test_two_ranks_killed_stopped_and_resumed_end_with_the_undisturbed_adapter(trainings):
    quiet = trainings("quiet")
    planned = quiet.plan(derived=())
    planned = planned.with_derived(derive(quiet.plan(), None, DerivedSettings())[1])
    undisturbed = quiet.finish(planned)
    assert (undisturbed.status, undisturbed.stop, undisturbed.derived) == ("SUCCEEDED", "finished", DerivedSettings())
    assert (undisturbed.steps_done, undisturbed.restarts) == (STEPS, [])

    training, rows = trainings("disturbed"), undisturbed.evaluations[0].rows
    (training.home / "my.py").write_text(SCORE_FILE.format(home=str(training.home), rows=rows))
    trial = training.plan()
    (process,) = training.begin(trial, held_after=2)
    ranks = training.rank_pids()
    (second,) = training.begin(trial)
    output, _ = second.communicate(timeout=WAIT_SEC)
    assert second.returncode == ExitCode.REFUSED
    assert f"checkpoints: in use by attempt 1, process {process.pid} on " in output.splitlines()[-1]
    assert not (training.out / "result.json").exists()
    training.number = 1
    os.kill(ranks[1], signal.SIGKILL)
    lost = training.wait([process])
    assert (process.returncode, lost.status) == (1, TrialStatus.LOST)
    assert re.search("rank 1 .*SIGKILL", str(lost.reason))

    (process,) = training.begin(trial, held_after=5)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: [*training.home.glob(f"tmp-*/*/{STOP_FILE}")], "the stop file", WAIT_SEC)
    training.gate.touch()
    assert (training.wait([process]).status, process.returncode) == (TrialStatus.PREEMPTED, 143)
    stopped = TrainingRecord.read(training.out / "training.json").steps_done
    assert training.newest_step == stopped, "an immediate checkpoint: no completed step is lost"

    (process,) = training.begin(trial, held_after=stopped + 1)
    descendants = descendant_pids(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(descendants), "the ranks' end", WAIT_SEC)

    (process,) = training.begin(trial)
    wait_for((training.home / "held").exists, "the last score", WAIT_SEC)
    os.kill(training.rank_pids()[1], signal.SIGKILL)
    assert training.wait([process]).status is TrialStatus.LOST

    (training.home / "score").touch()
    record = training.finish(trial)
    assert record.adapter_sha256 == undisturbed.adapter_sha256
    assert record.steps.loss == undisturbed.steps.loss
    assert record.steps.step == list(range(1, STEPS + 1)), "every step is recorded once"
    assert record.derived.warmup_share == 0.1, "the attempt derives what the plan leaves open"
    assert [restart.attempt for restart in record.restarts] == [2, 3, 4, 5]
    assert [restart.from_step for restart in record.restarts] == [2, stopped, stopped + 1, STEPS]
    assert record.restarts[0].since_checkpoint_sec is not None
    assert (training.home / "calls").stat().st_size == 2 * rows + 1, "the answers before are scored once"
    assert record.score is not None
    assert (record.score.before, record.score.after) == ([0.25] * rows, [0.25] * rows)

    single = trainings("single")
    of_one = single.finish(single.plan(ranks=1))
    assert of_one.steps.targets == undisturbed.steps.targets
    assert of_one.steps.learning_rate == undisturbed.steps.learning_rate
    assert of_one.steps.loss == pytest.approx(undisturbed.steps.loss, rel=1e-4)


# A process enters the machines' network, with a short limit for a row.
ENTER = """
import ctypes, os
from bench.workloads.ranks import launcher

network = os.open({path!r}, os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(network, 0x40000000) == 0, os.strerror(ctypes.get_errno())
launcher.MIN_TOKENS_PER_SEC["tiny"] = 1000.0
"""


class Network:
    """The machines' common network: `cut` drops all packets between the processes of two machines."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.path = machine, f"/proc/{machine.pid}/ns/net"
        self._rules: list[tuple[str, ...]] = []

    def cut(self, first: subprocess.Popen[str], second: subprocess.Popen[str]) -> None:
        ports = self._connections(processes_of(first), processes_of(second))
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


def processes_of(node: subprocess.Popen[str]) -> set[int]:
    return {node.pid, *descendant_pids(node.pid)}


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    require("iptables", "ss")
    with Machine("machines", tmp_path) as machine:
        yield Network(machine)


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
def test_a_cut_network_or_a_stopped_machine_costs_no_step(trainings, network, first: int, second: int, stop) -> None:
    def make(name: str) -> tuple[Training, Trial]:
        shared = {
            NODE_COUNT: str(NODES), NODE_ADDRESS: "127.0.0.1", NODE_PORT: str(free_ports(2)), NODE_TOKEN: "word",
            "GLOO_SOCKET_IFNAME": "lo", "QLORA_FLEET_SILENCE_SEC": str(SILENCE_SEC),
        }  # fmt: skip
        machines = [{**shared, NODE_RANK: str(node)} for node in range(NODES)]
        training = trainings(name, machines=machines, before=ENTER.format(path=network.path))
        return training, training.plan(ranks=NODES, rows=NODES, derived=("warmup_share",))

    training, trial = make("undisturbed")
    undisturbed = training.finish(trial)

    training, trial = make("cut")
    nodes = training.begin(trial, held_after=2)
    network.cut(nodes[first], nodes[second])
    training.gate.touch()
    lost = training.wait(nodes)  # longer than a step
    network.repair()
    assert lost.status is TrialStatus.LOST, lost.reason

    nodes = training.begin(trial, held_after=4)
    stop(nodes[1])
    training.gate.touch()
    stopped = training.wait(nodes)
    assert stopped.status is TrialStatus.PREEMPTED, stopped.reason  # after SILENCE_SEC it would be lost

    nodes = training.begin(trial, held_after=training.newest_step + 1)
    network.cut(nodes[first], nodes[second])
    training.gate.touch()
    time.sleep(SHORT_CUT_SEC)
    network.repair()
    assert training.wait(nodes).status is TrialStatus.SUCCEEDED
    record = TrainingRecord.read(training.out / "training.json")
    assert [restart.attempt for restart in record.restarts] == [2, 3]
    assert record.adapter_sha256 == undisturbed.adapter_sha256
    assert record.steps.step == list(range(1, STEPS + 1))
