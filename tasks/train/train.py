"""`inv train`: run a fine-tuning that needs no operator, as a Kubernetes Job over pods or as a job on one host.

Settings and flags become a request; a worker's look at model and data, if one answers, becomes facts. Both give the
plan, which `--dry-run` prints with hours, dollars and memory, and which is submitted and followed
(`tasks.train.follow`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from invoke.context import Context

from bench.records import Trial, schema
from bench.records.run import PlannedTrial, RunRecord
from remote.hosts.host_protocol import Host, HostError
from remote.jobs.job import Agent, slot_path
from tasks.cli.command_result import CommandResult
from tasks.cli.flags import refuse_several
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console
from tasks.clients.target_cluster import resolve_target
from tasks.clients.workers import bench_program, fleet_hosts, pod_hosts
from tasks.cluster.commands import DeployOptions
from tasks.commands import TrainOptions
from tasks.errors import UsageError, escape_controls
from tasks.fleet import runner, trial_spec
from tasks.fleet.plan import new_record
from tasks.fleet.run_store import TRAIN, find_run, newest_training, open_run
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.layers import Settings, load
from tasks.train import forecast, init_adapter, output, resume, shapes
from tasks.train.data_warnings import DataWarning, find_warnings
from tasks.train.follow import follow
from tasks.train.forecast import ProbeResult, TrainingForecast
from tasks.train.init_adapter import InitAdapter
from tasks.train.submit import NO_VOLUME, job_facts, submit

NO_WORKER = "no worker answers to check the data: hours and dollars are unknown; `inv deploy` creates workers"


def check_data(context: Context) -> CommandResult:
    """Show the data report and the forecast."""
    settings = load(context)
    trial = trial_spec.make_trial(settings, trial_spec.worker_count(settings, None))
    probe = forecast.probe_worker(settings, fleet_hosts(settings)[0], trial)
    trial = trial.with_derived(probe.derived)
    predicted = forecast.predict(settings, trial, probe)
    warnings = [asdict(warning) for warning in find_warnings(probe.data, trial, predicted.steps)]
    return CommandResult(
        data={**schema.to_json(probe.data), "warnings": warnings},
        show=lambda: output.show_report(console(), probe, trial, predicted),
    )


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """A training as settings and flags ask for it. `hosts` may be asked; `job` is where it will run."""

    trial: Trial
    workers: Sequence[str]
    hosts: Sequence[Host]
    job: dict[str, Any]
    adapter: InitAdapter | None


Facts = tuple[ProbeResult, TrainingForecast]  # a worker's look at model and data, and what follows from it


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """A training that may be submitted: its trial and what its run's record says about its inputs."""

    trial: Trial
    workers: Sequence[str]
    inputs: dict[str, Any]
    lines: Sequence[str]
    warnings: Sequence[DataWarning] = ()


def train_fleet(context: Context, options: TrainOptions) -> CommandResult | None:
    """Start a training and follow it, return its plan, or resume one."""
    settings = load(context)
    dry_run, discard_results = options.dry_run, options.discard_results
    deployment = DeployOptions(dry_run=dry_run, discard_results=discard_results, force=True, partial=True)
    sources = {"--resume": options.resume, "--from": options.from_run}
    sources["--matmul"] = ("train", "matmul") in getattr(context.config, "typed_settings", ())
    refuse_several("train", sources)
    if options.resume:
        if options.workers is not None:
            raise UsageError("train: --resume uses the plan of the run", remedy="leave out --workers")
        name = options.resume if isinstance(options.resume, str) else newest_training(settings.results_folder)
        return resume.resume(settings, *open_run(settings, name), deployment)
    request = read_request(settings, options)
    facts = gather_facts(settings, request)
    plan = plan_training(request, facts)
    planned = [PlannedTrial(trial_id=TRIAL_ID, trial=plan.trial, worker=plan.workers[0])]
    run = new_record(settings, TRAIN, planned, plan.workers, inputs=plan.inputs)
    if dry_run:
        return _show_plan(settings, run, plan, facts, deployment)
    _act(settings, request, run, plan, deployment)
    return None


