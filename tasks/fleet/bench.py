"""`inv bench` and `inv cancel`: run a suite of trials over the fleet, resume a run, or cancel it.

Settings and flags become a request; the workers inspect model and data. Both give the plan, which `--dry-run` prints,
and which is written and run without the settings (`tasks.fleet.runner`).
"""

import dataclasses
from collections.abc import Sequence

from invoke.context import Context
from rich.text import Text

from bench.records import Trial
from bench.records.paths import LEDGER_FILE
from bench.records.status import TrialStatus
from remote.fleet.ledger import Ledger
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import load_target, refuse_several
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import console, plain_table
from tasks.clients.workers import bench_program, fleet_hosts, run_hosts
from tasks.commands import BenchOptions
from tasks.errors import Interrupted, RetryableError, SomeTrialsFailed, UsageError, escape_controls
from tasks.fleet import plan, runner
from tasks.fleet.plan import BenchRequest, FleetPlan
from tasks.fleet.run_store import TRAIN, count_statuses, format_statuses, open_run, resume_command
from tasks.fleet.training_job import cancel_training
from tasks.settings.layers import Settings, load


def run_bench(context: Context, options: BenchOptions) -> CommandResult | None:
    """Start a run, return its plan, or resume a run."""
    settings = load(context)
    _check_flags(options, has_suite=("bench", "suite") in getattr(context.config, "typed_settings", ()))
    return _resume(settings, options) if options.resume else _start(settings, options)


def _start(settings: Settings, options: BenchOptions) -> CommandResult | None:
    hosts = fleet_hosts(settings)[: _worker_count(settings, options.workers)]
    request = _read_request(settings, options, [host.name for host in hosts])
    inputs = bench_program(settings).inspect(hosts, request.trials)
    request = dataclasses.replace(request, trials=plan.with_derived(request.trials, inputs))
    run = plan.plan_run(settings, request, inputs)
    fleet_plan = plan.plan_fleet(settings, run, settings.results_folder / run.run_id, hosts)
    if options.dry_run:
        return _show_plan(fleet_plan, request.repeats)
    with acquire_lock(settings.results_folder, f"bench (run {run.run_id})"):
        runner.refuse_busy_workers(settings.results_folder, fleet_plan.program, hosts)
        run = runner.write_plan(settings.results_folder, run)
        fleet_plan = dataclasses.replace(fleet_plan, run=run, folder=settings.results_folder / run.run_id)
        _run_and_compare(settings, fleet_plan, compares=request.quality)
    return None


def _read_request(settings: Settings, options: BenchOptions, workers: Sequence[str]) -> BenchRequest:
    """Read what settings and flags ask for. Raises UsageError."""
    suite_name, trials = _choose_trials(settings, options)
    return BenchRequest(
        suite=suite_name,
        trials=trials,
        workers=workers,
        repeats=settings.bench.repeats or plan.default_repeats(trials, len(workers)),
        quality=options.quality or settings.bench.quality,
    )


def _choose_trials(settings: Settings, options: BenchOptions) -> tuple[str, tuple[Trial, ...]]:
    """Return the suite and its trials, or those of a file. Raises UsageError."""
    only = options.only
    trial_ids = None if only is None else tuple(name.strip() for name in only.split(",") if name.strip())
    if options.trial_file is not None:
        return "trials", plan.read_trials(settings, options.trial_file, trial_ids)
    suite_name = "quick" if options.quick else "full" if options.full else settings.bench.suite
    return suite_name, plan.choose_trials(settings, suite_name, trial_ids)


def _run_and_compare(settings: Settings, fleet_plan: FleetPlan, *, compares: bool) -> None:
    """Run the plan, then compare held-out losses also if some of its trials failed."""
    failure: SomeTrialsFailed | None = None
    try:
        runner.act(fleet_plan)
    except SomeTrialsFailed as error:
        failure = error
    run = fleet_plan.run
    if compares:
        command = f"`{resume_command(run.run_id)}`"
        compare = load_target("tasks.fleet.loss_pairs:compare_run")
        try:
            compare(settings, fleet_plan.folder, fleet_plan.hosts)
        except Interrupted as error:
            raise Interrupted(
                f"run {run.run_id}: interrupted while losses were compared", remedy=f"resume it with {command}"
            ) from error
        except RetryableError as error:
            raise RetryableError.from_error(error, remedy=f"resume it with {command}") from error
    if failure is not None:
        raise failure


def _check_flags(options: BenchOptions, *, has_suite: bool) -> None:
    """Check combinations of flags. Raises UsageError."""
    suite_flags = {
        "--quick": options.quick,
        "--full": options.full,
        "--suite": has_suite,
        "--trial-file": options.trial_file is not None,
    }
    refuse_several("bench", suite_flags)
    if options.resume and (any(suite_flags.values()) or (options.only, options.workers) != (None, None)):
        raise UsageError(
            "bench: --resume uses the plan of the run",
            remedy="leave out --quick, --full, --trial-file, --only and --workers",
        )


