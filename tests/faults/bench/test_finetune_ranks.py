"""Real ranks of a fine-tuning: killed, stopped and resumed, they end with the adapter of an undisturbed training.

Trials and their ranks are forked from a server that has imported the stack. Not covered: GPUs; ranks on several
machines, whose parents work as in a distributed trial (test_distributed_nodes.py).
"""

import dataclasses
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.records.result import TrialResult
from bench.records.status import ExitCode, TrialStatus
from bench.records.training import DerivedSettings, TrainingRecord
from bench.workloads.finetune.derived import derive
from bench.workloads.finetune.finetune import STOP_FILE
from tests.support import tiny_training
from tests.support.forked import ForkServer
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import alive, descendant_pids, kill_trials

WAIT_SEC = 240.0
STEPS = 9
# A trial whose training writes no checkpoint after this step until the gate file exists, so that a test can always
# interrupt it in time, even on a busy machine. Ranks are forked from the trial's process and inherit the change.
HELD_TRIAL = f"""
import runpy, sys
from pathlib import Path

last, gate = int(sys.argv[1]), Path(sys.argv[2])
{tiny_training.HELD_SAVES}
sys.argv[1:] = sys.argv[3:]
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Attempts:
    """The attempts of one training: one `python -m bench run` each, with a common folder of checkpoints."""

    def __init__(self, home: Path, server: ForkServer, environment: dict[str, str], inputs: tuple[Path, Path]) -> None:
        self.home, self.server, self.inputs, self.number = home, server, inputs, 0
        (home / "tmp").mkdir(parents=True)
        self.environment = environment | {"TMPDIR": str(home / "tmp")}
        self.started: list[subprocess.Popen] = []
        self.score: str | None = None
        self.plans_values = False  # the plan has the values that the attempts otherwise derive from the data

    @property
    def out(self) -> Path:
        return self.home / f"out-{self.number}"

    @property
    def gate(self) -> Path:
        """A file that, once it exists, lets the held attempt continue."""
        return self.home / f"gate-{self.number}"

    def start(self, *, ranks: int = 2, held_after: int | None = None) -> subprocess.Popen:
        self.number += 1
        training = {"epochs": 2.0, "max_steps": STEPS, "rows_per_step": 4, "evaluate_every": 0, "score": self.score}
        trial = tiny_training.plan(*self.inputs, world_size=ranks, training=training)
        trial = dataclasses.replace(trial, derive=("validation_share", "warmup_share"))
        if self.plans_values:
            trial = trial.with_derived(derive(trial, None, DerivedSettings())[1])
        (self.home / "trial.json").write_text(trial.to_text())
        held = ("-c", HELD_TRIAL, str(held_after), str(self.gate))
        program = ("-m", "bench") if held_after is None else held
        argv = (
            *(*program, "run", "--trial", str(self.home / "trial.json"), "--out", str(self.out)),
            *("--checkpoints", str(self.home / "checkpoints"), "--attempt", str(self.number)),
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.server.start(*argv, env=self.environment, start_new_session=True, **pipes)
        self.started.append(process)
        return process

    def finish(self, **options: Any) -> TrainingRecord:
        process = self.start(**options)
        output, _ = process.communicate(timeout=WAIT_SEC)
        assert process.returncode == 0, output
        return TrainingRecord.read(self.out / "training.json")

    def wait_for_step(self, process: subprocess.Popen, step: int) -> dict[int, int]:
        """Wait for a checkpoint of this step; return the ranks' pids by rank."""

        def living_ranks() -> dict[int, int]:
            assert process.poll() is None, process.communicate()
            heartbeats = (self.home / "tmp").glob("qlora-fleet-ranks-*/rank-*.json")
            pids = [(int(path.stem.removeprefix("rank-")), json.loads(path.read_text())["pid"]) for path in heartbeats]
            checkpoints = (self.home / "checkpoints").glob("step-*")
            if not any(path.name >= f"step-{step:08}" for path in checkpoints):
                return {}
            return {rank: pid for rank, pid in pids if alive([pid])}  # a killed attempt leaves its heartbeat files

        return wait_for(living_ranks, f"a checkpoint of step {step}", WAIT_SEC)


def written_losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "steps.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line]


def check_same(record: TrainingRecord, undisturbed: TrainingRecord) -> None:
    """Check that the adapter's bits and all losses are equal, and that every step is recorded once."""
    assert record.adapter_sha256 == undisturbed.adapter_sha256
    assert record.steps.loss == undisturbed.steps.loss
    assert record.steps.step == list(range(1, STEPS + 1))
    assert record.derived.warmup_share == 0.1, "the attempt derives what the plan leaves open"


@pytest.fixture(scope="module")
def attempts(bench_environment, bench_server, tiny_inputs, tmp_path_factory) -> Iterator[Callable[[str], Attempts]]:
    """Return a function that makes trainings by name, over one model and one data file."""
    root, trainings = tmp_path_factory.mktemp("finetune"), list[Attempts]()

    def make(name: str) -> Attempts:
        trainings.append(Attempts(root / name, bench_server, bench_environment, tiny_inputs))
        return trainings[-1]

    yield make
    kill_trials([process for training in trainings for process in training.started])


