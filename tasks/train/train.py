"""`inv train`: a fine-tuning over the fleet, as one detached job that every command finds by its run.

Observe (settings, a trial file, what the workers say of model and data), plan (one trial, which `--dry-run` prints with
hours, dollars and memory), act (`tasks.train.going`). Nothing begins before everything that can be checked was.
"""

from invoke.context import Context

from bench.records import Trial
from bench.records.run import PlannedTrial
from tasks.cli.lock import only_one
from tasks.cli.terminal import console
from tasks.connect.cluster import target_of
from tasks.connect.workers import pod_hosts, workers
from tasks.errors import UsageError
from tasks.fleet import execute
from tasks.fleet.folders import TRAIN
from tasks.settings.load import Settings, load
from tasks.train import foreseen, order, planned, printed, resumed
from tasks.train.going import Going, answering
from tasks.train.planned import TRIAL_ID, Choices

__all__ = ["Choices", "train_fleet"]


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
        resumed.resume(settings, None if bare else given.resume, given)
        return
    if given.changed:
        raise UsageError("train: --changed is for a training that goes on; type it with --resume")
    as_set = settings
    settings, file_trial = planned.with_trial_file(settings, given.trial)
    count = planned.how_many(settings, given.workers)
    trial = planned.trial_of(settings, file_trial, workers=count, max_hours=settings.train.max_hours)
    if given.job:
        _order(as_set, trial, given)
        return
    hosts = workers(settings)
    seen = foreseen.ask(settings, hosts[:count], trial)
    foreseen.refuse(settings, trial, seen)
    trial = foreseen.limited(settings, trial, seen.device)
    predicted = foreseen.foresee(settings, trial, seen)
    names = [host.name for host in hosts[:count]]
    if given.dry_run:
        printed.show_plan(console(), trial, seen, predicted, names)
        return
    run = execute.record_of(
        as_set, TRAIN, [_planned(trial, names[0])], names, inputs=foreseen.inputs(trial, seen, predicted)
    )
    with only_one(settings.results_folder, f"train (run {run.run_id})"):
        execute.refuse_busy_workers(settings, hosts[:count])
        run, folder, ledger = execute.write_plan(settings, run)
        for line in printed.headline(predicted):
            print(line)
        Going.of(settings, run, folder, ledger, hosts).follow(plain=given.plain)


def _order(settings: Settings, trial: Trial, given: Choices) -> None:
    """Have Kubernetes train. Where a worker of the fleet answers it looks at data and model first; else the pods do."""
    names, known = [f"worker-{rank}" for rank in range(trial.world_size)], {}
    there = answering(pod_hosts(settings, target_of(settings))[:1])  # which cluster that is says whoever deploys
    seen = foreseen.ask(settings, there, trial) if there else None
    if seen is None:
        print("no worker is there to look at the data: hours and dollars are unknown; `inv deploy` makes workers")
    else:
        foreseen.refuse(settings, trial, seen)
    trial = foreseen.limited(settings, trial, "" if seen is None else seen.device)
    if seen is not None:
        predicted = foreseen.foresee(settings, trial, seen)
        known = foreseen.inputs(trial, seen, predicted)
        for line in printed.headline(predicted):
            print(line)
    run = order.new(settings, _planned(trial, names[0]), names, known)
    order.order(settings, run, given, lambda: execute.write_plan(settings, run))
    order.say(run.run_id, given)


def _planned(trial: Trial, leader: str) -> PlannedTrial:
    return PlannedTrial(trial_id=TRIAL_ID, trial=trial, worker=leader)