def _worker_count(settings: Settings, flag: int | None) -> int:
    """Return the number of workers to use: from the flag, else fleet.size. Raises UsageError."""
    size = settings.fleet.size
    if flag is not None and flag > size:
        raise UsageError(f"bench: --workers: expected a whole number from 1 to fleet.size, {size}, found {flag}")
    return flag or size


def cancel_run(context: Context, name: str | None, *, dry_run: bool = False) -> CommandResult | None:
    """Stop the jobs of a run on the workers, and end its open trials as CANCELLED."""
    settings = load(context)
    run, folder = open_run(settings, name)
    if dry_run:
        with runner.ledger_errors(run.run_id):
            trials = Ledger(folder / LEDGER_FILE).open_trials()
        lines = [f"stop  {trial_id}" for trial_id in trials] or ["nothing to cancel, every trial has ended"]
        return plan_result([f"run {run.run_id}:", *lines], run=run.run_id, stop=list(trials))
    with acquire_lock(settings.results_folder, f"cancel (run {run.run_id})"), runner.ledger_errors(run.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        if ledger.open_trials() and run.suite == TRAIN:
            cancel_training(settings, run, folder, ledger)
        elif ledger.open_trials():
            for fleet in runner.make_fleets(plan.plan_fleet(settings, run, folder, run_hosts(settings, run)), ledger):
                fleet.stop()
                fleet.run()
        outcomes = [entry.outcome for entry in ledger.entries.values() if entry.outcome is not None]
        unconfirmed = [end.text for end in outcomes if end.cause is not None and end.cause.may_still_run]
        if unconfirmed:
            count = formatting.count(len(unconfirmed), "trial")
            raise RetryableError(
                f"run {run.run_id}: cancelled, but {count} may still run: {unconfirmed[0]}",
                remedy="once the worker "
                f"answers, run `{resume_command(run.run_id)}`, then `inv cancel --run={run.run_id}`",
            )
        if any(end.status is TrialStatus.CANCELLED for end in outcomes):
            print(f"run {run.run_id}: cancelled; `{resume_command(run.run_id)}` resumes it")
        else:  # the trials went on without a command that follows them
            ended = format_statuses(count_statuses(ledger.entries.values()), len(run.planned))
            print(f"run {run.run_id}: nothing to cancel: {ended}; `inv collect --run={run.run_id}` fetches its results")
    return None


def _show_plan(fleet_plan: FleetPlan, repeats: int) -> CommandResult:
    """Print the plan and return it."""
    run = fleet_plan.run
    repeated = f" ({repeats} repeats)" if repeats > 1 else ""
    print(
        f"plan: suite {run.suite}, profile {run.profile}, {formatting.count(len(run.planned), 'trial')}{repeated} "
        f"over {formatting.count(len(run.workers), 'worker')} of kind {run.fleet_kind}"
    )
    rows = plain_table("trial", "kind", "size", "steps", "why")
    # One row per trial: the plan holds a trial once per worker and repeat.
    for planned in {planned.trial.trial_id: planned for planned in run.planned}.values():
        trial = planned.trial
        rows.add_row(
            Text(trial.trial_id),
            trial.kind,
            trial.workload.size.format_map(vars(trial)),
            f"{trial.warmup_steps} + {trial.measured_steps}" if trial.workload.has_steps else "-",
            Text(escape_controls(trial.reason)),
        )
    console().print(rows)
    print(f"on {', '.join(run.workers)}; nothing was changed")
    trials = [
        {"trial_id": planned.trial_id, "worker": planned.worker, "trial": planned.trial.to_json()}
        for planned in run.planned
    ]
    facts = {"suite": run.suite, "profile": run.profile, "workers": run.workers}
    return CommandResult(data={**facts, "trials": trials})


def _resume(settings: Settings, options: BenchOptions) -> CommandResult | None:
    run, folder = open_run(settings, options.resume if isinstance(options.resume, str) else None)
    if run.suite == TRAIN:
        raise UsageError(f"run {run.run_id} is a training", remedy=f"resume it with `{resume_command(run.run_id)}`")
    if options.dry_run:
        with runner.ledger_errors(run.run_id):
            entries = Ledger(folder / LEDGER_FILE).entries.items()
        done_ids = [trial_id for trial_id, entry in entries if entry.status is TrialStatus.SUCCEEDED]
        trial_ids = [planned.trial_id for planned in run.planned]
        unfinished = [trial_id for trial_id in trial_ids if trial_id not in done_ids]
        done = f"run {run.run_id}: {len(done_ids)} of {len(trial_ids)} trials are done"
        lines = [done, f"would run: {', '.join(unfinished) or 'nothing'}"]
        return plan_result(lines, run=run.run_id, planned=len(trial_ids), unfinished=unfinished)
    with acquire_lock(settings.results_folder, f"bench --resume (run {run.run_id})"):
        with runner.ledger_errors(run.run_id):
            running = Ledger(folder / LEDGER_FILE).running_workers()
        fleet_plan = plan.plan_fleet(settings, run, folder, fleet_hosts(settings, running))
        compares = options.quality or run.settings.get("bench", {}).get("quality", False)
        _run_and_compare(settings, fleet_plan, compares=compares)
    return None
