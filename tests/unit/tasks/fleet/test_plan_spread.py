"""What runs where, and how often, before anything starts."""

from collections import Counter
from pathlib import Path

import pytest

from bench.records import suite
from bench.records.run import PlannedTrial
from remote.hosts.local import LocalHost
from tasks.connect.workers import launcher
from tasks.fleet.plan import plan_trials
from tasks.settings.load import Settings

TRIALS = suite("quick", "tiny", "models/m", "data/d.jsonl")
WORKERS = ["worker-0", "worker-1", "worker-2"]


def ids(spread: str, repeats: int = 1) -> list[str]:
    return [planned.trial_id for planned in plan_trials(TRIALS, WORKERS, spread, repeats)]


def test_replicate_runs_every_trial_on_every_worker() -> None:
    assert ids("replicate") == [f"{trial.trial_id}.{worker}" for trial in TRIALS for worker in WORKERS]


def test_shard_runs_every_trial_once_and_anywhere() -> None:
    assert ids("shard") == [trial.trial_id for trial in TRIALS]
    assert {planned.worker for planned in plan_trials(TRIALS, WORKERS, "shard")} == {None}


@pytest.mark.parametrize("spread", ["replicate", "shard"])
def test_a_round_of_all_trials_ends_before_the_next_begins(spread: str) -> None:
    once, thrice = plan_trials(TRIALS, WORKERS, spread), plan_trials(TRIALS, WORKERS, spread, 3)
    assert [(planned.trial, planned.worker) for planned in thrice] == 3 * [(one.trial, one.worker) for one in once]


@pytest.mark.parametrize("spread", ["replicate", "shard"])
def test_each_repeat_has_an_id_of_its_own(spread: str) -> None:
    named = ids(spread, 3)
    assert max(Counter(named).values()) == 1
    assert Counter(name.rsplit(".", 1)[1] for name in named) == dict.fromkeys(("r1", "r2", "r3"), len(named) // 3)


def test_strict_reaches_the_command_that_runs_the_trial(tmp_path: Path) -> None:
    host = LocalHost(name="worker-0", workdir=str(tmp_path))
    planned = PlannedTrial(trial_id="optimized", trial=TRIALS[1])
    said = {
        strict: launcher(Settings(root=tmp_path), "run", strict=strict)(host, planned, 1, "/jobs/1").argv
        for strict in (False, True)
    }
    assert "--strict" not in said[False]
    assert said[True] == (*said[False], "--strict")
