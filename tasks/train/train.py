"""`inv train`: a fine-tuning over the fleet, as one detached job that every command finds by its run.

Observe (settings, a trial file, what the workers say of model and data), plan (one trial, which `--dry-run` prints with
hours, dollars and memory), act (`tasks.train.session`). Nothing begins before everything that can be checked was.
"""

from invoke.context import Context

from bench.records import Trial
from bench.records.run import PlannedTrial
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console
from tasks.clients.cluster import target_of
from tasks.clients.workers import pod_hosts, workers
from tasks.errors import UsageError
from tasks.fleet import runner
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings, load
from tasks.train import forecast, output, resume, submit_job, trial_spec
from tasks.train.session import TrainingSession, reachable_workers
from tasks.train.trial_spec import TRIAL_ID, TrainOptions

__all__ = ["TrainOptions", "train_fleet"]


def train_fleet(context: Context, given: TrainOptions) -> None:
    settings = load(context)
    if given.elastic:
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"elastic": True})})
    if given.job:
        submit_job.check(settings)
    elif given.yes or given.discard_results:
        raise UsageError("train: --yes and --discard-results are for a training that is deployed; type them with --job")
    if given.resume:
        if given.trial is not None:
            raise UsageError("train: --resume goes on with a run's own plan; leave out --trial")
        bare = given.resume is True  # type: ignore[comparison-overlap] # Invoke's bare optional value
        resume.resume(settings, None if bare else given.resume, given)
        return
    if given.changed:
        raise UsageError("train: --changed is for a training that goes on; type it with --resume")
    as_set = settings
    settings, file_trial = trial_spec.with_trial_file(settings, given.trial)
    count = trial_spec.how_many(settings, given.workers)
    trial = trial_spec.trial_of(settings, file_trial, workers=count, max_hours=settings.train.max_hours)
    if given.job:
        _order(as_set, trial, given)
        return
    hosts = workers(settings)
    seen = forecast.ask(settings, hosts[:count], trial)
    forecast.check_limits(settings, trial, seen)
    trial = forecast.cap_steps(settings, trial, seen.device)
    predicted = forecast.predict(settings, trial, seen)
    names = [host.name for host in hosts[:count]]
    if given.dry_run:
        output.show_plan(console(), trial, seen, predicted, names)
        return
    run = runner.record_of(
        as_set, TRAIN, [_planned(trial, names[0])], names, inputs=forecast.inputs(trial, seen, predicted)
    )
    with acquire_lock(settings.results_folder, f"train (run {run.run_id})"):
        runner.refuse_busy_workers(settings, hosts[:count])
        run, folder, ledger = runner.write_plan(settings, run)
        for line in output.headline(predicted):
            print(line)
        TrainingSession.of(settings, run, folder, ledger, hosts).follow(plain=given.plain)


def _order(settings: Settings, trial: Trial, given: TrainOptions) -> None:
    """Have Kubernetes train. Where a worker of the fleet answers it looks at data and model first; else the pods do."""
    names, known = [f"worker-{rank}" for rank in range(trial.world_size)], {}
    there = reachable_workers(
        pod_hosts(settings, target_of(settings))[:1]
    )  # which cluster that is says whoever deploys
    seen = forecast.ask(settings, there, trial) if there else None
    if seen is None:
        print("no worker is there to look at the data: hours and dollars are unknown; `inv deploy` makes workers")
    else:
        forecast.check_limits(settings, trial, seen)
    trial = forecast.cap_steps(settings, trial, "" if seen is None else seen.device)
    if seen is not None:
        predicted = forecast.predict(settings, trial, seen)
        known = forecast.inputs(trial, seen, predicted)
        for line in output.headline(predicted):
            print(line)
    run = submit_job.new(settings, _planned(trial, names[0]), names, known)
    submit_job.order(settings, run, given, lambda: runner.write_plan(settings, run))
    submit_job.say(run.run_id, given)


def _planned(trial: Trial, leader: str) -> PlannedTrial:
    return PlannedTrial(trial_id=TRIAL_ID, trial=trial, worker=leader)
