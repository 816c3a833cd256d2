"""`inv train --resume`: its output for each end of the ledger; changed settings are an error or applied."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records.forecast import DerivedSettings
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


# Changed settings ----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(settings: Callable[..., Settings]) -> RunRecord:
    """A training with the defaults, as read from its file."""
    trial = trial_spec.make_trial(settings(), None, workers=2, max_hours=None)
    plan, public = PlannedTrial(trial_id=TRIAL_ID, trial=trial), json.loads(json.dumps(settings().public()))
    return synthetic.record(run_id="20260101-000000-train", suite="train", planned=[plan], settings=public)


def test_unrequested_changes_are_an_error_with_the_command_that_applies_them(run: RunRecord, settings: Any) -> None:
    limits = {"max_hours": 1.0, "budget_usd": 9.0, "max_restarts": 99, "elastic": True, "workers": 1}
    assert resume.find_changes(run, settings(**limits)) == []
    changes = resume.find_changes(run, settings(schedule="linear", learning_rate=0.001))
    with pytest.raises(UsageError) as error_info:
        resume.raise_if_changed(run, changes, is_allowed=False)
    message = str(error_info.value)
    assert [change.text in message for change in changes] == [True, True]
    assert "train.learning_rate: 0.0002 as planned, 0.001 now" in message
    assert f"`inv train --resume={run.run_id} --changed`" in message
    resume.raise_if_changed(run, changes, is_allowed=True)


def test_values_that_were_derived_from_the_data_are_the_plans_also_of_an_older_version(settings: Any) -> None:
    derived = DerivedSettings(validation_share=0.15, rows_per_step=2, warmup_share=0.1)
    trial = trial_spec.make_trial(settings(), None, workers=1, max_hours=None)
    plan = PlannedTrial(trial_id=TRIAL_ID, trial=trial_spec.apply_derived(trial, derived))
    older = {"train": {"data": [], "validation_fraction": 0.15, "rows_per_step": 2, "warmup_share": 0.1}}
    for public in (json.loads(json.dumps(settings().public())), older):
        run = synthetic.record(run_id="20260101-000000-train", suite="train", planned=[plan], settings=public)
        for same in ({}, {"rows_per_step": 2, "warmup_share": 0.1, "validation_fraction": 0.15}):
            assert resume.find_changes(run, settings(**same)) == []
        (change,) = resume.find_changes(run, settings(rows_per_step=4))
        assert change.text == "train.rows_per_step: 2 as planned, 4 now"
    now = settings(data=["other.jsonl"])
    changed = resume.apply_changes(plan.trial, now, resume.find_changes(run, now), [])
    assert changed.training is not None
    assert (changed.training.data.validation_share, changed.training.rows_per_step) == (0.15, 2)
    assert changed.training.data.files == ["other.jsonl"]


@pytest.mark.parametrize("change", [{"lora_rank": 8}, {"lora_alpha": 16}, {"optimizer": "paged_adamw_8bit"}])
def test_changes_that_no_checkpoint_survives_are_always_an_error_with_the_reason(
    run: RunRecord, settings: Any, change: dict[str, Any]
) -> None:
    ((name, value),) = change.items()
    text = rf"train\.{name}: .* as planned, {value} now \({re.escape(resume.FIXED_SETTINGS[name])}\)"
    with pytest.raises(UsageError, match=text):
        resume.raise_if_changed(run, resume.find_changes(run, settings(**change)), is_allowed=True)


def test_requested_changes_are_applied_and_nothing_else(run: RunRecord, settings: Any) -> None:
    before = run.planned[0].trial
    now = settings(learning_rate=0.001, schedule="linear", data=["other.jsonl"], max_seq_len=256)
    changed = resume.apply_changes(before, now, resume.find_changes(run, now), ["model"])
    assert before.training is not None
    training = dataclasses.replace(
        before.training,
        data=trial_spec.training_data(now),
        schedule="linear",
        may_differ=("data", "learning_rate", "max_seq_len", "model", "training.schedule"),
        revision=1,
    )
    expected = {"learning_rate": 0.001, "max_seq_len": 256, "data": "other.jsonl", "training": training}
    assert changed == dataclasses.replace(before, **expected)


def test_the_planned_template_stays_unless_the_setting_changes(run: RunRecord, settings: Any, tmp_path: Path) -> None:
    (planned,) = run.planned
    assert planned.trial.training is not None
    (tmp_path / "new.jinja").write_text("new")
    (tmp_path / "own.jinja").write_text("changed since")
    own = str(tmp_path / "own.jinja")
    data = dataclasses.replace(planned.trial.training.data, chat_template="as planned")
    trial = dataclasses.replace(planned.trial, training=dataclasses.replace(planned.trial.training, data=data))
    run = dataclasses.replace(run, settings={**run.settings, "train": {**run.settings["train"], "chat_template": own}})
    for name, expected in (("own", "as planned"), ("new", "new")):
        now = settings(chat_template=str(tmp_path / f"{name}.jinja"), data=["other.jsonl"])
        changed = resume.apply_changes(trial, now, resume.find_changes(run, now), [])
        assert changed.training is not None
        assert changed.training.data.chat_template == expected


@pytest.mark.parametrize(("differences", "are_kept"), [((), True), (("data",), False), (("model",), False)])
def test_a_confirmed_change_of_an_input_drops_the_planned_digests(
    run: RunRecord, settings: Any, differences: tuple[str, ...], are_kept: bool
) -> None:
    before, digests = run.planned[0].trial, {"data.jsonl": "0" * 64}
    assert before.training is not None
    before = dataclasses.replace(before, training=dataclasses.replace(before.training, input_digests=digests))
    now = settings(learning_rate=0.001)
    changed = resume.apply_changes(before, now, resume.find_changes(run, now), differences)
    assert changed.training is not None
    assert changed.training.input_digests == (digests if are_kept else {})


def test_every_setting_of_a_training_can_be_changed_or_is_fixed(settings: Any) -> None:
    every = set(settings().public()["train"]) - resume.OPERATOR_SETTINGS
    assert every == resume.DATA_SETTINGS - {"data.path"} | {
        *resume.TRIAL_FIELDS, *resume.TRAINING_FIELDS, "lora_targets",
    }  # fmt: skip
    assert set(resume.FIXED_SETTINGS) <= every
