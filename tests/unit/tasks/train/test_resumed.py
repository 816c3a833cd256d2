"""What `inv train --resume --dry-run` says of a training, for each way its ledger may end."""

import json

import pytest

from bench.records.layout import LEDGER_FILE
from bench.records.result import End
from bench.records.run import PlannedTrial
from remote.fleet.ledger import Ledger
from tasks.train import planned, resumed
from tasks.train.planned import TRIAL_ID, Choices
from tests.support.reports import synthetic
from tests.unit.tasks.train.conftest import MakeSettings

RUN = "20260101-000000-train"
DRY = Choices(
    workers=None, trial=None, elastic=False, resume=RUN, changed=False, dry_run=True, plain=True, job=False, yes=False,
    discard_results=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("end", "reason", "said"),
    [
        (End.SUCCEEDED, None, "it has ended successfully; there is nothing to resume"),
        (End.LOST, "rank 1 is gone", "ended as LOST: rank 1 is gone; nothing was touched"),
        (None, None, "goes on; nothing was touched"),
    ],
)
def test_a_dry_resume_says_how_the_training_stands(
    end: End | None, reason: str | None, said: str, settings: MakeSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    given = settings()
    plan = PlannedTrial(trial_id=TRIAL_ID, trial=planned.trial_of(given, None, workers=1, max_hours=None))
    public = json.loads(json.dumps(given.public()))
    run = synthetic.record(run_id=RUN, suite="train", planned=[plan], settings=public)
    folder = given.results_folder / RUN
    folder.mkdir(parents=True)
    run.write(folder)
    ledger = Ledger.create(folder / LEDGER_FILE, [TRIAL_ID])
    ledger.started(TRIAL_ID, 1, "worker-0", "/job")
    if end is not None:
        ledger.ended(TRIAL_ID, end, reason, 1)
    resumed.resume(given, RUN, DRY)
    assert capsys.readouterr().out == f"run {RUN}: {said}\n"
