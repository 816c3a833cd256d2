"""`inv train --resume`: a training is followed again, or goes on from its last checkpoint.

It goes on as it was planned. What is set otherwise now, and data or a model that are no longer the same, are refused
field by field; with --changed they are taken over, and the ledger and the training's record say what changed.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from remote.fleet.ledger import Entry, Ledger
from tasks.cli.lock import acquire_lock
from tasks.clients.workers import workers
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.fleet import runner
from tasks.fleet.collect import collect_run
from tasks.fleet.k8s_training.cancel import is_under_way
from tasks.fleet.k8s_training.volume_reader import is_ordered
from tasks.fleet.run_store import TRAIN, newest_training, open_run, resume_command
from tasks.settings.load import Settings
from tasks.train import config_diff, forecast, submit_job, trial_spec
from tasks.train.session import TrainingSession, reachable_workers, was_rejected
from tasks.train.trial_spec import TRIAL_ID, TrainOptions

DONE = "it has ended successfully; there is nothing to resume"


def resume(settings: Settings, name: str | None, given: TrainOptions) -> None:
    """Go on with the training of this name, or with the newest."""
    run, folder = open_run(settings, name or newest_training(settings.results_folder))
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(f"run {run.run_id} is no training; `inv bench --resume={run.run_id}` goes on with it")
    if is_ordered(run):
        _ordered(settings, run, folder, given)
        return
    if given.job:
        raise UsageError(f"train: --job: run {run.run_id} has workers that follow it; leave --job out")
    with runner.ledger_errors(run.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [TRIAL_ID]) if not given.dry_run else Ledger(folder / LEDGER_FILE)
    if given.dry_run:
        _say_state(settings, run, ledger.entries.get(TRIAL_ID))
        return
    with acquire_lock(settings.results_folder, f"train --resume (run {run.run_id})"), runner.ledger_errors(run.run_id):
        going = TrainingSession.of(settings, run, folder, ledger, workers(settings))
        if not (ledger.needs_work(TRIAL_ID) or _may_go_on(ledger.entries[TRIAL_ID], given)):
            print(f"run {run.run_id}: nothing to resume")
            going.conclude()
            return
        if not ledger.is_open(TRIAL_ID):
            _open_again(settings, going, given)
        else:
            _follow_again(settings, going, given)
        going.follow(plain=given.plain)


def _may_go_on(entry: Entry, given: TrainOptions) -> bool:
    """Whether a training that failed may go on from its last good checkpoint: its last attempt never began, or what
    made it fail is changed."""
    return was_rejected(entry) or (given.changed and entry.end is not TrialStatus.SUCCEEDED)


def _put_right(entry: Entry) -> list[str]:
    """What the ledger says of a training whose last attempt was refused: why, as nobody has said what is mended."""
    return [f"tried again after {entry.reason}"] if was_rejected(entry) else []


def _say_state(settings: Settings, run: RunRecord, entry: Entry | None) -> None:
    if entry is not None and entry.end is TrialStatus.SUCCEEDED:
        print(f"run {run.run_id}: {DONE}")
        return
    state = "has not begun" if entry is None or not entry.attempts else "goes on" if entry.end is None else "ended"
    end = "" if entry is None or entry.end is None else f" as {entry.end.value}: {entry.reason}"
    for one in config_diff.diff(run, settings):
        print(one.words)
    print(f"run {run.run_id}: {state}{end}; nothing was touched")


def _follow_again(settings: Settings, going: TrainingSession, given: TrainOptions) -> None:
    """A training that has not ended goes on as it was planned; settings that have changed since are named."""
    run = going.run
    for flag, is_given in (("--workers", given.workers is not None), ("--changed", given.changed)):
        if is_given:
            raise UsageError(f"train: {flag}: run {run.run_id} has not ended; `inv cancel` stops it first")
    if missing := [name for name in run.workers if name not in [host.name for host in going.hosts]]:
        raise UsageError(f"fleet.size: {settings.fleet.size}, and the training is on {missing[0]} too; raise it")
    for one in config_diff.diff(run, settings):
        print(f"{one.words}; it goes on as planned")


def _open_again(settings: Settings, going: TrainingSession, given: TrainOptions) -> None:
    """A training that was stopped goes on with the limits of now, and with what else is asked for: other workers,
    settings, data."""
    run, before = going.run, going.trial
    changed = config_diff.diff(run, settings)
    config_diff.raise_if_changed(run, changed, asked=given.changed)
    if settings.train.elastic:
        there = reachable_workers(going.hosts)
        going.hosts = [*there, *(host for host in going.hosts if host not in there)]
    hosts = going.hosts
    count = before.world_size if given.workers is None else trial_spec.how_many(settings, given.workers)
    if count > len(hosts):
        raise UsageError(f"fleet.size: the training has {count} workers, the fleet {len(hosts)}; type --workers N")
    trial = dataclasses.replace(before, world_size=count)
    if changed:
        trial = config_diff.apply_changes(trial, settings, changed, ())
    seen = forecast.ask(settings, hosts[: count if given.changed else 1], trial)
    contents = _contents(run, trial.model, seen)
    if contents and not given.changed:
        raise ConfirmationRequired(
            f"run {run.run_id}: {next(iter(contents.values()))} when the training began; put it back, begin a new "
            f"training, or go on with what is there now: `{resume_command(run.run_id)} --changed`"
        )
    words = [*(one.words for one in changed), *contents.values()]
    if given.changed:
        if not words:
            raise UsageError(f"train: --changed: nothing is another than when run {run.run_id} was planned")
        trial = config_diff.apply_changes(trial, settings, changed, [*contents])
        forecast.check_limits(settings, trial, seen)
        predicted = forecast.predict(settings, trial, seen)
        now = forecast.inputs(trial, seen, predicted)
        going.run = _changed_record(run, settings, now)
        for word in words:
            print(f"changed: {word}")
    trial = forecast.cap_steps(settings, trial, seen.device)
    words += _put_right(going.ledger.entries[TRIAL_ID])
    if words or trial != before or going.run.workers != [host.name for host in hosts[:count]]:
        going.plan_again(trial, words)
    else:
        going.ledger.reopened(TRIAL_ID)


def _contents(run: RunRecord, model: str, seen: forecast.ProbeResult) -> dict[str, str]:
    """What is under the plan's names with another content: `model`, `data`, each in words."""
    inputs, found = run.provenance.get("inputs", {}), dict[str, str]()
    was = inputs.get("model", {})
    if was.get("path", model) == model and was.get("sha256") not in (None, seen.forecast.model_sha256):
        found["model"] = f"the model at {model} is not what it was"
    known = inputs.get("files", {})
    other = [file.path for file in seen.data.files if known.get(file.path) not in (None, file.sha256)]
    if other:
        found["data"] = f"{', '.join(other)} is not what it was"
    return found