def read_request(settings: Settings, options: TrainOptions) -> TrainRequest:
    """Read what settings and flags ask for. Raises UsageError and ConfirmationRequired."""
    configuration = None
    if options.from_run is not None:
        source = find_run(settings.results_folder, options.from_run)
        from tasks.train import recommended  # its libraries take 0.4 s

        configuration, lines = recommended.recommended_trial(settings, source)
        print(*map(escape_controls, lines), sep="\n")
    count = trial_spec.worker_count(settings, options.workers)
    is_over_pods = settings.connector.is_cluster
    hosts: Sequence[Host] = fleet_hosts(settings)[:count] if not is_over_pods else _answering_pod(settings)
    return TrainRequest(
        trial=trial_spec.make_trial(settings, count, configuration),
        workers=[f"worker-{rank}" for rank in range(count)] if is_over_pods else [host.name for host in hosts],
        hosts=hosts,
        job=job_facts(settings, "" if is_over_pods else f"{hosts[0].workdir}/runs", count),
        adapter=init_adapter.find_adapter(settings, has_worker=bool(hosts)),
    )


def _answering_pod(settings: Settings) -> Sequence[Host]:
    """Return the first worker's pod if it runs commands now: it can look at model and data."""
    (host,) = pod_hosts(resolve_target(settings), settings.fleet.pods, 1)
    try:
        Agent(host).holder(slot_path(host))
    except HostError:
        return ()
    return (host,)


def gather_facts(settings: Settings, request: TrainRequest) -> Facts | None:
    """Have a worker check model and data, and predict the training; None if none answers. Raises UsageError."""
    if not request.hosts:
        return None
    probe = forecast.probe_worker(settings, request.hosts[0], request.trial)
    forecast.check_limits(settings, request.trial, probe)
    return probe, forecast.predict(settings, request.trial, probe)


def plan_training(request: TrainRequest, facts: Facts | None) -> TrainPlan:
    """Plan the training; settings that follow from the data stay open for its attempts. Raises UsageError."""
    trial, inputs = request.trial, {"job": request.job, "model": {"path": request.trial.model}}
    lines = [NO_VOLUME] if request.job.get("keeps_pod") else []
    if facts is None:
        return TrainPlan(trial=trial, workers=request.workers, inputs=inputs, lines=[*lines, NO_WORKER])
    probe, predicted = facts
    forecast.check_time_limit(predicted)
    if request.adapter is not None:
        trial = init_adapter.begin_from(request.adapter, trial, probe.model_sha256, request.job)
        lines.append(init_adapter.describe(request.adapter))
    known = trial.with_derived(probe.derived)
    return TrainPlan(
        trial=forecast.pin_inputs(trial, probe),
        workers=request.workers,
        inputs={**inputs, **forecast.run_inputs(trial, probe, predicted)},
        lines=[*lines, *output.summary_lines(probe, known, predicted)],
        warnings=find_warnings(probe.data, known, predicted.steps),
    )


def _show_plan(
    settings: Settings, run: RunRecord, plan: TrainPlan, facts: Facts | None, deployment: DeployOptions
) -> CommandResult:
    """Print the plan, over pods with that of their deployment."""
    for line in plan.lines:
        print(escape_controls(line))
    document: dict[str, Any] = {"workers": list(plan.workers), "forecast": None, "trial": plan.trial.to_json()}
    if facts is not None:
        probe, predicted = facts
        known = plan.trial.with_derived(probe.derived)
        costs = [] if probe.gpu is None else shapes.shape_costs(settings, known, probe)
        output.show_plan(console(), known, probe, plan.workers)
        shapes.show_shapes(console(), costs, shapes.hosted_line(settings, known, probe))
        document |= {"forecast": asdict(predicted), "shapes": [asdict(cost) for cost in costs]}
        document["warnings"] = [asdict(warning) for warning in plan.warnings]
    if "overlay" in plan.inputs["job"]:
        _, deployed = submit(settings, run, deployment, lambda: run)
        document["cluster"] = None if deployed is None else deployed.data
    return CommandResult(data=document)


def _act(settings: Settings, request: TrainRequest, run: RunRecord, plan: TrainPlan, deployment: DeployOptions) -> None:
    """Submit the training and follow it."""
    with acquire_lock(settings.results_folder, f"train (run {run.run_id})"):
        if not settings.connector.is_cluster:
            runner.refuse_busy_workers(settings.results_folder, bench_program(settings), request.hosts)
        init_adapter.send(request.adapter, request.job, request.hosts)
        for line in plan.lines:
            print(escape_controls(line))
        run, _ = submit(settings, run, deployment, lambda: runner.write_plan(settings.results_folder, run))
        follow(settings, run, settings.results_folder / run.run_id)
