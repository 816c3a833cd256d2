"""`inv bench` and `inv cancel`: a suite of trials over the fleet, until every trial has its end.

Observe (settings, workers, their model and data), plan (a RunRecord, which `--dry-run` prints), act (the fleet),
observe again (the ledger). Everything about the workers comes from `tasks.clients.workers`.
"""

from dataclasses import dataclass
from typing import Any

from invoke.context import Context
from rich.console import Console
from rich.text import Text

from bench.records import SUITES
from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from remote.fleet.ledger import Ledger
from remote.fleet.worker import NOT_ASKED
from remote.hosts.host import Host
from reports import formatting
from tasks.cli.lock import acquire_lock
from tasks.cli.terminal import table
from tasks.clients.workers import inspect, workers
from tasks.errors import RetryableError, UsageError
from tasks.fleet import plan, runner
from tasks.fleet.k8s_training import cancel
from tasks.fleet.k8s_training.volume_reader import is_ordered
from tasks.fleet.live_display import duration
from tasks.fleet.plan import expected_sec, expected_total_sec, size_of, steps_of
from tasks.fleet.run_store import TRAIN, open_run, resume_command
from tasks.settings.load import Settings, load


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The flags of `inv bench`."""

    quick: bool
    full: bool
    only: str | None
    spread: str | None
    suite: str | None
    trials: str | None
    repeats: str | None
    strict: bool
    resume: str | None
    dry_run: bool
    plain: bool


def run_bench(context: Context, given: BenchOptions) -> None:
    settings = load(context)
    _refuse_wrong_usage(given)
    if given.resume:
        bare = given.resume is True  # type: ignore[comparison-overlap] # Invoke's bare optional value
        _resume(settings, None if bare else given.resume, dry_run=given.dry_run, plain=given.plain)
        return
    # The plan is written with the values that count, so that a resume needs no flag again.
    chosen: dict[str, Any] = {
        "spread": given.spread or settings.bench.spread,
        "strict": given.strict or settings.bench.strict,
        "repeats": settings.bench.repeats if given.repeats is None else int(given.repeats),
    }
    settings = settings.model_copy(update={"bench": settings.bench.model_copy(update=chosen)})
    suite_name = "quick" if given.quick else "full" if given.full else given.suite or settings.bench.suite
    run, hosts = _plan(settings, suite_name, given.only, given.trials)
    if given.dry_run:
        _print_plan(settings, run)
        return
    with acquire_lock(settings.results_folder, f"bench (run {run.run_id})"):
        runner.refuse_busy_workers(settings, hosts)
        run, folder, ledger = runner.write_plan(settings, run)
        runner.work(settings, run, folder, ledger, hosts, plain=given.plain)


def _refuse_wrong_usage(given: BenchOptions) -> None:
    """Raises UsageError."""
    choices = {
        "--quick": given.quick,
        "--full": given.full,
        "--suite": given.suite is not None,
        "--trials": given.trials is not None,
    }
    asked = [name for name, is_given in choices.items() if is_given]
    if len(asked) > 1:
        raise UsageError(f"bench: {' and '.join(asked)} exclude each other; give one of them")
    others = (given.only, given.spread, given.repeats)
    if given.resume and (asked or given.strict or any(other is not None for other in others)):
        raise UsageError(
            "bench: --resume goes on with a run's own plan; "
            "leave out --quick, --full, --suite, --trials, --only, --spread, --repeats and --strict"
        )
    if given.repeats is not None and not (given.repeats.isdecimal() and 1 <= int(given.repeats) <= 100):
        raise UsageError(f"bench: --repeats: expected a whole number from 1 to 100, found {given.repeats!r}")
    if given.suite is not None and given.suite not in SUITES:
        raise UsageError(f"bench: --suite: expected one of {', '.join(SUITES)}, found {given.suite!r}")
    if given.spread not in (None, "replicate", "shard"):
        raise UsageError(f"bench: --spread: expected replicate or shard, found {given.spread!r}")


def cancel_run(context: Context, name: str | None) -> None:
    settings = load(context)
    run, folder = open_run(settings, name)
    with acquire_lock(settings.results_folder, f"cancel (run {run.run_id})"), runner.ledger_errors(run.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in run.planned])
        if not ledger.open_trials():
            print(f"run {run.run_id}: nothing to cancel, every trial has its end")
            return
        if is_ordered(run):
            cancel.cancel(settings, run, folder, ledger)
            return
        for fleet in runner.fleets_of(settings, run, folder, ledger, workers(settings)):
            fleet.stop()
            fleet.run()
        entries = ledger.entries.values()
        left = [
            entry.reason for entry in entries if entry.end is TrialStatus.CANCELLED and NOT_ASKED in str(entry.reason)
        ]
        if left:
            raise RetryableError(
                f"run {run.run_id}: cancelled, but {formatting.count(len(left), 'trial')} may still run: {left[0]}; when the "
                f"worker answers, `{resume_command(run.run_id)}` finds it and `inv cancel --run={run.run_id}` stops it"
            )
        print(f"run {run.run_id}: cancelled; `{resume_command(run.run_id)}` goes on with it")


def _plan(settings: Settings, suite_name: str, only: str | None, file: str | None) -> tuple[RunRecord, list[Host]]:
    if only is None:
        chosen = settings.bench.only or None
    else:
        chosen = tuple(name.strip() for name in only.split(",") if name.strip())
    if file is None:
        trials = plan.choose_trials(settings, suite_name, chosen)
    else:
        trials, suite_name = plan.read_trials(settings, file, chosen), "trials"
    hosts = workers(settings)
    return runner.plan_of(settings, suite_name, trials, hosts, inputs=inspect(settings, hosts, trials)), hosts


def _print_plan(settings: Settings, run: RunRecord) -> None:
    each = expected_sec(settings, run)
    repeats = run.settings["bench"]["repeats"]
    times = run.spread + (f", {repeats} repeats" if repeats > 1 else "")
    print(
        f"plan: suite {run.suite}, profile {run.profile}, {formatting.count(len(run.planned), 'trial')} "
        f"({times}) over {formatting.count(len(run.workers), 'worker')} of kind {run.fleet_kind}"
    )
    is_mixed = any(planned.trial.kind != "training" for planned in run.planned)
    rows = table(*(("trial", "kind", "size") if is_mixed else ("trial", "seq x batch")), "steps", "expected")
    rows.add_column("why")
    # One line a trial: the plan holds it once for each worker and repeat.
    for planned in {planned.trial.trial_id: planned for planned in run.planned}.values():
        trial, expected = planned.trial, each[planned.trial_id]
        rows.add_row(
            Text(trial.trial_id),
            *([trial.kind] if is_mixed else []),
            size_of(trial),
            steps_of(trial),
            "-" if expected is None else duration(expected),
            Text(trial.reason),
        )
    Console().print(rows)
    print(f"on {', '.join(run.workers)}")
    total = expected_total_sec(run, each)
    took = "unknown: not every trial has run here before" if total is None else f"about {duration(total)}"
    print(f"expected time: {took}; nothing was touched")


def _resume(settings: Settings, name: str | None, *, dry_run: bool, plain: bool) -> None:
    run, folder = open_run(settings, name)
    if run.suite == TRAIN:
        raise UsageError(f"run {run.run_id} is a training; `{resume_command(run.run_id)}` goes on with it")
    if dry_run:
        with runner.ledger_errors(run.run_id):
            ledger = Ledger(folder / LEDGER_FILE)
            trial_ids = [planned.trial_id for planned in run.planned]
            again = [trial_id for trial_id in trial_ids if ledger.needs_work(trial_id)]
        print(f"run {run.run_id}: {len(trial_ids) - len(again)} of {len(trial_ids)} trials are done")
        print("would go on with:", ", ".join(again) or "nothing")
        return
    with acquire_lock(settings.results_folder, f"bench --resume (run {run.run_id})"):
        runner.resume(settings, run.run_id, workers(settings), plain=plain)