def _changed_record(run: RunRecord, settings: Settings, inputs: dict[str, Any]) -> RunRecord:
    """The record with the settings and inputs of now, so that a later change is seen against them."""
    public = settings.public()
    taken = {name: public[name] for name in ("train", "model", "data")}
    return dataclasses.replace(
        run,
        settings={**run.settings, **taken},
        provenance={**run.provenance, "inputs": {**run.provenance.get("inputs", {}), **inputs}},
    )


def _ordered(settings: Settings, run: RunRecord, folder: Path, given: TrainOptions) -> None:
    """Have Kubernetes go on with a training that it did not finish, in another turn."""
    run_id, again = run.run_id, f"`inv train --job --resume={run.run_id}`"
    if not given.job or given.workers is not None:
        raise UsageError(f"run {run_id} is a Job's, on as many pods as before: {again} goes on with it")
    with runner.ledger_errors(run_id):
        if Ledger(folder / LEDGER_FILE).is_open(TRIAL_ID):
            if is_under_way(settings, run):
                raise RetryableError(
                    f"run {run_id}: its Job is there and goes on by itself; `inv monitor --run={run_id}` shows it"
                )
            with contextlib.suppress(
                RetryableError
            ):  # where no pod is left to read the volume, its next pods know the rest
                collect_run(settings, run, folder, [], may_be_open=True)
        ledger = Ledger(folder / LEDGER_FILE)
        entry = ledger.entries[TRIAL_ID]
        if entry.end is TrialStatus.SUCCEEDED:
            print(f"run {run_id}: {DONE}; `inv collect --run={run_id}` brings the adapter")
            return
        if not (ledger.needs_work(TRIAL_ID) or _may_go_on(entry, given)):
            end = "unknown" if entry.end is None else f"{entry.end.value}: {entry.reason}"
            raise UsageError(
                f"run {run_id}: it has ended as {end}; nothing to resume: change what made it fail, then "
                f"{again[:-1]} --changed`"
            )
        changed = config_diff.diff(run, settings)
        config_diff.raise_if_changed(run, changed, asked=given.changed)
        following = _another_turn(settings, run, entry, changed if given.changed else None)

        def write_down() -> None:
            following.write(folder)
            if entry.end is not None:
                ledger.reopened(TRIAL_ID, [*(one.words for one in changed), *_put_right(entry)])

        submit_job.order(settings, following, given, write_down)
    submit_job.say(run_id, given)


def _another_turn(
    settings: Settings, run: RunRecord, entry: Entry, changed: Sequence[config_diff.SettingChange] | None
) -> RunRecord:
    """The plan of a Job's next turn. With changes asked for (not None), data and model may be others too: nobody has
    looked at them, and the pods' log says what differs."""
    (before,), job = run.planned, run.provenance["inputs"]["job"]
    trial = before.trial
    if changed is not None:
        trial = config_diff.apply_changes(trial, settings, changed, ("model", "data"))
    if trial.training is not None:
        unlimited = dataclasses.replace(trial.training, max_hours=settings.train.max_hours)
        trial = forecast.cap_steps(settings, dataclasses.replace(trial, training=unlimited), "")
    after = max((attempt.number for attempt in entry.attempts), default=0)
    inputs = {"model": {"path": trial.model}, "job": {**job, "turn": job["turn"] + 1, "after": after}}
    following = dataclasses.replace(run, planned=[dataclasses.replace(before, trial=trial)])
    return _changed_record(following, settings, inputs)
