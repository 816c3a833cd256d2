"""`inv train --resume`: reattach to a training, or restart it from its last checkpoint.

It continues as planned: changed settings, and changed content of the data files or the model folder, are errors. The
current limits apply.
"""

import contextlib
import dataclasses
from pathlib import Path

from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from remote.fleet.ledger import Entry, Ledger
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.lock import acquire_lock
from tasks.clients.workers import fleet_hosts
from tasks.commands import TrainOptions
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.fleet import runner
from tasks.fleet.collect import collect_run
from tasks.fleet.k8s_training import is_job_active, is_k8s_training
from tasks.fleet.run_store import TRAIN, newest_run, open_run, resume_command
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.load import Settings
from tasks.train import forecast, init_adapter, submit_job
from tasks.train.session import TrainingSession

# Settings without influence on the result: the current value always applies.
OPERATOR_SETTINGS = {"workers", "max_restarts", "replacement_timeout_sec", "budget_usd", "max_hours"}


def find_changes(run: RunRecord, settings: Settings) -> list[str]:
    """List the settings that differ from the run's plan, in the order of the settings, as one line each."""
    planned_settings, current_settings = run.settings, settings.public()
    planned_train = planned_settings.get("train", {})
    names = [name for name in current_settings["train"] if name in planned_train and name not in OPERATOR_SETTINGS]
    values = [(f"train.{name}", planned_train[name], current_settings["train"][name]) for name in names]
    sections = [
        section
        for section in ("model", "data")
        if section in planned_settings and (section == "model" or not current_settings["train"]["data"])
    ]
    values += [
        (f"{section}.path", planned_settings[section]["path"], current_settings[section]["path"])
        for section in sections
    ]
    return [f"{name}: {planned} as planned, {current} now" for name, planned, current in values if planned != current]


def refuse_changes(run: RunRecord, settings: Settings) -> None:
    """Raise UsageError for settings that differ from the run's plan."""
    if changes := find_changes(run, settings):
        raise UsageError(
            f"run {run.run_id}: {'; '.join(changes)}",
            remedy="restore the planned values, or start a new training with `inv train`",
        )


ALREADY_DONE = "succeeded, nothing to resume"


def resume(settings: Settings, name: str | None, options: TrainOptions) -> CommandResult | None:
    """Resume the training of this name, or the newest. Returns its state for a dry run."""
    run, folder = open_run(settings, name or newest_run(settings.results_folder, TRAIN))
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(
            f"run {run.run_id} is not a training", remedy=f"resume it with `inv bench --resume={run.run_id}`"
        )
    if is_k8s_training(run):
        return _resume_k8s_training(settings, run, folder, options)
    if options.job:
        raise UsageError(f"train: --job: run {run.run_id} was started without --job", remedy="leave --job out")
    with runner.ledger_errors(run.run_id):
        ledger = (
            Ledger.create(folder / LEDGER_FILE, [TRIAL_ID]) if not options.dry_run else Ledger(folder / LEDGER_FILE)
        )
    if options.dry_run:
        return _describe_state(settings, run, ledger.entries.get(TRIAL_ID))
    command = f"train --resume (run {run.run_id})"
    with (
        acquire_lock(settings.results_folder, command, follows=run.run_id),
        runner.ledger_errors(run.run_id),
    ):
        session = TrainingSession.create(settings, run, folder, ledger, fleet_hosts(settings))
        if not ledger.needs_work(TRIAL_ID):
            print(f"run {run.run_id}: nothing to resume")
            session.report_outcome()
            return None
        _check_workers(session)
        if ledger.is_open(TRIAL_ID):
            for change in find_changes(run, settings):
                print(f"{change}; the training continues as planned")
        else:
            _reopen(settings, session)
        session.wait(plain=options.plain)
    return None


def _describe_state(settings: Settings, run: RunRecord, entry: Entry | None) -> CommandResult:
    """Return the state of the training and its changed settings, for --dry-run."""
    if entry is not None and entry.status is TrialStatus.SUCCEEDED:
        return plan_result([f"run {run.run_id}: {ALREADY_DONE}"], run=run.run_id, state="succeeded", changes=[])
    state = "not started" if entry is None or not entry.attempts else "running" if entry.status is None else "ended"
    end = "" if entry is None or entry.status is None else f" as {entry.status.value}: {entry.reason}"
    changes = find_changes(run, settings)
    return plan_result([*changes, f"run {run.run_id}: {state}{end}"], run=run.run_id, state=state, changes=changes)


