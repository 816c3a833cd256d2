"""`inv bench` from the operator's view: killed, interrupted, started twice, with bad input.

Everything is real, except that trainings compute nothing with the fixture `hold`, and that the trials of
`forked_trials` are forked from a process that has imported the stack.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from bench.records.paths import QUALITY_FILE
from bench.records.quality import QualityRecord
from bench.records.result import TrialResult
from tests.support.thorough import only_thorough

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def assert_each_trial_ended_once_as(project, end: str) -> None:
    ends = project.statuses()
    assert set(ends.values()) == {end}
    statuses = {name: (result.trial_id, result.status.value) for name, result in project.results().items()}
    assert statuses == {trial_id: (trial_id, end) for trial_id in ends}


def test_a_run_killed_twice_is_completed_by_resume_and_repeats_nothing(project, hold_file: Path) -> None:
    hold_file.touch()
    first = project.start("bench", "--quick")
    project.wait_until(lambda: len(project.trainers()) == 2, "both workers to have a trial")
    assert f"process {first.pid} of " in project.inv_error("bench", "--quick", code=4)
    project.kill(first)
    assert len(project.trainers()) == 2, "the trials go on without their operator"
    run = project.run_folder().name
    assert f"inv bench --resume={run}" in project.inv_error("bench", "--quick", code=3)
    assert project.run_folder().name == run

    second = project.start("bench", "--resume")
    hold_file.unlink()
    project.wait_until(lambda: project.events("ended"), "the first end")
    hold_file.touch()
    project.kill(second)
    hold_file.unlink()

    project.inv("bench", f"--resume={run}")
    assert_each_trial_ended_once_as(project, "SUCCEEDED")
    assert set(Counter(event["trial_id"] for event in project.events("started")).values()) == {1}
    assert not project.trainers()

    assert "nothing to resume" in project.inv("bench", "--resume").stdout


def test_ctrl_c_stops_the_workers_and_resume_completes(project, hold_file: Path) -> None:
    hold_file.touch()
    interrupted = project.start("bench", "--quick", "--only=baseline")
    project.wait_until(
        lambda: [progress for progress in project.progress() if progress["phase"] != "import"], "a trial under way"
    )
    assert "--resume=" in project.interrupt(interrupted)
    assert not project.trainers()
    assert list(project.statuses().values()) == ["CANCELLED"] * 2

    hold_file.unlink()
    project.inv("bench", "--resume")
    last = {event["trial_id"]: event["end"] for event in project.events("ended")}
    assert set(last.values()) == {"SUCCEEDED"}
    assert len(project.events("reopened")) == 2


@pytest.mark.usefixtures("hold_file", "forked_trials")
def test_a_killed_comparison_of_8_bit_products_is_resumed_and_its_answer_trained(project) -> None:
    small = {
        "INVOKE_FLEET_SIZE": "1",
        "INVOKE_QUALITY_PAIRS": "2",
        "INVOKE_QUALITY_STEPS": "2",
        "INVOKE_QUALITY_MAX_INCREASE_PERCENT": "100",
        "INVOKE_TRAIN_ROWS_PER_STEP": "1",
        "INVOKE_TRAIN_MICRO_BATCH_SIZE": "1",
    }
    results = project.folder / "results"
    first = project.start("bench", "--suite=recipes", "--only=reference,fast-int8", "--quality", **small)
    project.wait_until(lambda: any(project.folder.glob(".workers/*/runs/*-quality")), "a pair's training")
    project.kill(first)
    run = project.run_folder()
    assert run.name.endswith("-recipes"), "the benchmark stays the newest run"

    project.inv("bench", "--resume", **small)
    (check,) = QualityRecord.read(run / QUALITY_FILE).checks
    assert (check.trial.matmul, check.reference.matmul) == ("int8", "bf16")
    assert ([pair.seed for pair in check.pairs], check.reason) == ([42, 43], None)
    (compared,) = results.glob("*-quality/ledger.jsonl")
    assert Counter(json.loads(line)["event"] for line in compared.read_text().splitlines())["ended"] == 4
    planned = json.loads(project.inv("train", f"--from={run.name}", "--dry-run", "--json", **small).stdout)
    assert (planned["trial"]["recipe"], planned["trial"]["matmul"]) == ("fast", "int8")


@only_thorough
@pytest.mark.usefixtures("forked_trials")
def test_every_trial_of_every_suite_is_measured_collected_and_reported(project) -> None:
    # On a CPU, a step with the base in bf16 takes as long as ten others.
    few = {"INVOKE_FLEET_SIZE": "1", "INVOKE_BENCH_WARMUP_STEPS": "1", "INVOKE_BENCH_MEASURED_STEPS": "2"}
    project.inv("bench", "--suite=all", "--repeats=1", "collect", "report", **few)
    assert_each_trial_ended_once_as(project, "SUCCEEDED")
    summary = json.loads((project.run_folder() / "report" / "summary.json").read_text())
    assert summary["missing"] == summary["rejected"] == []
    kinds = {"hardware", "loading", "training", "inference", "distributed"}
    assert {result.trial.kind for result in project.results().values()} == kinds


@pytest.mark.usefixtures("hold_file")
def test_collect_heals_what_was_damaged_here_and_is_idempotent(project) -> None:
    project.inv("bench", "--quick", "--only=optimized", "collect")
    (project.run_folder() / "SHA256SUMS").unlink()
    again = project.inv("collect")
    assert "fetched 0 files" in again.stdout
    assert "missing: " not in again.stdout
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=project.run_folder(), check=False)
    assert sums.returncode == 0

    results = sorted(project.run_folder().glob("trials/*/result.json"))
    results[0].unlink()
    damaged = bytearray(results[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    results[1].write_bytes(damaged)
    assert "fetched 2 files" in project.inv("collect").stdout
    assert all(TrialResult.read(path) for path in results)

    shutil.rmtree(project.folder / ".workers" / "worker-1")
    assert "missing: " not in project.inv("collect").stdout, "verified files need no worker"
    assert TrialResult.read(results[1]), "collected files stay"
    results[1].write_bytes(damaged)
    assert "missing: optimized.worker-1" in project.inv("collect", code=3).stdout


def test_bad_input_is_refused_in_one_line_before_anything_starts(project) -> None:
    first, *_ = Path(project.environment["INVOKE_DATA_PATH"]).read_text().splitlines()
    (project.folder / "bad.jsonl").write_text(first + '\n{"messages": [\n')
    assert "inv model.demo" in project.inv_error("bench", "--quick", INVOKE_MODEL_PATH="none")
    assert "line 2" in project.inv_error("bench", "--quick", INVOKE_DATA_PATH="bad.jsonl")
    assert not (project.folder / "results").exists()


def test_a_read_only_results_folder_is_an_error_before_anything_starts(project) -> None:
    if os.geteuid() == 0:
        (project.folder / "results").write_text("a file where the folder should be")
    else:
        (project.folder / "results").mkdir(mode=0o500)
    assert "results.folder" in project.inv_error("bench", "--quick")
    assert not project.processes()


def test_a_results_folder_that_is_full_loses_nothing(project, hold_file: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a small file system is mounted, which needs root")
    results = project.folder / "results"
    results.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(results)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine does not let root mount a tmpfs")
    hold_file.touch()
    try:
        run = project.start("bench", "--quick", "--only=optimized")
        project.wait_until(lambda: len(project.events("started")) == 2, "both trials to have started")
        filler = results / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                pass
        hold_file.unlink()
        assert "inv bench --resume=" in project.wait_for_exit(run, code=3)[1]
        filler.unlink()
        project.inv("bench", "--resume")
        assert_each_trial_ended_once_as(project, "SUCCEEDED")
        assert len(project.events("started")) == 2
    finally:
        project.clean_up()
        subprocess.run(["umount", str(results)], check=True)
