"""`inv bench` and `inv cancel`: run a suite of trials over the fleet, resume a run, or cancel it.

Settings and flags become a request; the workers inspect model and data. Both give the plan, which `--dry-run` prints,
and which is written and run without the settings (`tasks.fleet.runner`). With `fleet.after_success: teardown` a run of
which every trial succeeded, and all files are here, verified and sealed, ends with what `inv teardown` does.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from invoke.context import Context
from rich.text import Text

from bench.records import Trial
from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.host_protocol import Host
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import load_target, refuse_several
from tasks.cli.lock import acquire_lock, acquire_lock_to_cancel
from tasks.cli.terminal import console, plain_table
from tasks.clients.target_cluster import confirm_production, resolve_target
from tasks.clients.workers import fleet_hosts, inspect, run_hosts
from tasks.commands import BenchOptions
from tasks.errors import Interrupted, RetryableError, SomeTrialsFailed, TaskFailed, UsageError, escape_controls
from tasks.fleet import plan, runner
from tasks.fleet.collect import collect_run
from tasks.fleet.notify import check_command, notify_end
from tasks.fleet.plan import BenchRequest, FleetPlan, expected_total_sec, size_text, steps_text
from tasks.fleet.run_store import TRAIN, count_statuses, format_statuses, open_run, resume_command
from tasks.fleet.training_job import cancel_training, describe_cancelled
from tasks.settings.layers import Settings, load


def run_bench(context: Context, options: BenchOptions) -> CommandResult | None:
    """Start a run, return its plan, or resume a run."""
    settings = load(context)
    _check_flags(options, has_suite=("bench", "suite") in getattr(context.config, "typed_settings", ()))
    check_command(settings)
    tears_down = settings.fleet.after_success == "teardown"
    if tears_down:
        _check_teardown(settings, options)
    begin = _resume if options.resume else _start
    try:
        answer = begin(settings, options)
    except TaskFailed as error:
        if tears_down and not options.dry_run:
            print(f"fleet.after_success: nothing is torn down: {error.problem}", flush=True)
        raise
    if tears_down and not options.dry_run:
        print("fleet.after_success: everything succeeded and is here: the fleet is torn down", flush=True)
        delete_fleet = load_target("tasks.cluster.deploy:delete_fleet")
        delete_fleet(context, dry_run=False, yes=True, discard_results=False)
    return answer


def _check_teardown(settings: Settings, options: BenchOptions) -> None:
    """Print that a teardown will follow, and confirm it if the cluster looks like production.

    Raises UsageError without a cluster, and ConfirmationRequired.
    """
    if not settings.connector.is_cluster:
        raise UsageError(
            "fleet.after_success: teardown: fleet.kind is local, which has nothing to tear down",
            remedy="set it to keep",
        )
    if not options.dry_run:
        confirm_production(settings, resolve_target(settings), yes=options.yes)
    print("after success: everything is collected and verified, then the fleet is torn down (`inv teardown`)")


def _start(settings: Settings, options: BenchOptions) -> CommandResult | None:
    count = _worker_count(settings, options.workers)
    suite_name, trials = _choose_trials(settings, options)
    hosts = fleet_hosts(settings)[:count]
    inputs = inspect(settings, hosts, trials)
    request = BenchRequest(
        suite=suite_name,
        trials=plan.with_derived(trials, inputs),
        workers=[host.name for host in hosts],
        spread=settings.bench.spread,
        repeats=settings.bench.repeats or plan.default_repeats(trials, len(hosts)),
        quality=options.quality or settings.bench.quality,
    )
    run = plan.plan_run(settings, request, inputs)
    fleet_plan = plan.plan_fleet(settings, run, settings.results_folder / run.run_id, hosts)
    if request.quality:
        print(load_target("tasks.tuning.loss_pairs:describe_power")(settings, settings.model.path, settings.data.path))
    if options.dry_run:
        return _show_plan(fleet_plan, request.repeats, settings.fleet.after_success)
    with acquire_lock(settings.results_folder, f"bench (run {run.run_id})", follows=run.run_id):
        runner.refuse_busy_workers(settings, hosts)
        run = runner.write_plan(settings.results_folder, run)
        fleet_plan = dataclasses.replace(fleet_plan, run=run, folder=settings.results_folder / run.run_id)
        _finish(settings, fleet_plan, options, compares=request.quality)
    return None


def _choose_trials(settings: Settings, options: BenchOptions) -> tuple[str, tuple[Trial, ...]]:
    """Return the suite and its trials, or those of a file. Raises UsageError."""
    only = options.only
    trial_ids = None if only is None else tuple(name.strip() for name in only.split(",") if name.strip())
    if options.trial_file is not None:
        return "trials", plan.read_trials(settings, options.trial_file, trial_ids)
    suite_name = "quick" if options.quick else "full" if options.full else settings.bench.suite
    return suite_name, plan.choose_trials(settings, suite_name, trial_ids)


def _finish(settings: Settings, fleet_plan: FleetPlan, options: BenchOptions, *, compares: bool) -> None:
    """Run the plan, compare held-out losses also if some of its trials failed, and collect it before a teardown."""
    failure: SomeTrialsFailed | None = None
    try:
        runner.act(fleet_plan, plain=options.plain, retries_failures=True)
    except SomeTrialsFailed as error:
        failure = error
    run, folder, hosts = fleet_plan.run, fleet_plan.folder, fleet_plan.hosts
    if compares:
        command = f"`{resume_command(run)}`"
        try:
            load_target("tasks.tuning.loss_pairs:compare_run")(settings, folder, hosts, plain=options.plain)
        except Interrupted as error:
            raise Interrupted(
                f"run {run.run_id}: interrupted while losses were compared", remedy=f"resume it with {command}"
            ) from error
        except RetryableError as error:
            raise RetryableError.from_error(error, remedy=f"resume it with {command}") from error
    if failure is not None:
        raise failure
    if settings.fleet.after_success == "teardown":
        _collect(settings, run, folder, hosts)


def _collect(settings: Settings, run: RunRecord, folder: Path, hosts: Sequence[Host]) -> None:
    """Collect a run that succeeded, with the runs of its comparison of losses.

    Raises a task's error if something is not here: then nothing is torn down.
    """
    losses = load_target("tasks.tuning.loss_pairs:read_record")(folder)
    run_ids = [] if losses is None else [run_id for check in losses.checks for run_id in check.run_ids]
    for each_run, each_folder in ((run, folder), *(open_run(settings, run_id) for run_id in run_ids)):
        collect_run(settings, each_run, each_folder, hosts)


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
    """Stop the jobs of a run on the workers, and end its open trials as CANCELLED.

    A command on this machine that follows the run is asked to do that.
    """
    settings = load(context)
    run, folder = open_run(settings, name)
    if dry_run:
        with runner.ledger_errors(run.run_id):
            trials = Ledger(folder / LEDGER_FILE).open_trials()
        lines = [f"stop  {trial_id}" for trial_id in trials] or ["nothing to cancel, every trial has ended"]
        return plan_result([f"run {run.run_id}:", *lines], run=run.run_id, stop=list(trials))
    with (
        acquire_lock_to_cancel(settings.results_folder, run.run_id) as was_followed,
        runner.ledger_errors(run.run_id),
    ):
        ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        is_cancelled = any(entry.status is TrialStatus.CANCELLED for entry in ledger.entries.values())
        if not ledger.open_trials() and not (was_followed and is_cancelled):
            print(f"run {run.run_id}: nothing to cancel, every trial has ended")
            return None
        if run.suite == TRAIN:
            if ledger.open_trials():
                with notify_end(settings.notify.command, run, folder, ledger):
                    cancel_training(settings, run, folder, ledger)
            print(describe_cancelled(run, ledger))
            return None
        with notify_end(settings.notify.command, run, folder, ledger):
            for fleet in runner.make_fleets(plan.plan_fleet(settings, run, folder, run_hosts(settings, run)), ledger):
                fleet.stop()
                fleet.run()
        outcomes = [entry.outcome for entry in ledger.entries.values() if entry.outcome is not None]
        unreachable_reasons = [end.text for end in outcomes if end.cause is not None and end.cause.may_still_run]
        if unreachable_reasons:
            count = formatting.count(len(unreachable_reasons), "trial")
            raise RetryableError(
                f"run {run.run_id}: cancelled, but {count} may still run: {unreachable_reasons[0]}",
                remedy="once the worker "
                f"answers, run `{resume_command(run.run_id)}`, then `inv cancel --run={run.run_id}`",
            )
        statuses = count_statuses(ledger.entries.values())
        if TrialStatus.CANCELLED.value in statuses:
            print(f"run {run.run_id}: cancelled; `{resume_command(run.run_id)}` resumes it")
        else:  # the trials went on without a command that follows them
            ended = format_statuses(statuses, len(run.planned))
            print(f"run {run.run_id}: nothing to cancel, every trial had ended: {ended}")
    return None


def _show_plan(fleet_plan: FleetPlan, repeats: int, after_success: str) -> CommandResult:
    """Print the plan and return it."""
    run, expected_by_trial = fleet_plan.run, fleet_plan.expected_sec
    spread_text = run.spread + (f", {repeats} repeats" if repeats > 1 else "")
    print(
        f"plan: suite {run.suite}, profile {run.profile}, {formatting.count(len(run.planned), 'trial')} "
        f"({spread_text}) over {formatting.count(len(run.workers), 'worker')} of kind {run.fleet_kind}"
    )
    is_mixed = not all(planned.trial.workload.is_compared for planned in run.planned)
    rows = plain_table(*(("trial", "kind", "size") if is_mixed else ("trial", "seq x batch")), "steps", "expected")
    rows.add_column("why")
    # One row per trial: the plan holds a trial once per worker and repeat.
    for planned in {planned.trial.trial_id: planned for planned in run.planned}.values():
        trial, expected = planned.trial, expected_by_trial[planned.trial_id]
        time_text = "-" if expected is None else formatting.clock(expected)
        rows.add_row(
            Text(trial.trial_id),
            *([trial.kind] if is_mixed else []),
            size_text(trial),
            steps_text(trial),
            time_text,
            Text(escape_controls(trial.reason)),
        )
    console().print(rows)
    workers = [name for name in run.workers if any(planned.worker in (None, name) for planned in run.planned)]
    print(f"on {', '.join(workers)}")
    total = expected_total_sec(fleet_plan)
    expected_time = "unknown (some trials have never run here)" if total is None else f"about {formatting.clock(total)}"
    print(f"expected time: {expected_time}; nothing was changed")
    trials = [
        {
            "trial_id": planned.trial_id,
            "worker": planned.worker,
            "expected_sec": expected_by_trial[planned.trial_id],
            "trial": planned.trial.to_json(),
        }
        for planned in run.planned
    ]
    facts = {"suite": run.suite, "profile": run.profile, "spread": run.spread, "workers": run.workers}
    facts |= {"after_success": after_success}
    return CommandResult(data={**facts, "expected_sec": total, "trials": trials})


def _resume(settings: Settings, options: BenchOptions) -> CommandResult | None:
    run, folder = open_run(settings, options.resume if isinstance(options.resume, str) else None)
    if run.suite == TRAIN:
        raise UsageError(f"run {run.run_id} is a training", remedy=f"resume it with `{resume_command(run.run_id)}`")
    if options.dry_run:
        with runner.ledger_errors(run.run_id):
            ledger = Ledger(folder / LEDGER_FILE)
            trial_ids = [planned.trial_id for planned in run.planned]
            unfinished = [trial_id for trial_id in trial_ids if ledger.needs_work(trial_id)]
        done = f"run {run.run_id}: {len(trial_ids) - len(unfinished)} of {len(trial_ids)} trials are done"
        lines = [done, f"would run: {', '.join(unfinished) or 'nothing'}"]
        facts = {"planned": len(trial_ids), "unfinished": unfinished, "after_success": settings.fleet.after_success}
        return plan_result(lines, run=run.run_id, **facts)
    with acquire_lock(settings.results_folder, f"bench --resume (run {run.run_id})", follows=run.run_id):
        with runner.ledger_errors(run.run_id):
            running = Ledger(folder / LEDGER_FILE).running_workers()
        fleet_plan = plan.plan_fleet(settings, run, folder, fleet_hosts(settings, running))
        _finish(
            settings,
            fleet_plan,
            options,
            compares=options.quality or run.settings.get("bench", {}).get("quality", False),
        )
    return None
