"""`inv bench` and `inv cancel`: run a suite of trials over the fleet, resume a run, or cancel it.

`inv bench` reads the settings and inspects the workers, their model and data. It writes a plan (a RunRecord, which
`--dry-run` prints), runs the fleet, and reports the outcome from the ledger.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from invoke.context import Context
from rich.text import Text

from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.trial import SUITE_NAMES
from remote.fleet.ledger import Ledger
from remote.hosts.base import Host
from reports import formatting
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import load_target, refuse_several
from tasks.cli.lock import acquire_lock, acquire_lock_to_cancel
from tasks.cli.terminal import console, plain_table
from tasks.clients.workers import fleet_hosts, inspect, resume_hosts, run_hosts
from tasks.commands import BenchOptions
from tasks.errors import Interrupted, RetryableError, SomeTrialsFailed, UsageError, escape_controls
from tasks.fleet import after_success, plan, runner
from tasks.fleet.notify import check_command, notify_end
from tasks.fleet.plan import expected_sec, expected_total_sec, size_text, steps_text
from tasks.fleet.run_store import TRAIN, count_statuses, format_statuses, open_run, resume_command
from tasks.fleet.training_job import cancel_training, describe_cancelled
from tasks.settings.load import Settings, load


def run_bench(context: Context, options: BenchOptions) -> CommandResult | None:
    """Start a run, return its plan, or resume a run."""
    settings = load(context)
    _check_flags(options)
    check_command(settings)
    after_success.check(settings, yes=options.yes, dry_run=options.dry_run)
    begin = _resume if options.resume else _start
    if options.dry_run:
        return begin(settings, options)
    with after_success.teardown_after(context, settings):
        return begin(settings, options)


def _start(settings: Settings, options: BenchOptions) -> CommandResult | None:
    # The flags are written into the plan, so that a resume does not need them.
    overrides: dict[str, Any] = {
        "spread": options.spread or settings.bench.spread,
        "strict": options.strict or settings.bench.strict,
        "quality": options.quality or settings.bench.quality,
        "repeats": settings.bench.repeats if options.repeats is None else options.repeats,
    }
    settings = settings.with_values(bench=overrides, fleet={"size": _worker_count(settings, options.workers)})
    suite_name = "quick" if options.quick else "full" if options.full else options.suite or settings.bench.suite
    run, hosts = _plan(settings, suite_name, options.only, options.trial_file)
    if (warning := plan.shared_cores_warning(settings)) is not None:
        print(f"! {warning}")
    if settings.bench.quality:
        print(load_target("tasks.tuning.quality:describe_power")(settings, settings.model.path, settings.data.path))
    if options.dry_run:
        return _plan_answer(settings, run)
    with acquire_lock(settings.results_folder, f"bench (run {run.run_id})", follows=run.run_id):
        runner.refuse_busy_workers(settings, hosts)
        run, folder, ledger = runner.write_plan(settings, run)
        with _then_compare_losses(settings, run, folder, hosts, plain=options.plain):
            runner.run_trials(settings, run, folder, ledger, hosts, plain=options.plain)
        after_success.collect(settings, run, folder, hosts)
    return None


@contextlib.contextmanager
def _then_compare_losses(
    settings: Settings, run: RunRecord, folder: Path, hosts: list[Host], *, plain: bool
) -> Iterator[None]:
    """Run the block, then compare held-out losses if the run's plan says so, also if some of its trials failed."""
    failure: SomeTrialsFailed | None = None
    try:
        yield
    except SomeTrialsFailed as error:
        failure = error
    if run.settings.get("bench", {}).get("quality"):
        command = f"`{resume_command(run.run_id)}`"
        try:
            load_target("tasks.tuning.quality:compare_run")(settings, folder, hosts, plain=plain)
        except Interrupted as error:
            raise Interrupted(
                f"run {run.run_id}: interrupted while losses were compared", remedy=f"resume it with {command}"
            ) from error
        except RetryableError as error:
            raise RetryableError.from_error(error, remedy=f"resume it with {command}") from error
    if failure is not None:
        raise failure


def _check_flags(options: BenchOptions) -> None:
    """Check values and combinations of flags. Raises UsageError."""
    suite_flags = {
        "--quick": options.quick,
        "--full": options.full,
        "--suite": options.suite is not None,
        "--trial-file": options.trial_file is not None,
    }
    refuse_several("bench", suite_flags)
    flags = [name for name, is_set in suite_flags.items() if is_set]
    plan_overrides = (options.only, options.spread, options.repeats, options.workers)
    if options.resume and (flags or options.strict or any(value is not None for value in plan_overrides)):
        raise UsageError(
            "bench: --resume uses the plan of the run",
            remedy="leave out --quick, --full, --suite, --trial-file, --only, --spread, --repeats, --workers "
            "and --strict",
        )
    if options.suite is not None and options.suite not in SUITE_NAMES:
        raise UsageError(f"bench: --suite: expected one of {', '.join(SUITE_NAMES)}, found {options.suite!r}")
    if options.spread not in (None, "replicate", "shard"):
        raise UsageError(f"bench: --spread: expected replicate or shard, found {options.spread!r}")


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
                with notify_end(settings, run, folder, ledger):
                    cancel_training(settings, run, folder, ledger)
            print(describe_cancelled(run, ledger))
            return None
        with notify_end(settings, run, folder, ledger):
            for fleet in runner.make_fleets(settings, run, folder, ledger, run_hosts(settings, run)):
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


def _plan(settings: Settings, suite_name: str, only: str | None, file: str | None) -> tuple[RunRecord, list[Host]]:
    trial_ids = None if only is None else tuple(name.strip() for name in only.split(",") if name.strip())
    if file is None:
        trials = plan.choose_trials(settings, suite_name, trial_ids)
    else:
        trials, suite_name = plan.read_trials(settings, file, trial_ids), "trials"
    hosts = fleet_hosts(settings)
    names, spread = [host.name for host in hosts], settings.bench.spread
    repeats = settings.bench.repeats or plan.default_repeats(trials, len(names))
    settings = settings.with_values(bench={"repeats": repeats})
    inputs = inspect(settings, hosts, trials)
    run = runner.new_record(settings, suite_name, [], names, inputs=inputs)
    is_over_pods = settings.connector.is_cluster
    planned = plan.plan_trials(trials, names, spread, repeats, is_over_pods=is_over_pods, seed=run.run_id)
    return dataclasses.replace(run, planned=planned), hosts


def _plan_answer(settings: Settings, run: RunRecord) -> CommandResult:
    """Print the plan and return it."""
    expected_by_trial = expected_sec(settings, run)
    repeats = run.settings["bench"]["repeats"]
    spread_text = run.spread + (f", {repeats} repeats" if (repeats or 1) > 1 else "")
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
    total = expected_total_sec(run, expected_by_trial)
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
    facts |= {"after_success": settings.fleet.after_success}
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
        hosts = resume_hosts(settings, running)
        planned = run if not options.quality else dataclasses.replace(run, settings=_with_quality(run.settings))
        with _then_compare_losses(settings, planned, folder, hosts, plain=options.plain):
            runner.resume(settings, run.run_id, hosts, plain=options.plain, retries_failures=True)
        after_success.collect(settings, run, folder, hosts)
    return None


def _with_quality(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a plan's settings with --quality, which a resumed run may add."""
    return {**settings, "bench": {**settings.get("bench", {}), "quality": True}}
