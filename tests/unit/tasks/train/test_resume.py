"""Output of `inv train --resume` that changes nothing, for each end of the ledger."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from invoke import Context

from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import PlannedTrial, Progress, RunRecord
from bench.records.status import Outcome, TrialStatus
from remote.fleet.events import EventType, FleetEvent
from remote.fleet.ledger import Ledger
from tasks.commands import TrainOptions
from tasks.errors import RetryableError, SomeTrialsFailed, TaskFailed, UsageError
from tasks.fleet.training_progress import TrainingSpend, TrainingView
from tasks.settings.load import Settings
from tasks.train import resume, submit_job, train, trial_spec
from tasks.train.session import TrainingSession
from tasks.train.trial_spec import TRIAL_ID
from tests.support.reports import synthetic
from tests.unit.tasks.train.conftest import MakeSettings

RUN = "20260101-000000-train"
DRY_RUN = TrainOptions(resume=RUN, dry_run=True, plain=True)


@pytest.mark.parametrize(
    ("end", "reason", "state"),
    [
        (TrialStatus.SUCCEEDED, None, resume.ALREADY_DONE),
        (TrialStatus.LOST, "rank 1 is gone", "ended as LOST: rank 1 is gone; nothing was changed"),
        (None, None, "running; nothing was changed"),
    ],
)
def test_a_dry_resume_prints_the_state_of_the_training(
    end: TrialStatus | None, reason: str | None, state: str, settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    configured = settings()
    write_training(configured, end, reason)
    resume.resume(configured, RUN, DRY_RUN)
    assert capsys.readouterr().out == f"run {RUN}: {state}\n"


def test_a_resumed_job_that_has_ended_prints_its_end_and_the_next_command(
    settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    configured, options = settings(), dataclasses.replace(DRY_RUN, job=True, dry_run=False)
    folder = write_training(configured, TrialStatus.SUCCEEDED, None, job={"overlay": "job-1gpu"})
    resume.resume(configured, RUN, options)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"run {RUN}: {resume.ALREADY_DONE}; `inv collect --run={RUN}` ")
    (folder / LEDGER_FILE).unlink()
    write_training(configured, TrialStatus.FAILED, "the loss is nan at step 3", job={"overlay": "job-1gpu"})
    with pytest.raises(
        UsageError, match=rf"FAILED: the loss is nan at step 3; .*`inv train --job --resume={RUN} --ret"
    ):
        resume.resume(configured, RUN, options)


@pytest.mark.parametrize("flag", ["retry_failed", "changed"])
@pytest.mark.parametrize("status", [TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.TIMED_OUT])
def test_a_failed_job_with_equal_settings_is_submitted_again_on_request(
    status: TrialStatus, flag: str, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = settings()
    options = dataclasses.replace(DRY_RUN, job=True, dry_run=False, **{flag: True})
    job = {"overlay": "job-1gpu", "turn": 1, "after": 0, "shared": "/results"}
    folder = write_training(configured, status, "no rank has ended its step", job=job)
    before = RunRecord.read(folder / RUN_FILE).planned
    monkeypatch.setattr(submit_job, "submit", lambda _settings, _run, _options, on_accepted: on_accepted())
    resume.resume(configured, RUN, options)
    run, ledger = RunRecord.read(folder / RUN_FILE), Ledger(folder / LEDGER_FILE)
    assert run.provenance["inputs"]["job"]["turn"] == 2
    assert (run.planned == before) == (flag == "retry_failed")  # what --changed allows to differ is in the plan
    assert ledger.is_open(TRIAL_ID)


@pytest.mark.parametrize(
    ("status", "error"), [(TrialStatus.LOST, RetryableError), (TrialStatus.FAILED, SomeTrialsFailed)]
)
def test_a_training_that_ended_early_names_its_last_checkpoint_and_the_command(
    status: TrialStatus, error: type[TaskFailed], settings: MakeSettings
) -> None:
    configured = settings()
    folder = write_training(configured, status, "rank 1 is gone")
    run, ledger = RunRecord.read(folder / RUN_FILE), Ledger(folder / LEDGER_FILE)
    view = TrainingView(run_id=RUN, read_spend=lambda: TrainingSpend(usd=None, restarts=0), plain=True)
    progress = Progress(phase="train", step=17, steps=30, elapsed_sec=1.0, checkpoint_step=15)
    for event in (
        FleetEvent(kind=EventType.PROGRESS, worker="w", progress=progress),
        FleetEvent(kind=EventType.STARTED, worker="w"),
    ):
        view.handle(event)
    session = TrainingSession.create(configured, run, folder, ledger, [])
    with pytest.raises(error, match="checkpoint: step 15") as raised:
        session.report_outcome(view.checkpoint_step)
    assert f"`inv train --resume={RUN}" in str(raised.value.remedy)


@pytest.mark.parametrize("flag", ["changed", "retry_failed"])
def test_flags_of_a_resume_need_one(flag: str, context: Callable[..., Context]) -> None:
    options = dataclasses.replace(DRY_RUN, resume=None, **{flag: True})
    with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')} "):
        train.train_fleet(context(), options)


def write_training(configured: Settings, end: TrialStatus | None, reason: str | None, **inputs: object) -> Path:
    """Write a training with one attempt that ended so; None: it is running. Returns its folder."""
    plan = PlannedTrial(trial_id=TRIAL_ID, trial=trial_spec.make_trial(configured, None, workers=1, max_hours=None))
    public = json.loads(json.dumps(configured.public()))
    run = synthetic.record(run_id=RUN, suite="train", planned=[plan], settings=public)
    run = dataclasses.replace(run, provenance={**run.provenance, "inputs": inputs})
    folder = configured.results_folder / RUN
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder)
    ledger = Ledger.create(folder / LEDGER_FILE, [TRIAL_ID])
    ledger.record_start(TRIAL_ID, 1, "worker-0", "/job")
    if end is not None:
        ledger.record_end(TRIAL_ID, Outcome(end, reason=reason), 1)
    return folder
