"""What `inv train --resume` says of a training without touching it, for each way its ledger may end."""

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
DRY = TrainOptions(
    workers=None, trial=None, elastic=False, resume=RUN, changed=False, dry_run=True, plain=True, job=False, yes=False,
    discard_results=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("end", "reason", "said"),
    [
        (TrialStatus.SUCCEEDED, None, "it has ended successfully; there is nothing to resume"),
        (TrialStatus.LOST, "rank 1 is gone", "ended as LOST: rank 1 is gone; nothing was touched"),
        (None, None, "goes on; nothing was touched"),
    ],
)
def test_a_dry_resume_says_how_the_training_stands(
    end: TrialStatus | None, reason: str | None, said: str, settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings()
    keep(given, end, reason)
    resume.resume(given, RUN, DRY)
    assert capsys.readouterr().out == f"run {RUN}: {said}\n"


def test_of_a_jobs_training_that_succeeded_or_failed_it_says_so_and_what_to_type(
    settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    given, asked = settings(), dataclasses.replace(DRY, job=True, dry_run=False)
    folder = keep(given, TrialStatus.SUCCEEDED, None, job={"overlay": "job-1gpu"})
    resume.resume(given, RUN, asked)
    said = f"it has ended successfully; there is nothing to resume; `inv collect --run={RUN}` brings the adapter"
    assert capsys.readouterr().out == f"run {RUN}: {said}\n"
    (folder / LEDGER_FILE).unlink()
    keep(given, TrialStatus.FAILED, "the loss is nan at step 3", job={"overlay": "job-1gpu"})
    with pytest.raises(UsageError, match=rf"FAILED: the loss is nan at step 3; .*`inv train --job --resume={RUN} --ch"):
        resume.resume(given, RUN, asked)


def keep(given: Settings, end: TrialStatus | None, reason: str | None, **inputs: object) -> Path:
    """The folder of a training of one attempt that ended so; None: it goes on."""
    plan = PlannedTrial(trial_id=TRIAL_ID, trial=trial_spec.trial_of(given, None, workers=1, max_hours=None))
    public = json.loads(json.dumps(given.public()))
    run = synthetic.record(run_id=RUN, suite="train", planned=[plan], settings=public)
    run = dataclasses.replace(run, provenance={**run.provenance, "inputs": inputs})
    folder = given.results_folder / RUN
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder)
    ledger = Ledger.create(folder / LEDGER_FILE, [TRIAL_ID])
    ledger.started(TRIAL_ID, 1, "worker-0", "/job")
    if end is not None:
        ledger.ended(TRIAL_ID, end, reason, 1)
    return folder
