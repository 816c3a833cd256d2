"""A search on this machine: killed, resumed, answered, its answer run. No GPU.

The commands that read model and data are forked, as the trials are (tests/support/forked.py); trainings compute
nothing. Not covered: memory, which has no prediction on a CPU; see tests/unit/tasks/tuning/test_space.py.
"""

import json
from pathlib import Path

import pytest

from bench.records import Trial
from bench.records.paths import QUALITY_FILE
from bench.records.quality import QualityRecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("forked_trials")]
SMALL = {
    "INVOKE_TUNE_TRIALS": "2",
    "INVOKE_TUNE_REPEATS": "2",
    "INVOKE_QUALITY_PAIRS": "2",
    "INVOKE_QUALITY_STEPS": "2",
    "INVOKE_TRAIN_ROWS_PER_STEP": "1",
    "INVOKE_TRAIN_MICRO_BATCH_SIZE": "1",
    "INVOKE_QUALITY_MAX_INCREASE_PERCENT": "100",
}
# A limit that is never reached, so that layers are held; only the recipe `fast` can do that.
HOLDING = "tune:\n  recipes: [fast]\n  memory_gib: 8\n"


def runs_of(project, suite: str) -> list[str]:
    return [path.parent.name for path in (project.folder / "results").glob(f"*-{suite}/run.json")]


def ended_trials(project, run_id: str) -> list[str]:
    lines = (project.folder / "results" / run_id / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line)["trial_id"] for line in lines if json.loads(line)["event"] == "ended"]


def test_a_killed_search_is_resumed_and_its_answer_can_be_run(project, hold_file: Path) -> None:
    (project.folder / "holding.yaml").write_text(HOLDING)
    project.options = ("-f", "holding.yaml")
    planned = project.inv("tune", "--dry-run", **SMALL)
    assert "60 candidates of 88 tokens" in " ".join(planned.stdout.split())
    assert not (project.folder / "results").exists()

    hold_file.touch()
    running = project.start("tune", **SMALL)
    project.wait_until(lambda: len(project.events("started")) == 2, "both trials' start")
    project.kill(running)
    hold_file.unlink()
    (search,) = runs_of(project, "tune")
    assert not runs_of(project, "tuned")
    assert "2 of 2 short trials" in project.inv("tune", "--resume", "--dry-run", **SMALL).stdout

    project.inv("tune", "--resume", **SMALL)
    assert runs_of(project, "tune") == [search], "the short trials were resumed, not started again"
    ended = ended_trials(project, search)
    assert len(ended) == len(set(ended)) == 2

    (final,) = runs_of(project, "tuned")
    baseline, fastest, held = sorted({trial_id.partition(".")[0] for trial_id in ended_trials(project, final)})
    assert baseline == "baseline-4"
    assert held.startswith(f"{fastest}-held-"), "the fastest, and its variant with held layers"
    best = project.folder / "results" / search / "best.json"
    assert Trial.read(best).trial_id in (fastest, held)
    losses = QualityRecord.read(project.folder / "results" / final / QUALITY_FILE)
    (check,) = losses.checks  # the held variant has the losses of the fastest
    assert check.reference.recipe == "reference"
    assert [pair.seed for pair in check.pairs] == [42, 43]

    project.inv("bench", "--trial-file", str(best), "--spread=shard", INVOKE_FLEET_SIZE="1")
    assert "rank 16" in project.inv("train", f"--from={search}", "--workers=1", "--dry-run", **SMALL).stdout


@pytest.mark.parametrize(
    ("argv", "token"),
    [
        (("tune", "--memory-gib=much"), "--memory-gib: expected a number above 0, at most 1024, found 'much'"),
        (("tune", "--resume=none"), "there is no search yet"),
        (("tune", "--resume", "--memory-gib=3"), "leave out --memory-gib"),
        (("tune", "--memory-gib=0.001"), "tune.memory_gib: 0.001 GiB is below the smallest configuration, "),
    ],
)
def test_bad_usage_is_refused_in_one_line(project, argv, token) -> None:
    assert token in project.inv_error(*argv)
    assert not (project.folder / "results").exists()
