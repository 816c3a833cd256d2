"""Output of `inv train --resume` that changes nothing, for each end of the ledger."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial
from remote.fleet.ledger import Ledger
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.train import resume, trial_spec
from tasks.train.trial_spec import TRIAL_ID, TrainOptions
from tests.support.reports import synthetic
from tests.unit.tasks.train.conftest import MakeSettings

RUN = "20260101-000000-train"
DRY_RUN = TrainOptions(
    workers=None, trial_file=None, elastic=False, resume=RUN, changed=False, dry_run=True, plain=True, job=False,
    yes=False, discard_results=False,
)  # fmt: skip


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
    with pytest.raises(UsageError, match=rf"FAILED: the loss is nan at step 3; .*`inv train --job --resume={RUN} --ch"):
        resume.resume(configured, RUN, options)


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
    ledger.started(TRIAL_ID, 1, "worker-0", "/job")
    if end is not None:
        ledger.ended(TRIAL_ID, end, reason, 1)
    return folder
