"""`inv train --resume`: its output for each end of the ledger; what did not succeed is submitted again as planned."""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.cluster.commands import DeployOptions
from tasks.commands import TrainOptions
from tasks.errors import RetryableError, SomeTrialsFailed, TaskFailed, UsageError
from tasks.fleet import trial_spec
from tasks.fleet.run_store import open_run
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.layers import Settings
from tasks.train import follow, resume, train
from tests.support.answers import print_answer
from tests.support.reports import synthetic
from tests.unit.tasks.train.conftest import MakeSettings

RUN = "20260101-000000-train"
JOB = {"overlay": "job-1gpu", "turn": 1, "after": 0, "shared": "/results"}
OPTIONS = DeployOptions(dry_run=False, force=True, partial=True, discard_results=False)


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
    print_answer(resume.resume(configured, *open_run(configured, RUN), dataclasses.replace(OPTIONS, dry_run=True)))
    assert capsys.readouterr().out.splitlines()[0] == f"run {RUN}: {state}"


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, RunRecord]]:
    """Acts of a resume on its run: submit, follow, collect."""
    done = list[tuple[str, RunRecord]]()

    def submit(_settings: Settings, run: RunRecord, _options: object, on_accepted: Callable[[], RunRecord]) -> None:
        on_accepted()
        done.append(("submit", run))

    monkeypatch.setattr(resume, "submit", submit)
    monkeypatch.setattr(resume, "follow", lambda _settings, run, *_, **__: done.append(("follow", run)))
    monkeypatch.setattr(resume, "report_outcome", lambda _settings, run, *_: done.append(("collect", run)))
    return done


def test_a_training_that_succeeded_is_collected_and_never_starts_again(
    settings: MakeSettings, acts: list[tuple[str, RunRecord]]
) -> None:
    configured = settings()
    write_training(configured, TrialStatus.SUCCEEDED, None)
    resume.resume(configured, *open_run(configured, RUN), OPTIONS)
    assert [name for name, _ in acts] == ["collect"]


@pytest.mark.parametrize("status", [status for status in TrialStatus if status is not TrialStatus.SUCCEEDED])
def test_a_training_that_did_not_succeed_is_submitted_again_with_its_plan_and_followed(
    status: TrialStatus, settings: MakeSettings, acts: list[tuple[str, RunRecord]]
) -> None:
    configured = settings()
    folder = write_training(configured, status, "no rank has ended its step")
    before = RunRecord.read(folder / RUN_FILE).planned
    resume.resume(configured, *open_run(configured, RUN), OPTIONS)
    run, ledger = RunRecord.read(folder / RUN_FILE), Ledger(folder / LEDGER_FILE)
    assert acts == [("submit", run), ("follow", run)]
    assert (run.provenance["inputs"]["job"]["turn"], run.provenance["inputs"]["job"]["after"]) == (2, 1)
    assert run.planned == before
    assert ledger.is_open(TRIAL_ID)


@pytest.mark.parametrize(
    ("lost", "end", "expected"),
    [
        (None, None, ["follow"]),
        (None, Outcome(TrialStatus.LOST, reason="GPU 0: XID 79"), ["submit", "follow"]),  # its Job waits for a pod
        (Outcome(TrialStatus.LOST), Outcome(TrialStatus.SUCCEEDED), ["collect"]),
        (Outcome(TrialStatus.LOST), None, ["submit", "follow"]),  # no pod is left that could read the volume
    ],
)
def test_a_training_that_runs_is_followed_and_the_end_in_its_folder_counts(
    lost: Outcome | None,
    end: Outcome | None,
    expected: list[str],
    settings: MakeSettings,
    acts: list[tuple[str, RunRecord]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configured = settings()
    folder = write_training(configured, None, None)

    def collect_run(*_: object, may_be_open: bool) -> None:
        assert may_be_open
        if end is not None:
            Ledger(folder / LEDGER_FILE).record_end(TRIAL_ID, end, 1)
        elif lost is not None:
            raise RetryableError("no pod reads the volume")

    monkeypatch.setattr(resume, "open_job", lambda *_: contextlib.nullcontext(SimpleNamespace(end=lambda: lost)))
    monkeypatch.setattr(resume, "collect_run", collect_run)
    resume.resume(configured, *open_run(configured, RUN), OPTIONS)
    assert [name for name, _ in acts] == expected


@pytest.mark.parametrize(
    ("status", "error"), [(TrialStatus.LOST, RetryableError), (TrialStatus.FAILED, SomeTrialsFailed)]
)
def test_a_training_that_ended_early_names_its_last_checkpoint_and_the_command(
    status: TrialStatus, error: type[TaskFailed], settings: MakeSettings
) -> None:
    configured = settings()
    folder = write_training(configured, status, "rank 1 is gone")
    with pytest.raises(error, match="checkpoint: step 15") as raised:
        follow.report_outcome(configured, RunRecord.read(folder / RUN_FILE), folder, 15)
    assert f"`inv train --resume={RUN}" in str(raised.value.remedy)


def test_a_resumed_training_has_the_workers_of_its_plan(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"^train: --resume "):
        train.train_fleet(context(), TrainOptions(resume=RUN, workers=2))


def write_training(configured: Settings, end: TrialStatus | None, reason: str | None) -> Path:
    """Write a training with one attempt that ended so; None: it is running. Returns its folder."""
    plan = PlannedTrial(trial_id=TRIAL_ID, trial=trial_spec.make_trial(configured, 1), worker="worker-0")
    public = json.loads(json.dumps(configured.public()))
    run = synthetic.record(run_id=RUN, suite="train", planned=[plan], settings=public)
    run = dataclasses.replace(run, provenance={**run.provenance, "inputs": {"job": JOB}})
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
    return RunRecord.read(write_training(settings(), None, None) / RUN_FILE)


def test_changed_settings_are_named_and_limits_are_not(run: RunRecord, settings: Any) -> None:
    limits = {"max_hours": 1.0, "max_restarts": 99, "workers": 1}
    assert resume.find_changes(run, settings(**limits)) == []
    now = settings(schedule="linear", learning_rate=0.001)
    changes = resume.find_changes(run, now)
    assert changes == [
        "train.learning_rate: 0.0002 as planned, 0.001 now",
        "train.schedule: cosine as planned, linear now",
    ]
