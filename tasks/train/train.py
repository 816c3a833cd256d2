"""`inv train`: a fine-tuning over the fleet, as one detached job that every command finds by its run.

Observe (settings, a trial file, what the workers say of model and data), plan (one trial, which `--dry-run` prints with
hours, dollars and memory), act (`tasks.train.going`). Nothing begins before everything that can be checked was.
"""

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

from invoke.context import Context

from bench.records import Trial
from bench.records.layout import LEDGER_FILE
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.ledger import Ledger
from remote.hosts.host import Host
from tasks.cli.lock import only_one
from tasks.cli.terminal import console
from tasks.connect.workers import workers
from tasks.errors import Refused, Resumable, UsageError
from tasks.fleet import execute
from tasks.fleet.collect import bring_home
from tasks.fleet.folders import TRAIN, newest_training, open_run
from tasks.fleet.ordered.reach import is_ordered
from tasks.fleet.ordered.stop import is_under_way
from tasks.fleet.pricing import price_of
from tasks.settings.load import Settings, load
from tasks.train import foreseen, order, planned, printed
from tasks.train.going import Going, answering
from tasks.train.order import How
from tasks.train.planned import TRIAL_ID


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The flags of `inv train`."""

    workers: str | None
    trial: str | None
    elastic: bool
    resume: str | None
    dry_run: bool
    plain: bool
    job: bool
    yes: bool
    discard_results: bool

    @property
    def how(self) -> How:
        return How(yes=self.yes, discard_results=self.discard_results, dry_run=self.dry_run)


def train_fleet(context: Context, given: Choices) -> None:
    settings = load(context)
    if given.elastic:
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"elastic": True})})
    if given.job:
        order.check(settings)
    elif given.yes or given.discard_results:
        raise UsageError("train: --yes and --discard-results are for a training that is deployed; type them with --job")
    if given.resume:
        if given.trial is not None:
            raise UsageError("train: --resume goes on with a run's own plan; leave out --trial")
        bare = given.resume is True  # type: ignore[comparison-overlap] # Invoke's bare optional value
        _resume(settings, None if bare else given.resume, given)
        return
    settings, file_trial = planned.with_trial_file(settings, given.trial)
    count = planned.how_many(settings, given.workers)
    trial = planned.trial_of(settings, file_trial, workers=count, max_hours=settings.train.max_hours)
    if given.job:
        _order(settings, trial, given)
        return
    hosts = workers(settings)
    seen = foreseen.ask(settings, hosts[:count], trial)
    foreseen.refuse(settings, trial, seen)
    trial = _limited(settings, trial, seen.device)
    predicted = foreseen.foresee(settings, trial, seen)
    if given.dry_run:
        printed.show_plan(console(), trial, seen, predicted, [host.name for host in hosts[:count]])
        return
    inputs = {
        "model": {"path": trial.model, "sha256": seen.forecast.model_sha256},
        "files": {file.path: file.sha256 for file in seen.data.files},
        "device": seen.device,
        "foreseen": predicted.record(),
    }
    names = [host.name for host in hosts[:count]]
    run = execute.record_of(settings, TRAIN, [_planned(trial, names[0])], names, inputs=inputs)
    with only_one(settings.results_folder, f"train (run {run.run_id})"):
        execute.refuse_busy_workers(settings, hosts[:count])
        run, folder, ledger = execute.write_plan(settings, run)
        for line in printed.headline(predicted):
            print(line)
        _going(settings, run, folder, ledger, hosts).follow(plain=given.plain)


def _order(settings: Settings, trial: Trial, given: Choices) -> None:
    """Have Kubernetes train. Its data and model are looked at by the pods alone."""
    names = [f"worker-{rank}" for rank in range(trial.world_size)]
    run = order.new(settings, _planned(_limited(settings, trial, ""), names[0]), names)
    order.order(settings, run, given.how, lambda: execute.write_plan(settings, run))
    _say_ordered(run.run_id, given)


def _say_ordered(run_id: str, given: Choices) -> None:
    if not given.dry_run:
        print(
            f"run {run_id}: ordered; it goes on without you. `inv monitor --run={run_id}` shows it, "
            f"`inv collect --run={run_id}` brings the adapter once it has ended, `inv cancel --run={run_id}` stops it"
        )


def _planned(trial: Trial, leader: str) -> PlannedTrial:
    return PlannedTrial(trial_id=TRIAL_ID, trial=trial, worker=leader)


def _limited(settings: Settings, trial: Trial, device: str) -> Trial:
    """The trial with the hours that train.max_hours and train.budget_usd allow in all; `device` may be unknown, "".
    Raises UsageError.
    """
    at = price_of(settings, [device] if device else [])
    hours = planned.limits_of(settings).hours(None if at is None else at.usd_per_gpu_hour, trial.world_size)
    if trial.training is None or hours == trial.training.max_hours:
        return trial
    return dataclasses.replace(trial, training=dataclasses.replace(trial.training, max_hours=hours))


def _going(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger, hosts: list[Host]) -> Going:
    device = run.provenance.get("inputs", {}).get("device")
    price = price_of(settings, [device] if device else [])
    return Going(settings=settings, run=run, folder=folder, ledger=ledger, hosts=hosts, price=price)


def _resume(settings: Settings, name: str | None, given: Choices) -> None:
    run, folder = open_run(settings, name or newest_training(settings.results_folder))
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(f"run {run.run_id} is no training; `inv bench --resume={run.run_id}` goes on with it")
    if is_ordered(run):
        _resume_ordered(settings, run, folder, given)
        return
    if given.job:
        raise UsageError(f"train: --job: run {run.run_id} has workers that follow it; leave --job out")
    with execute.ledger_errors(run.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [TRIAL_ID]) if not given.dry_run else Ledger(folder / LEDGER_FILE)
    entry = ledger.entries.get(TRIAL_ID)
    if given.dry_run:
        state = "has not begun" if entry is None or not entry.attempts else "goes on" if entry.end is None else "ended"
        end = "" if entry is None or entry.end is None else f" as {entry.end.value}: {entry.reason or 'no reason'}"
        print(f"run {run.run_id}: {state}{end}; nothing was touched")
        return
    with only_one(settings.results_folder, f"train --resume (run {run.run_id})"), execute.ledger_errors(run.run_id):
        going = _going(settings, run, folder, ledger, workers(settings))
        if not ledger.needs_work(TRIAL_ID):
            print(f"run {run.run_id}: nothing to resume")
            going.conclude()
            return
        _say_what_does_not_count(settings, run)
        if not ledger.is_open(TRIAL_ID):
            _open_again(settings, going, given.workers)
        elif given.workers is not None:
            raise UsageError(
                f"train: --workers: run {run.run_id} has not ended, so its workers stay; `inv cancel` stops it first"
            )
        elif missing := [name for name in run.workers if name not in [host.name for host in going.hosts]]:
            raise UsageError(f"fleet.size: {settings.fleet.size}, and the training is on {missing[0]} too; raise it")
        going.follow(plain=given.plain)


def _resume_ordered(settings: Settings, run: RunRecord, folder: Path, given: Choices) -> None:
    """Have Kubernetes go on with a training that it did not finish, in another turn."""
    run_id, again = run.run_id, f"`inv train --job --resume={run.run_id}`"
    if not given.job or given.workers is not None:
        raise UsageError(f"run {run_id} is a Job's, on as many pods as before: {again} goes on with it")
    with execute.ledger_errors(run_id):
        if Ledger(folder / LEDGER_FILE).is_open(TRIAL_ID):
            if is_under_way(settings, run):
                raise Resumable(
                    f"run {run_id}: its Job is there and goes on by itself; `inv monitor --run={run_id}` shows it"
                )
            with contextlib.suppress(Resumable):  # where no pod is left to read the volume, its next pods know the rest
                bring_home(settings, run, folder, [], may_be_open=True)
        ledger = Ledger(folder / LEDGER_FILE)
        entry = ledger.entries[TRIAL_ID]
        if not ledger.needs_work(TRIAL_ID):
            end = entry.end.value if entry.end else "unknown"
            raise UsageError(f"run {run_id}: it has ended as {end}; nothing to do")
        (before,), job = run.planned, run.provenance["inputs"]["job"]
        trial = before.trial
        if trial.training is not None:
            unlimited = dataclasses.replace(trial.training, max_hours=settings.train.max_hours)
            trial = _limited(settings, dataclasses.replace(trial, training=unlimited), "")
        after = max((attempt.number for attempt in entry.attempts), default=0)
        inputs = {**run.provenance["inputs"], "job": {**job, "turn": job["turn"] + 1, "after": after}}
        following = dataclasses.replace(
            run,
            planned=[dataclasses.replace(before, trial=trial)],
            provenance={**run.provenance, "inputs": inputs},
        )

        def write_down() -> None:
            following.write(folder)
            if entry.end is not None:
                ledger.reopened(TRIAL_ID)

        order.order(settings, following, given.how, write_down)
    _say_ordered(run_id, given)


def _open_again(settings: Settings, going: Going, asked: str | None) -> None:
    """A training that was stopped goes on with the limits of now, and with other workers where that is asked for."""
    if settings.train.elastic:
        there = answering(going.hosts)
        going.hosts = [*there, *(host for host in going.hosts if host not in there)]
    before, hosts = going.trial, going.hosts
    count = before.world_size if asked is None else planned.how_many(settings, asked)
    if count > len(hosts):
        raise UsageError(f"fleet.size: the training has {count} workers, the fleet {len(hosts)}; type --workers N")
    trial = dataclasses.replace(before, world_size=count)
    seen = foreseen.ask(settings, hosts[:1], trial)
    changed = _changed(going.run, seen)
    if changed is not None:
        raise Refused(
            f"run {going.run.run_id}: {changed} is not what it was when the training began; put it back, or begin a "
            "new training"
        )
    trial = _limited(settings, trial, seen.device)
    if trial != before or going.run.workers != [host.name for host in hosts[:count]]:
        going.plan_again(trial)
    else:
        going.ledger.reopened(TRIAL_ID)


def _changed(run: RunRecord, seen: foreseen.Seen) -> str | None:
    """The model or the data file whose content differs from the plan's."""
    inputs = run.provenance.get("inputs", {})
    if inputs.get("model", {}).get("sha256") not in (None, seen.forecast.model_sha256):
        return f"the model at {run.planned[0].trial.model}"
    known = inputs.get("files", {})
    return next((f"{one.path}" for one in seen.data.files if known.get(one.path) not in (None, one.sha256)), None)


def _say_what_does_not_count(settings: Settings, run: RunRecord) -> None:
    """A resumed training goes on as it was planned; settings that have changed since are named."""
    free = {"workers", "max_restarts", "wait", "elastic", "budget_usd", "max_hours"}
    before, now = run.settings.get("train", {}), settings.public()["train"]
    for name, was in before.items():
        if name not in free and name in now and now[name] != was:
            print(f"train.{name}: {was} as planned, not {now[name]}; a new training takes the new value")
