"""Real ranks of a fine-tuning: killed, stopped and gone on from, they end with the adapter of a quiet training.

Trials and their ranks are forked from a server that has imported the stack. Not covered: GPUs; ranks on several
machines (their parents are a distributed trial's: test_distributed_nodes.py).
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import torch_stack
from bench.records.result import TrialResult, TrialStatus
from bench.records.training import TrainingRecord
from bench.workloads.distributed.torchrun import descendants
from bench.workloads.finetune.rank_spec import STOP_FILE
from reports.read import steps as so_far
from tests.support import tiny_training
from tests.support.forked import ForkServer
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import alive, end
from tests.support.thorough import only_thorough

WAIT_SEC = 240.0
STEPS = 12
# A trial whose training keeps no checkpoint after this step before the gate is there, so that whoever strikes is never
# too late, however busy the machine. Ranks are forked from the trial's process: what is changed here, they have too.
HELD = """
import runpy, sys, time
from pathlib import Path
from bench.workloads.finetune.checkpoints.checkpoint_manager import Keeper

last, gate, take = int(sys.argv[1]), Path(sys.argv[2]), Keeper.take

def held(keeper, state, history, *, wait=False):
    while state.step > last and not gate.exists():
        time.sleep(0.01)
    return take(keeper, state, history, wait=True)

Keeper.take = held
sys.argv[1:] = sys.argv[3:]
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Attempts:
    """Attempts of one training, each a `python -m bench run` of its own, with the checkpoints in one folder."""

    def __init__(self, place: Path, server: ForkServer, environment: dict[str, str], inputs: tuple[Path, Path]) -> None:
        self.place, self.server, self.inputs, self.number = place, server, inputs, 0
        (place / "tmp").mkdir(parents=True)
        self.environment = environment | {"TMPDIR": str(place / "tmp")}
        self.started: list[subprocess.Popen] = []

    @property
    def out(self) -> Path:
        return self.place / f"out-{self.number}"

    @property
    def gate(self) -> Path:
        """Where it is there, the attempt is held no longer."""
        return self.place / f"gate-{self.number}"

    def start(
        self, *, ranks: int = 2, held_after: int | None = None, max_hours: float | None = None
    ) -> subprocess.Popen:
        self.number += 1
        training = {"epochs": 2.0, "max_steps": STEPS, "rows_per_step": 4, "evaluate_every": 0, "max_hours": max_hours}
        trial = tiny_training.plan(*self.inputs, world_size=ranks, training=training)
        (self.place / "trial.json").write_text(trial.to_text())
        program = ("-m", "bench") if held_after is None else ("-c", HELD, str(held_after), str(self.gate))
        words = (
            *(*program, "run", "--trial", str(self.place / "trial.json"), "--out", str(self.out)),
            *("--checkpoints", str(self.place / "checkpoints"), "--attempt", str(self.number)),
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.server.start(*words, env=self.environment, start_new_session=True, **pipes)
        self.started.append(process)
        return process

    def finish(self, *, ranks: int = 2) -> TrainingRecord:
        process = self.start(ranks=ranks)
        said, _ = process.communicate(timeout=WAIT_SEC)
        assert process.returncode == 0, said
        return TrainingRecord.read(self.out / "training.json")

    def at_step(self, process: subprocess.Popen, step: int) -> dict[int, int]:
        """Wait until a checkpoint of this step and ranks are there; their pids by rank."""

        def reached() -> dict[int, int]:
            assert process.poll() is None, process.communicate()
            signs = (self.place / "tmp").glob("qlora-fleet-ranks-*/rank-*.json")
            pids = [(int(path.stem.removeprefix("rank-")), json.loads(path.read_text())["pid"]) for path in signs]
            there = (self.place / "checkpoints").glob("step-*")
            if not any(path.name >= f"step-{step:08}" for path in there):
                return {}
            return {rank: pid for rank, pid in pids if alive([pid])}  # a killed attempt leaves its signs

        return wait_for(reached, f"a checkpoint of step {step}", WAIT_SEC)


def check_same(found: TrainingRecord, quiet: TrainingRecord) -> None:
    """The adapter bit by bit, every loss, and every step once."""
    assert found.adapter_sha256 == quiet.adapter_sha256
    assert found.steps.loss == quiet.steps.loss
    assert found.steps.step == list(range(1, STEPS + 1))


@pytest.fixture(scope="module")
def attempts(bench_environment, bench_server, tmp_path_factory) -> Iterator[Callable[[str], Attempts]]:
    """Trainings by name, over one model and one data file."""
    place, made = tmp_path_factory.mktemp("finetune"), list[Attempts]()
    folder = tiny_training.make_folder(torch_stack.load(), place / "models" / "tiny--tiny", layers=1)
    data = tiny_training.make_data(place / "chats.jsonl")

    def make(name: str) -> Attempts:
        made.append(Attempts(place / name, bench_server, bench_environment, (folder, data)))
        return made[-1]

    yield make
    end([process for each in made for process in each.started])


@pytest.fixture(scope="module")
def quiet(attempts) -> TrainingRecord:
    """A training of two ranks that nobody touches."""
    return attempts("quiet").finish()


def test_killed_stopped_and_gone_on_from_two_ranks_end_with_the_quiet_adapter(attempts, quiet):
    assert (quiet.status, quiet.stop, quiet.steps_done, quiet.restarts) == ("SUCCEEDED", "finished", STEPS, [])
    assert quiet.communication_predicted_percent is not None

    training = attempts("disturbed")
    process = training.start(held_after=2)
    os.kill(training.at_step(process, 2)[1], signal.SIGKILL)
    process.communicate(timeout=WAIT_SEC)
    lost = TrialResult.read(training.out / "result.json")
    assert (process.returncode, lost.status) == (1, TrialStatus.LOST)
    assert "rank 1 was killed by SIGKILL" in str(lost.reason)

    process = training.start(held_after=5)
    training.at_step(process, 5)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: [*training.place.glob(f"tmp/*/{STOP_FILE}")], "the ranks being told", WAIT_SEC)
    training.gate.touch()
    process.communicate(timeout=WAIT_SEC)
    stopped = TrainingRecord.read(training.out / "training.json")
    assert (process.returncode, stopped.status) == (143, "PREEMPTED")
    newest = max(path.name for path in (training.place / "checkpoints").glob("step-*"))
    assert newest == f"step-{stopped.steps_done:08}"  # a checkpoint at once: nothing of what was done is lost

    process = training.start(held_after=stopped.steps_done + 1)
    training.at_step(process, stopped.steps_done + 1)
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    seen, _ = so_far.read(training.out / "steps.jsonl")
    wait_for(lambda: not alive(below), "the ranks' end", WAIT_SEC)

    found = training.finish()
    check_same(found, quiet)
    assert so_far.read(training.out / "steps.jsonl") == (found.steps, found.evaluations)
    assert seen.loss == found.steps.loss[: len(seen.loss)] != []
    reasons = [restart.reason for restart in found.restarts]
    assert [words.partition(":")[0] for words in reasons] == ["LOST", "PREEMPTED", "ended without a word"]
    assert [restart.attempt for restart in found.restarts] == [2, 3, 4]
    assert [restart.from_step for restart in found.restarts] == [2, stopped.steps_done, stopped.steps_done + 1]
    assert found.restarts[1].lost_steps == 0