@pytest.fixture(scope="module")
def undisturbed(attempts) -> TrainingRecord:
    """Return the record of an undisturbed training of two ranks, whose plan has the values derived from the data."""
    training = attempts("quiet")
    training.plans_values = True
    record = training.finish()
    assert record.derived == DerivedSettings()
    return record


def test_two_ranks_killed_stopped_and_resumed_end_with_the_undisturbed_adapter(attempts, undisturbed):
    assert (undisturbed.status, undisturbed.stop) == ("SUCCEEDED", "finished")
    assert (undisturbed.steps_done, undisturbed.restarts) == (STEPS, [])

    training = attempts("disturbed")
    process, out = training.start(held_after=2), training.out
    ranks = training.wait_for_step(process, 2)
    output, _ = (second := training.start()).communicate(timeout=WAIT_SEC)
    assert second.returncode == ExitCode.REFUSED
    assert f"checkpoints: in use by attempt 1, process {process.pid} on " in output.splitlines()[-1]
    assert not (training.out / "result.json").exists()
    training.number = 1
    os.kill(ranks[1], signal.SIGKILL)
    process.communicate(timeout=WAIT_SEC)
    lost = TrialResult.read(out / "result.json")
    assert (process.returncode, lost.status) == (1, TrialStatus.LOST)
    assert re.search("rank 1 .*SIGKILL", str(lost.reason))

    process = training.start(held_after=5)
    training.wait_for_step(process, 5)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: [*training.home.glob(f"tmp/*/{STOP_FILE}")], "the stop file", WAIT_SEC)
    training.gate.touch()
    process.communicate(timeout=WAIT_SEC)
    stopped = TrainingRecord.read(training.out / "training.json")
    assert (process.returncode, stopped.status) == (143, "PREEMPTED")
    newest = max(path.name for path in (training.home / "checkpoints").glob("step-*"))
    assert newest == f"step-{stopped.steps_done:08}"  # an immediate checkpoint: no completed step is lost

    process = training.start(held_after=stopped.steps_done + 1)
    training.wait_for_step(process, stopped.steps_done + 1)
    descendants = descendant_pids(process.pid)
    process.kill()
    process.communicate()
    early_losses = written_losses(training.out)
    wait_for(lambda: not alive(descendants), "the ranks' end", WAIT_SEC)

    record = training.finish()
    check_same(record, undisturbed)
    assert written_losses(training.out) == record.steps.loss
    assert early_losses == record.steps.loss[: len(early_losses)] != []
    assert [restart.attempt for restart in record.restarts] == [2, 3, 4]
    assert [restart.from_step for restart in record.restarts] == [2, stopped.steps_done, stopped.steps_done + 1]
    killed = record.restarts.pop(1)  # perhaps before it knew of its step
    assert killed.attempt == 3
    assert None not in [restart.since_checkpoint_sec for restart in record.restarts]


SCORE_FILE = """
import os, time
from pathlib import Path

def score(prompt, answer, expected):
    home = Path({home!r})
    with (home / "calls").open("a") as calls:
        calls.write("x")
    if (home / "calls").stat().st_size > {rows} and not (home / "gate").exists():
        (home / "held").touch()
        time.sleep(20)
    return 0.25
"""


def test_a_rank_killed_during_the_last_score_repeats_this_score_and_no_step(attempts, undisturbed):
    training, rows = attempts("scored"), undisturbed.evaluations[0].rows
    (training.home / "my.py").write_text(SCORE_FILE.format(home=str(training.home), rows=rows))
    training.score = str(training.home / "my.py")
    process = training.start()
    wait_for((training.home / "held").exists, "the last score", WAIT_SEC)
    descendants = descendant_pids(process.pid)
    os.kill(training.wait_for_step(process, STEPS)[1], signal.SIGKILL)
    process.communicate(timeout=WAIT_SEC)
    assert TrialResult.read(training.out / "result.json").status is TrialStatus.LOST
    wait_for(lambda: not alive(descendants), "the end of ranks and score", WAIT_SEC)

    (training.home / "gate").touch()
    record = training.finish()
    check_same(record, undisturbed)
    assert [restart.from_step for restart in record.restarts] == [STEPS]
    assert (training.home / "calls").stat().st_size == 2 * rows + 1, "the answers before are scored once"
    assert record.score is not None
    assert (record.score.before, record.score.after) == ([0.25] * rows, [0.25] * rows)


def test_the_losses_do_not_depend_on_the_number_of_ranks(attempts, undisturbed):
    record = attempts("single").finish(ranks=1)
    assert record.steps.targets == undisturbed.steps.targets
    assert record.steps.learning_rate == undisturbed.steps.learning_rate
    assert record.steps.loss == pytest.approx(undisturbed.steps.loss, rel=1e-4)