def _check_workers(session: TrainingSession) -> None:
    """Raise UsageError if the fleet lacks a worker of the training."""
    names = [host.name for host in session.hosts]
    if missing_workers := [name for name in session.run.workers if name not in names]:
        raise UsageError(
            f"fleet.size: {session.settings.fleet.size}, but the training also runs on {missing_workers[0]}",
            remedy="raise it",
        )


def _reopen(settings: Settings, session: TrainingSession) -> None:
    """Reopen a stopped training with its plan and the current limits."""
    run, planned = session.run, session.trial
    refuse_changes(run, settings)
    hosts = [host for host in session.hosts if host.name in run.workers]
    probe = forecast.probe_workers(settings, hosts[:1], planned)
    if changed := _changed_content(run, planned.model, probe):
        raise ConfirmationRequired(
            f"run {run.run_id}: {changed} since the training began",
            remedy="restore it, or start a new training with `inv train`",
        )
    trial = forecast.cap_steps(settings, planned, probe.device)
    init_adapter.send_again(settings, trial, hosts)
    if trial == planned:
        session.ledger.reopen(TRIAL_ID)
    else:
        session.replan(trial)


def _changed_content(run: RunRecord, model: str, probe: forecast.ProbeResult) -> str | None:
    """Say which input has another content than the plan's; None if none has."""
    inputs = run.provenance.get("inputs", {})
    planned_model = inputs.get("model", {})
    if planned_model.get("path", model) == model and planned_model.get("sha256") not in (
        None,
        probe.forecast.model_sha256,
    ):
        return f"the model at {model} has changed"
    planned_files = inputs.get("files", {})
    changed_files = [file.path for file in probe.data.files if planned_files.get(file.path) not in (None, file.sha256)]
    return f"{', '.join(changed_files)} has changed" if changed_files else None


def _resume_k8s_training(
    settings: Settings, run: RunRecord, folder: Path, options: TrainOptions
) -> CommandResult | None:
    """Submit another Job for a training that Kubernetes did not finish: its next turn."""
    run_id = run.run_id
    if not options.job:
        raise UsageError(f"run {run_id} runs as a Job", remedy=f"resume it with `{resume_command(run)}`")
    with runner.ledger_errors(run):
        if Ledger(folder / LEDGER_FILE).is_open(TRIAL_ID):
            # If no pod is left to read the volume, the next pods read the state themselves.
            with contextlib.suppress(RetryableError):
                collect_run(settings, run, folder, [], may_be_open=True)
            # The end on the volume counts: a Job runs on while one of its pods finds no node.
            if Ledger(folder / LEDGER_FILE).is_open(TRIAL_ID) and is_job_active(settings, run):
                raise RetryableError(
                    f"run {run_id}: its Job is still running", remedy=f"watch it with `inv monitor --run={run_id}`"
                )
        ledger = Ledger(folder / LEDGER_FILE)
        entry = ledger.entries[TRIAL_ID]
        if entry.status is TrialStatus.SUCCEEDED:
            done = f"run {run_id}: {ALREADY_DONE}; `inv collect --run={run_id}` fetches the adapter"
            if options.dry_run:
                return plan_result([done], run=run_id, state="succeeded", changes=[])
            print(done)
            return None
        refuse_changes(run, settings)
        next_run = _next_turn(settings, run, entry)

        def on_accepted() -> None:
            next_run.write(folder)
            if entry.status is not None:
                ledger.reopen(TRIAL_ID)

        plan = submit_job.submit(settings, next_run, options, on_accepted)
    submit_job.print_submitted(run_id, options)
    return plan


def _next_turn(settings: Settings, run: RunRecord, entry: Entry) -> RunRecord:
    """Return the plan of a Job's next turn, with the current limits."""
    (planned,), inputs = run.planned, run.provenance["inputs"]
    trial = forecast.cap_steps(settings, planned.trial, "")
    last_attempt = max((attempt.number for attempt in entry.attempts), default=0)
    job = {**inputs["job"], "turn": inputs["job"]["turn"] + 1, "after": last_attempt}
    return dataclasses.replace(
        run,
        planned=[dataclasses.replace(planned, trial=trial)],
        provenance={**run.provenance, "inputs": {**inputs, "job": job}},
    )