@only_thorough
@pytest.mark.parametrize("seed", range(1, 6))
def test_ranks_killed_at_moments_of_a_seed_end_with_the_quiet_adapter(attempts, quiet, seed: int) -> None:
    """One rank, both, their torchrun, and the trial's process with all: each once, in any order, from start to end."""
    chooser, training = random.Random(seed), attempts(f"seed-{seed}")
    struck = ["a rank", "all ranks", "their torchrun", "everything"]
    chooser.shuffle(struck)
    for number, what in enumerate(struck):
        process = training.start(held_after=2 + 3 * number)
        ranks = training.at_step(process, 1 + 3 * number)
        time.sleep(chooser.uniform(0.0, 0.5))  # a step takes some tenths of a second
        below = descendants(process.pid)
        one = chooser.choice([*ranks.values()])
        for pid in {"a rank": [one], "their torchrun": below[:1]}.get(what, [*ranks.values()]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if what == "everything":
            process.kill()
        process.communicate(timeout=WAIT_SEC)
        wait_for(lambda pids=below: not alive(pids), "the ranks' end", WAIT_SEC)
    check_same(training.finish(), quiet)


def test_on_four_then_two_then_four_ranks_the_same_batches_give_the_same_losses(attempts, quiet):
    training = attempts("changing")
    for ranks in (4, 2):
        process = training.start(ranks=ranks, max_hours=1e-9)  # over before the first step ends: one step an attempt
        said, _ = process.communicate(timeout=WAIT_SEC)
        assert process.returncode == 143, said
    found = training.finish(ranks=4)
    assert [restart.reason.partition(":")[0] for restart in found.restarts] == ["PREEMPTED", "PREEMPTED"]
    assert [restart.from_step for restart in found.restarts] == [1, 2]
    assert found.steps.targets == quiet.steps.targets
    assert found.steps.learning_rate == quiet.steps.learning_rate
    assert found.steps.loss == pytest.approx(quiet.steps.loss, rel=1e-4)
