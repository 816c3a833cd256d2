"""A search on this machine: killed, resumed, answered, its answer run. No GPU.

The commands that read model and data are forked, as the trials are (tests/support/forked.py); trainings compute
nothing. Not covered: memory, which has no prediction on a CPU; see tests/unit/tasks/tuning/test_search.py.
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
    "INVOKE_TUNE_FINALISTS": "1",
    "INVOKE_TUNE_REPEATS": "1",
    "INVOKE_QUALITY_PAIRS": "2",
    "INVOKE_QUALITY_STEPS": "2",
    "INVOKE_TRAIN_ROWS_PER_STEP": "1",
    "INVOKE_TRAIN_MICRO_BATCH_SIZE": "1",
    "INVOKE_QUALITY_MAX_INCREASE_PERCENT": "100",
}
# A limit that is never reached, so that layers are held; only the recipe `fast` can do that.
HOLDING = "tune:\n  recipes: [fast]\n  memory_gib: 8\n"


def search_folder(project) -> Path:
    (folder,) = (project.folder / "results" / "tune").iterdir()
    return folder


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
    folder = search_folder(project)
    record = json.loads((folder / "tune.json").read_text())
    (wave,) = record["waves"]
    assert record["final"] is None

    project.inv("tune", "--resume", **SMALL)
    record = json.loads((folder / "tune.json").read_text())
    assert record["waves"] == [wave], "the wave was resumed, not started again"
    ended = ended_trials(project, wave)
    assert len(ended) == len(set(ended)) == 2

    answer = json.loads((folder / "answer.json").read_text())
    best = Trial.read(folder / "best.json")
    assert answer["front"][0]["trial"] == best.to_json()
    assert answer["final_run"] == record["final"]
    finalist, held = sorted(ended_trials(project, record["final"]))
    assert held.startswith(f"{finalist}-held-"), "the fastest, and its variant with held layers"
    assert best.trial_id in (finalist, held)
    losses = QualityRecord.read(project.folder / "results" / record["final"] / QUALITY_FILE)
    (check,) = losses.checks  # the held variant has the finalist's losses
    assert check.reference.recipe == "reference"
    assert [pair.seed for pair in check.pairs] == [42, 43]
    assert "difference" in answer["loss"]

    project.inv("bench", "--trial-file", str(folder / "best.json"), "--spread=shard", INVOKE_FLEET_SIZE="1")


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
