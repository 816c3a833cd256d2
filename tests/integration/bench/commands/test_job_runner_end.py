"""The other pods of a training's Job: their attempts end with the training."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.commands import job_runner
from bench.commands.job_runner import JobRunner
from bench.records import Trial
from bench.records.run import PlannedTrial, TrainingJobEnd, TrainingJobSpec
from bench.records.status import ReasonCode, TrialStatus


@pytest.fixture
def other_pod(tmp_path: Path, make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch) -> JobRunner:
    """Second of two pods, whose attempts wait for the first one: a program that sleeps."""
    order = TrainingJobSpec(
        run_id="r1",
        planned=PlannedTrial(trial_id="train", trial=make_trial(kind="distributed", world_size=2), worker="worker-0"),
        shared=str(tmp_path),
        turn=1,
        after=0,
        max_restarts=2,
        port=21_000,
        token="t",
    )
    (tmp_path / "r1").mkdir()
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho >> $0.started\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(job_runner.sys, "executable", str(program))
    monkeypatch.setattr(job_runner, "RETRY_DELAY_SEC", 0.05)
    monkeypatch.setattr(job_runner.signal, "signal", lambda *_: None)
    return JobRunner(order, 1, "train")


def test_an_attempt_that_waits_for_the_first_pod_ends_with_the_training(other_pod: JobRunner, tmp_path: Path) -> None:
    end = TrainingJobEnd(attempt=1, end=TrialStatus.FAILED, reason="loss", reason_code=ReasonCode.ERROR)

    def write_end() -> None:
        while not (tmp_path / "python.started").exists():
            time.sleep(0.01)
        end.write(other_pod.folder, 1)

    began = time.monotonic()
    writer = threading.Thread(target=write_end)
    writer.start()
    assert other_pod.run() == 0
    writer.join()
    assert other_pod.run() == 0
    assert time.monotonic() - began < 30.0, "not the 180 s of a rendezvous"
    assert (tmp_path / "python.started").read_text() == "\n", "no attempt begins after the end"
