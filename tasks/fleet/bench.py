"""`inv bench` and `inv cancel`: a suite of trials over the fleet, to its last end, whatever happens on the way.

Observe (settings, workers, their model and data), plan (a RunRecord, which `--dry-run` prints), act (the fleet),
observe again (the ledger). What it knows of the workers it knows through `tasks.connect.workers` alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import task

from tasks.errors import UsageError
from tasks.fleet import execute as running

if TYPE_CHECKING:
    from bench.records.run import RunRecord
    from remote.hosts.host import Host
    from tasks.settings.load import Settings


@task(
    optional=["resume"],
    help={
        "quick": "run the suite quick: 2 trials, the published baseline and optimum",
        "full": "run the suite full: 12 trials, one factor at a time",
        "only": "run these trials of the suite alone: ids separated by commas (`python -m bench list` shows them)",
        "suite": "quick, full, hardware, loading, inference, distributed, recipes or all (default: bench.suite)",
        "spread": "replicate: every trial on every worker; shard: every trial once (default: bench.spread)",
        "trials": "run the trials of this JSON file: one as an object, or a list (`inv tune` writes one)",
        "repeats": "run each trial this many times, each in a process of its own (default: bench.repeats)",
        "strict": "a trial on a shared or throttled GPU or CPU is FAILED instead of flagged (default: bench.strict)",
        "resume": "go on with the newest run, or with the run of this id; finished trials are not repeated",
        "dry-run": "print the plan that would run, and touch nothing",
        "plain": "plain lines instead of the live table, also on a terminal",
    },
)
def bench(
    context: Context,
    quick: bool = False,
    full: bool = False,
    only: str | None = None,
    spread: str | None = None,
    suite: str | None = None,
    trials: str | None = None,
    repeats: str | None = None,
    strict: bool = False,
    resume: str | None = None,
    dry_run: bool = False,
    plain: bool = False,
) -> None:
    """Run a suite of trials over the fleet, or --resume a run."""
    from bench.records import SUITES
    from tasks.cli.lock import only_one
    from tasks.settings import load as house

    settings = house.load(context)
    choices = (("--quick", quick), ("--full", full), ("--suite", suite is not None), ("--trials", trials is not None))
    asked = [name for name, given in choices if given]
    if len(asked) > 1:
        raise UsageError(f"bench: {' and '.join(asked)} exclude each other; give one of them")
    if resume and (asked or strict or any(given is not None for given in (only, spread, repeats))):
        raise UsageError(
            "bench: --resume goes on with a run's own plan; "
            "leave out --quick, --full, --suite, --trials, --only, --spread, --repeats and --strict"
        )
    if repeats is not None and not (repeats.isdecimal() and 1 <= int(repeats) <= 100):
        raise UsageError(f"bench: --repeats: expected a whole number from 1 to 100, found {repeats!r}")
    if suite is not None and suite not in SUITES:
        raise UsageError(f"bench: --suite: expected one of {', '.join(SUITES)}, found {suite!r}")
    if spread not in (None, "replicate", "shard"):
        raise UsageError(f"bench: --spread: expected replicate or shard, found {spread!r}")
    if resume:
        name = None if resume is True else resume  # type: ignore[comparison-overlap] # Invoke's bare optional value
        _resume(settings, name, dry_run=dry_run, plain=plain)
        return
    # The run is planned, and written down, with what counted for it; a resume then needs no option again.
    chosen: dict[str, Any] = {"spread": spread or settings.bench.spread, "strict": strict or settings.bench.strict}
    chosen["repeats"] = settings.bench.repeats if repeats is None else int(repeats)
    settings = settings.model_copy(update={"bench": settings.bench.model_copy(update=chosen)})
    suite_name = "quick" if quick else "full" if full else suite or settings.bench.suite
    run, hosts = _plan(settings, suite_name, only, trials)
    if dry_run:
        _print_plan(settings, run)
        return
    with only_one(settings.results_folder, f"bench (run {run.run_id})"):
        running.refuse_busy_workers(settings, hosts)
        run, folder, ledger = running.write_plan(settings, run)
        running.work(settings, run, folder, ledger, hosts, plain=plain)


@task(help={"run": "the run's id (default: the newest run)"})
def cancel(context: Context, run: str | None = None) -> None:
    """Stop what an abandoned run still has running on the workers."""
    from bench.records.layout import LEDGER_FILE
    from remote.fleet.ledger import Ledger
    from tasks.cli.lock import only_one
    from tasks.connect.workers import refuse_other_fleet, workers
    from tasks.fleet.folders import find_run, read_run
    from tasks.settings import load as house

    settings = house.load(context)
    folder = find_run(settings.results_folder, run)
    record = read_run(folder)
    refuse_other_fleet(settings, record)
    with only_one(settings.results_folder, f"cancel (run {record.run_id})"), running.ledger_errors(record.run_id):
        ledger = Ledger.create(folder / LEDGER_FILE, [planned.trial_id for planned in record.planned])
        if not ledger.open_trials():
            print(f"run {record.run_id}: nothing to cancel, every trial has its end")
            return
        for fleet in running.fleets_of(settings, record, folder, ledger, workers(settings), None):
            fleet.stop()
            fleet.run()
        print(f"run {record.run_id}: cancelled; `inv bench --resume={record.run_id}` goes on with it")


def _plan(settings: Settings, suite_name: str, only: str | None, file: str | None) -> tuple[RunRecord, list[Host]]:
    from tasks.connect.workers import inspect, workers
    from tasks.fleet import plan

    if only is None:
        chosen = settings.bench.only or None
    else:
        chosen = tuple(name.strip() for name in only.split(",") if name.strip())
    if file is None:
        trials = plan.choose_trials(settings, suite_name, chosen)
    else:
        trials, suite_name = plan.read_trials(settings, file, chosen), "trials"
    hosts = workers(settings)
    return running.plan_of(settings, suite_name, trials, hosts, inputs=inspect(settings, hosts)), hosts


def _print_plan(settings: Settings, run: RunRecord) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tasks.fleet.liveview import duration
    from tasks.fleet.plan import expected_sec, expected_total_sec, size_of, steps_of

    each = expected_sec(settings.results_folder, run.planned)
    console = Console()
    console.print(
        f"plan: suite {run.suite}, profile {run.profile}, {len(run.planned)} trials "
        f"({', '.join(_times(run))}) over {len(run.workers)} workers of kind {run.fleet_kind}",
        markup=False,
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    is_mixed = any(planned.trial.kind != "training" for planned in run.planned)
    heads = (
        ("trial", "kind", "size", "steps", "expected") if is_mixed else ("trial", "seq x batch", "steps", "expected")
    )
    for head in heads:
        table.add_column(head, no_wrap=True)
    table.add_column("why")
    # A trial is one line: the plan holds it once for each worker and repeat, with nothing else different.
    for planned in {planned.trial.trial_id: planned for planned in run.planned}.values():
        trial, expected = planned.trial, each[planned.trial_id]
        table.add_row(
            Text(trial.trial_id),
            *([trial.kind] if is_mixed else []),
            size_of(trial),
            steps_of(trial),
            "-" if expected is None else duration(expected),
            Text(trial.reason),
        )
    console.print(table)
    console.print(f"on {', '.join(run.workers)}", markup=False, soft_wrap=True)
    total = expected_total_sec(run.planned, len(run.workers), each)
    took = "unknown: not every trial has run here before" if total is None else f"about {duration(total)}"
    console.print(f"expected time: {took}; nothing was touched", markup=False, soft_wrap=True)


def _times(run: RunRecord) -> list[str]:
    repeats = run.settings["bench"]["repeats"]
    return [run.spread, *([f"{repeats} repeats"] if repeats > 1 else [])]


def _resume(settings: Settings, name: str | None, *, dry_run: bool, plain: bool) -> None:
    from bench.records.layout import LEDGER_FILE
    from remote.fleet.ledger import Ledger
    from tasks.cli.lock import only_one
    from tasks.connect.workers import refuse_other_fleet, workers
    from tasks.fleet.folders import find_run, read_run

    folder = find_run(settings.results_folder, name)
    run = read_run(folder)
    refuse_other_fleet(settings, run)
    if dry_run:
        with running.ledger_errors(run.run_id):
            seen = Ledger(folder / LEDGER_FILE)
            trial_ids = [planned.trial_id for planned in run.planned]
            again = [trial_id for trial_id in trial_ids if seen.needs_work(trial_id)]
        print(f"run {run.run_id}: {len(trial_ids) - len(again)} of {len(trial_ids)} trials are done")
        print("would go on with:", ", ".join(again) or "nothing")
        return
    with only_one(settings.results_folder, f"bench --resume (run {run.run_id})"):
        running.go_on(settings, run.run_id, workers(settings), plain=plain)
