"""`inv train`: run a fine-tuning over the fleet, as one detached job that every command finds by its run.

It reads settings and trial file, has the workers check model and data, and plans one trial, which `--dry-run` prints
with hours, dollars and memory. After all checks it starts the training (`tasks.train.session`).
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records import Trial, schema
from bench.records.run import PlannedTrial
from remote.hosts.base import Host, HostError
from remote.jobs.job import Agent, slot_path
from tasks.cli.command_result import CommandResult
from tasks.cli.flags import refuse_several
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, print_path
from tasks.clients.cluster import resolve_target
from tasks.clients.workers import fleet_hosts, pod_hosts
from tasks.commands import TrainOptions
from tasks.errors import UsageError, escape_controls, file_errors
from tasks.fleet import runner, trial_spec
from tasks.fleet.notify import check_command
from tasks.fleet.run_store import TRAIN
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.load import Settings, load
from tasks.train import forecast, init_adapter, output, resume, shapes, submit_job
from tasks.train.forecast import TrainingForecast
from tasks.train.session import TrainingSession


def check_data(context: Context, out: str | None) -> CommandResult:
    """Show the data report and the forecast; `out` is the path of an HTML page to write."""
    settings = load(context)
    hosts = fleet_hosts(settings)
    trial = trial_spec.make_trial(settings, None, workers=trial_spec.worker_count(settings, None), max_hours=None)
    probe = forecast.probe_workers(settings, hosts, trial)
    trial = trial.with_derived(probe.forecast.derived)
    predicted = forecast.predict(settings, trial, probe)
    if out is not None:
        with file_errors(f"data.check: --out: {out}", "name another file"):
            Path(out).write_text(output.html_page(probe, trial, predicted), encoding="utf-8")

    def show() -> None:
        output.show_report(console(), probe, trial, predicted)
        if out is not None:
            print_path(Path(out))

    return CommandResult(data=schema.to_json(probe.data), show=show)


def train_fleet(context: Context, options: TrainOptions) -> CommandResult | None:
    """Start a training, return its plan, submit it as a Job, or resume one."""
    settings = load(context)
    check_command(settings)
    if options.job:
        submit_job.check_settings(settings)
    elif options.discard_results or options.yes:
        raise UsageError(
            "train: --yes and --discard-results apply to a deployed training", remedy="pass them with --job"
        )
    if options.resume:
        if options.trial_file is not None or options.workers is not None:
            raise UsageError("train: --resume uses the plan of the run", remedy="leave out --trial-file and --workers")
        refuse_several("train", {"--resume": options.resume, "--from": options.from_run})
        return resume.resume(settings, options.resume if isinstance(options.resume, str) else None, options)
    configured = settings
    refuse_several("train", {"--trial-file": options.trial_file, "--from": options.from_run})
    if options.from_run is None:
        settings, file_trial = trial_spec.apply_trial_file(settings, options.trial_file)
    else:
        from tasks.train import recommended  # its libraries take 0.4 s

        settings, file_trial = recommended.apply_recommended(settings, options.from_run)
        print(*map(escape_controls, recommended.describe_source(configured, file_trial, options.from_run)), sep="\n")
    count = trial_spec.worker_count(settings, options.workers)
    trial = trial_spec.make_trial(settings, file_trial, workers=count, max_hours=settings.train.max_hours)
    if options.job:
        return _submit_job(configured, trial, options)
    hosts, adapter = fleet_hosts(settings), init_adapter.find_adapter(settings)
    probe = forecast.probe_workers(settings, hosts[:count], trial)
    trial = init_adapter.begin_from(settings, adapter, trial, probe.forecast.model_sha256, hosts)
    forecast.check_limits(settings, trial, probe)
    trial = forecast.pin_inputs(forecast.cap_steps(settings, trial, probe.device), probe)
    predicted = forecast.predict(settings, trial, probe)
    forecast.check_time_limit(predicted)
    names = [host.name for host in hosts[:count]]
    known = trial.with_derived(probe.forecast.derived)  # as far as this worker's data show; the attempts derive again
    if options.dry_run:
        output.show_plan(console(), known, probe, predicted, names)
        costs = shapes.shape_costs(settings, known, probe, predicted.steps)
        shapes.show_shapes(console(), costs, shapes.hosted_line(settings, known, probe, predicted.steps))
        return CommandResult(
            data={**_plan_document(trial, names, predicted), "shapes": [asdict(cost) for cost in costs]}
        )
    run = runner.new_record(
        configured, TRAIN, [_planned_trial(trial, names[0])], names, inputs=forecast.run_inputs(trial, probe, predicted)
    )
    with acquire_lock(settings.results_folder, f"train (run {run.run_id})", follows=run.run_id):
        runner.refuse_busy_workers(settings, hosts[:count])
        init_adapter.send(settings, adapter, hosts[:count])
        run, folder, ledger = runner.write_plan(settings, run)
        for line in output.summary_lines(probe, known, predicted):
            print(escape_controls(line))
        TrainingSession.create(settings, run, folder, ledger, hosts).wait(plain=options.plain)
    return None


def _plan_document(trial: Trial, workers: Sequence[str], predicted: TrainingForecast | None) -> dict[str, Any]:
    """Return the plan as JSON for programs; `forecast` is None if no worker has checked the data."""
    return {
        "workers": list(workers),
        "forecast": None if predicted is None else asdict(predicted),
        "trial": trial.to_json(),
    }


def _submit_job(settings: Settings, trial: Trial, options: TrainOptions) -> CommandResult | None:
    """Submit the training as a Job, or return its plan.

    If a worker answers, it checks data and model first; otherwise the pods do.
    """
    names, inputs, predicted = [f"worker-{rank}" for rank in range(trial.world_size)], {}, None
    # `deploy` prints which cluster this is.
    reachable = [host for host in pod_hosts(settings, resolve_target(settings))[:1] if _answers(host)]
    adapter = init_adapter.find_adapter(settings, has_worker=bool(reachable))
    probe = forecast.probe_workers(settings, reachable, trial) if reachable else None
    if probe is None:
        print("no worker answers to check the data: hours and dollars are unknown; `inv deploy` creates workers")
    else:
        forecast.check_limits(settings, trial, probe)
    trial = forecast.cap_steps(settings, trial, "" if probe is None else probe.device)
    if probe is not None:
        trial = init_adapter.begin_from(settings, adapter, trial, probe.forecast.model_sha256, reachable)
        if not options.dry_run:
            init_adapter.send(settings, adapter, reachable)
        trial = forecast.pin_inputs(trial, probe)
        predicted = forecast.predict(settings, trial, probe)
        forecast.check_time_limit(predicted)
        inputs = forecast.run_inputs(trial, probe, predicted)
        for line in output.summary_lines(probe, trial.with_derived(probe.forecast.derived), predicted):
            print(escape_controls(line))
    run = submit_job.new_run(settings, _planned_trial(trial, names[0]), names, inputs)

    plan = submit_job.submit(settings, run, options, lambda: runner.write_plan(settings, run))
    submit_job.print_submitted(run.run_id, options)
    if plan is None:
        return None
    return CommandResult(data={**_plan_document(trial, names, predicted), "cluster": plan.data})


def _answers(host: Host) -> bool:
    """Check whether the host runs commands now."""
    try:
        Agent(host).holder(slot_path(host))
    except HostError:
        return False
    return True


def _planned_trial(trial: Trial, leader: str) -> PlannedTrial:
    return PlannedTrial(trial_id=TRIAL_ID, trial=trial, worker=leader)
