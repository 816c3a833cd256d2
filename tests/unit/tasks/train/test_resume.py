"""`inv train --resume`: its output for each end of the ledger; what did not succeed is tried again as planned."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import PlannedTrial, Progress, RunRecord
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from remote.fleet.queue import EventType, FleetEvent
from tasks.commands import TrainOptions
from tasks.errors import RetryableError, SomeTrialsFailed, TaskFailed, UsageError
from tasks.fleet import trial_spec
from tasks.fleet.training_progress import TrainingView
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.load import Settings
from tasks.train import resume, submit_job, train
from tasks.train.session import TrainingSession
from tests.support.answers import print_answer
from tests.support.reports import synthetic
from tests.unit.tasks.train.conftest import MakeSettings

RUN = "20260101-000000-train"
DRY_RUN = TrainOptions(resume=RUN, dry_run=True, plain=True)


@pytest.mark.parametrize(
    ("end", "reason", "state"),
    [
        (TrialStatus.SUCCEEDED, None, resume.ALREADY_DONE),
        (TrialStatus.LOST, "rank 1 is gone", "ended as LOST: rank 1 is gone"),
        (None, None, "running"),
    ],
)
def test_a_dry_resume_prints_the_state_of_the_training(
    end: TrialStatus | None, reason: str | None, state: str, settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    configured = settings()
    write_training(configured, end, reason)
    print_answer(resume.resume(configured, RUN, DRY_RUN))
    assert capsys.readouterr().out.splitlines()[0] == f"run {RUN}: {state}"


def test_a_resumed_job_that_has_ended_prints_its_end_and_the_next_command(
    settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    configured, options = settings(), dataclasses.replace(DRY_RUN, job=True, dry_run=False)
    write_training(configured, TrialStatus.SUCCEEDED, None, job={"overlay": "job-1gpu"})
    resume.resume(configured, RUN, options)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"run {RUN}: {resume.ALREADY_DONE}; `inv collect --run={RUN}` ")


@pytest.mark.parametrize("status", [status for status in TrialStatus if status is not TrialStatus.SUCCEEDED])
def test_a_job_that_did_not_succeed_is_submitted_again_with_its_plan(
    status: TrialStatus, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = settings()
    options = dataclasses.replace(DRY_RUN, job=True, dry_run=False)
    job = {"overlay": "job-1gpu", "turn": 1, "after": 0, "shared": "/results"}
    folder = write_training(configured, status, "no rank has ended its step", job=job)
    before = RunRecord.read(folder / RUN_FILE).planned
    monkeypatch.setattr(submit_job, "submit", lambda _settings, _run, _options, on_accepted: on_accepted())
    resume.resume(configured, RUN, options)
    run, ledger = RunRecord.read(folder / RUN_FILE), Ledger(folder / LEDGER_FILE)
    assert (run.provenance["inputs"]["job"]["turn"], run.provenance["inputs"]["job"]["after"]) == (2, 1)
    assert run.planned == before
    assert ledger.is_open(TRIAL_ID)


@pytest.mark.parametrize("has_end", [False, True])
def test_the_end_on_the_volume_counts_although_the_job_waits_for_a_pod(
    has_end: bool, settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured, submitted = settings(), list[RunRecord]()
    job = {"overlay": "job-4gpu", "turn": 1, "after": 0, "shared": "/results"}
    folder = write_training(configured, None, None, job=job)

    def collect_run(*_: object, may_be_open: bool) -> None:
        if has_end:
            Ledger(folder / LEDGER_FILE).record_end(TRIAL_ID, Outcome(TrialStatus.LOST, reason="GPU 0: XID 79"), 1)
        elif not may_be_open:
            raise RetryableError("it has not ended")

    monkeypatch.setattr(resume, "collect_run", collect_run)
    monkeypatch.setattr(resume, "is_job_active", lambda *_: True)
    monkeypatch.setattr(submit_job, "submit", lambda _settings, run, *_: submitted.append(run))
    options = dataclasses.replace(DRY_RUN, job=True, dry_run=False)
    if has_end:
        resume.resume(configured, RUN, options)
    else:
        with pytest.raises(RetryableError, match="still running"):
            resume.resume(configured, RUN, options)
    assert len(submitted) == has_end


@pytest.mark.parametrize(
    ("status", "error"), [(TrialStatus.LOST, RetryableError), (TrialStatus.FAILED, SomeTrialsFailed)]
)
def test_a_training_that_ended_early_names_its_last_checkpoint_and_the_command(
    status: TrialStatus, error: type[TaskFailed], settings: MakeSettings
) -> None:
    configured = settings()
    folder = write_training(configured, status, "rank 1 is gone")
    run, ledger = RunRecord.read(folder / RUN_FILE), Ledger(folder / LEDGER_FILE)
    view = TrainingView(run_id=RUN, read_attempts=list, price=None, plain=True)
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


@pytest.mark.parametrize("changes", [{"workers": 2}, {"trial_file": "t.json"}])
def test_a_resumed_training_has_the_workers_and_the_trial_of_its_plan(
    changes: dict[str, Any], context: Callable[..., Context]
) -> None:
    with pytest.raises(UsageError, match=r"^train: --resume .* --trial-file and --workers"):
        train.train_fleet(context(), dataclasses.replace(DRY_RUN, **changes))


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


# Changed settings ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(settings: Callable[..., Settings]) -> RunRecord:
    """A training with the defaults, as read from its file."""
    trial = trial_spec.make_trial(settings(), None, workers=2, max_hours=None)
    plan, public = PlannedTrial(trial_id=TRIAL_ID, trial=trial), json.loads(json.dumps(settings().public()))
    return synthetic.record(run_id="20260101-000000-train", suite="train", planned=[plan], settings=public)


def test_changed_settings_are_an_error_that_names_them_and_limits_are_not(run: RunRecord, settings: Any) -> None:
    limits = {"max_hours": 1.0, "budget_usd": 9.0, "max_restarts": 99, "workers": 1}
    resume.refuse_changes(run, settings(**limits))
    now = settings(schedule="linear", learning_rate=0.001)
    changes = resume.find_changes(run, now)
    assert changes == [
        "train.learning_rate: 0.0002 as planned, 0.001 now",
        "train.schedule: cosine as planned, linear now",
    ]
    with pytest.raises(UsageError) as error_info:
        resume.refuse_changes(run, now)
    assert [change in str(error_info.value) for change in changes] == [True, True]
    assert "`inv train`" in error_info.value.remedy
