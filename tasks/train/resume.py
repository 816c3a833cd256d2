"""`inv train --resume`: follow a training again, or submit its next turn from the last checkpoint.

It continues as planned: changed settings are errors here, and changed content of the data files or the model folder
ends its attempt. The current limits apply.
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
from tasks.cluster.commands import DeployOptions
from tasks.errors import RetryableError, UsageError
from tasks.fleet import runner
from tasks.fleet.collect import collect_run
from tasks.fleet.run_store import TRAIN, point_latest_at
from tasks.fleet.training_job import open_job
from tasks.fleet.trial_spec import TRIAL_ID, training_of
from tasks.settings.layers import Settings
from tasks.train.follow import follow, report_outcome
from tasks.train.submit import submit

# Settings without influence on the result: the current value always applies.
OPERATOR_SETTINGS = {"workers", "max_restarts", "max_hours"}
ALREADY_DONE = "succeeded, nothing to resume"


def find_changes(run: RunRecord, settings: Settings) -> list[str]:
    """List the settings that differ from the run's plan, in the order of the settings, as one line each."""
    planned, current = run.settings, settings.public()
    names = [("train", name) for name in current["train"] if name not in OPERATOR_SETTINGS]
    names += [("model", "path"), *([] if current["train"]["data"] else [("data", "path")])]
    return [
        f"{section}.{name}: {planned[section][name]} as planned, {current[section][name]} now"
        for section, name in names
        if name in planned.get(section, {}) and planned[section][name] != current[section][name]
    ]


def resume(settings: Settings, run: RunRecord, folder: Path, options: DeployOptions) -> CommandResult | None:
    """Resume the training in this folder. Returns its state for a dry run."""
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(
            f"run {run.run_id} is not a training", remedy=f"resume it with `inv bench --resume={run.run_id}`"
        )
    if options.dry_run:
        with runner.ledger_errors(run.run_id):
            return _describe_state(settings, run, Ledger(folder / LEDGER_FILE).entries.get(TRIAL_ID))
    point_latest_at(folder)  # for `collect report` after it
    command = f"train --resume (run {run.run_id})"
    with acquire_lock(settings.results_folder, command), runner.ledger_errors(run.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [TRIAL_ID])
        if ledger.is_open(TRIAL_ID):
            if _is_running(settings, run, folder):
                for change in find_changes(run, settings):
                    print(f"{change}; the training continues as planned")
                follow(settings, run, folder)
                return None
            ledger = Ledger(folder / LEDGER_FILE)
        entry = ledger.entries[TRIAL_ID]
        if entry.status is TrialStatus.SUCCEEDED:
            print(f"run {run.run_id}: {ALREADY_DONE}")
            report_outcome(settings, run, folder)
            return None
        if changes := find_changes(run, settings):
            raise UsageError(
                f"run {run.run_id}: {'; '.join(changes)}",
                remedy="restore the planned values, or start a new training with `inv train`",
            )
        next_run = _next_turn(settings, run, entry)

        def on_accepted() -> RunRecord:
            next_run.write(folder)
            if entry.status is not None:
                ledger.reopen(TRIAL_ID)
            return next_run

        submit(settings, next_run, options, on_accepted)
        follow(settings, next_run, folder)
    return None


def _is_running(settings: Settings, run: RunRecord, folder: Path) -> bool:
    """Import what can be read, and check whether the training goes on: the end on the volume counts."""
    with open_job(settings, run) as job:
        is_active = job.end() is None
    # A training of which no pod is left to read the volume: the next pods read the state themselves.
    with contextlib.suppress(*() if is_active else (RetryableError,)):
        collect_run(settings, run, folder, may_be_open=True)
    return is_active and Ledger(folder / LEDGER_FILE).is_open(TRIAL_ID)


def _describe_state(settings: Settings, run: RunRecord, entry: Entry | None) -> CommandResult:
    """Return the state of the training and its changed settings, for --dry-run."""
    if entry is not None and entry.status is TrialStatus.SUCCEEDED:
        return plan_result([f"run {run.run_id}: {ALREADY_DONE}"], run=run.run_id, state="succeeded", changes=[])
    state = "not started" if entry is None or not entry.attempts else "running" if entry.status is None else "ended"
    end = "" if entry is None or entry.status is None else f" as {entry.status.value}: {entry.reason}"
    changes = find_changes(run, settings)
    return plan_result([*changes, f"run {run.run_id}: {state}{end}"], run=run.run_id, state=state, changes=changes)


def _next_turn(settings: Settings, run: RunRecord, entry: Entry) -> RunRecord:
    """Return the plan of the training's next turn, with the current limits."""
    (planned,), inputs = run.planned, run.provenance["inputs"]
    training = dataclasses.replace(training_of(planned.trial), max_hours=settings.train.max_hours)
    trial = dataclasses.replace(planned.trial, training=training)
    last_attempt = max((attempt.number for attempt in entry.attempts), default=0)
    job = {**inputs["job"], "turn": inputs["job"]["turn"] + 1, "after": last_attempt}
    return dataclasses.replace(
        run,
        planned=[dataclasses.replace(planned, trial=trial)],
        provenance={**run.provenance, "inputs": {**inputs, "job": job}},
    )
