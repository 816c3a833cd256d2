"""Real ranks of a fine-tuning: killed, stopped and resumed, they end with the adapter of an undisturbed training.

Trials and their ranks are forked from a server that has imported the stack. Not covered: GPUs; ranks on several
machines (test_finetune_network.py).
"""

import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.records.result import TrialResult
from bench.records.status import ExitCode, TrialStatus
from bench.records.training import DerivedSettings, TrainingRecord
from bench.workloads.finetune.derived import derive
from bench.workloads.ranks.launcher import STOP_FILE
from tests.support import tiny_training
from tests.support.hosts.attempts import WAIT_SEC, Attempts
from tests.support.hosts.local_fleet import wait_for
from tests.support.hosts.rank_pids import alive, descendant_pids, kill_trials

STEPS = 9
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Training(Attempts):
    """The attempts of one training of STEPS steps, which derive settings from the data if the plan does not."""

    inputs: tuple[Path, Path]
    score: str | None = None
    plans_values = False

    def begin(self, *, ranks: int = 2, held_after: int | None = None) -> subprocess.Popen[str]:
        training = {"epochs": 2.0, "max_steps": STEPS, "rows_per_step": 4, "evaluate_every": 0, "score": self.score}
        trial = tiny_training.plan(*self.inputs, world_size=ranks, training=training)
        trial = dataclasses.replace(trial, derive=("validation_share", "warmup_share"))
        if self.plans_values:
            trial = trial.with_derived(derive(trial, None, DerivedSettings())[1])
        (process,) = self.start(trial, held_after=held_after)
        if held_after is not None:
            self.wait_for_checkpoint([process], held_after)
        return process

    def finish(self, *, ranks: int = 2) -> TrainingRecord:
        process = self.begin(ranks=ranks)
        output, _ = process.communicate(timeout=WAIT_SEC)
        assert process.returncode == 0, output
        return TrainingRecord.read(self.out / "training.json")


@pytest.fixture
def trainings(bench_environment, bench_server, tiny_inputs, tmp_path) -> Iterator[Callable[[str], Training]]:
    """Return a function that makes trainings by name, over one model and one data file."""
    made = list[Training]()

    def make(name: str) -> Training:
        made.append(Training(tmp_path / name, bench_server, bench_environment))
        made[-1].inputs = tiny_inputs
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
    quiet.plans_values = True  # instead of deriving them from the data
    undisturbed = quiet.finish()
    assert (undisturbed.status, undisturbed.stop, undisturbed.derived) == ("SUCCEEDED", "finished", DerivedSettings())
    assert (undisturbed.steps_done, undisturbed.restarts) == (STEPS, [])

    training, rows = trainings("disturbed"), undisturbed.evaluations[0].rows
    (training.home / "my.py").write_text(SCORE_FILE.format(home=str(training.home), rows=rows))
    training.score = str(training.home / "my.py")
    process = training.begin(held_after=2)
    out, ranks = training.out, training.rank_pids()
    output, _ = (second := training.begin()).communicate(timeout=WAIT_SEC)
    assert second.returncode == ExitCode.REFUSED
    assert f"checkpoints: in use by attempt 1, process {process.pid} on " in output.splitlines()[-1]
    assert not (training.out / "result.json").exists()
    training.number = 1
    os.kill(ranks[1], signal.SIGKILL)
    process.communicate(timeout=WAIT_SEC)
    lost = TrialResult.read(out / "result.json")
    assert (process.returncode, lost.status) == (1, TrialStatus.LOST)
    assert re.search("rank 1 .*SIGKILL", str(lost.reason))

    process = training.begin(held_after=5)
    process.send_signal(signal.SIGTERM)
    wait_for(lambda: [*training.home.glob(f"tmp-*/*/{STOP_FILE}")], "the stop file", WAIT_SEC)
    training.gate.touch()
    process.communicate(timeout=WAIT_SEC)
    stopped = TrainingRecord.read(training.out / "training.json")
    assert (process.returncode, stopped.status) == (143, "PREEMPTED")
    assert training.newest_step == stopped.steps_done, "an immediate checkpoint: no completed step is lost"

    process = training.begin(held_after=stopped.steps_done + 1)
    descendants = descendant_pids(process.pid)
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(descendants), "the ranks' end", WAIT_SEC)

    process = training.begin()
    wait_for((training.home / "held").exists, "the last score", WAIT_SEC)
    descendants = descendant_pids(process.pid)
    os.kill(training.rank_pids()[1], signal.SIGKILL)
    process.communicate(timeout=WAIT_SEC)
    assert TrialResult.read(training.out / "result.json").status is TrialStatus.LOST
    wait_for(lambda: not alive(descendants), "the end of ranks and score", WAIT_SEC)

    (training.home / "score").touch()
    record = training.finish()
    assert record.adapter_sha256 == undisturbed.adapter_sha256
    assert record.steps.loss == undisturbed.steps.loss
    assert record.steps.step == list(range(1, STEPS + 1)), "every step is recorded once"
    assert record.derived.warmup_share == 0.1, "the attempt derives what the plan leaves open"
    assert [restart.attempt for restart in record.restarts] == [2, 3, 4, 5]
    steps = [2, stopped.steps_done, stopped.steps_done + 1, STEPS]
    assert [restart.from_step for restart in record.restarts] == steps
    assert record.restarts[0].since_checkpoint_sec is not None
    assert (training.home / "calls").stat().st_size == 2 * rows + 1, "the answers before are scored once"
    assert record.score is not None
    assert (record.score.before, record.score.after) == ([0.25] * rows, [0.25] * rows)

    single = trainings("single").finish(ranks=1)
    assert single.steps.targets == undisturbed.steps.targets
    assert single.steps.learning_rate == undisturbed.steps.learning_rate
    assert single.steps.loss == pytest.approx(undisturbed.steps.loss, rel=1e-4)
