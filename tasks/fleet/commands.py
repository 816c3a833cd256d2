"""The fleet's verbs: signatures and help. `inv --list` reads this file, so the work is imported when a verb runs."""

from invoke.context import Context
from invoke.tasks import task

_PLAIN = "plain lines instead of the live table, also on a terminal"


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
        "strict": "a trial on a shared or throttled GPU or CPU, or by another recipe than asked for, is FAILED instead "
        "of flagged (default: bench.strict)",
        "resume": "go on with the newest run, or with the run of this id; finished trials are not repeated",
        "dry-run": "print the plan that would run, and touch nothing",
        "plain": _PLAIN,
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
    from tasks.fleet.bench import BenchOptions, run_bench

    choices = BenchOptions(
        quick=quick,
        full=full,
        only=only,
        spread=spread,
        suite=suite,
        trials=trials,
        repeats=repeats,
        strict=strict,
        resume=resume,
        dry_run=dry_run,
        plain=plain,
    )
    run_bench(context, choices)


@task(help={"run": "the run's id (default: the newest run)"})
def cancel(context: Context, run: str | None = None) -> None:
    """Stop what an abandoned run still runs on the workers."""
    from tasks.fleet.bench import cancel_run

    cancel_run(context, run)


@task(
    help={
        "run": "the run's id (default: the newest run)",
        "all": "every run that is not whole here yet, instead of one",
    }
)
def collect(context: Context, run: str | None = None, all: bool = False) -> None:  # noqa: A002 - the flag's name
    """Bring the results into results/RUN, every byte verified."""
    from tasks.fleet.collect import collect_runs

    collect_runs(context, run, every=all)


@task(
    help={
        "once": "print one table and leave",
        "plain": _PLAIN,
        "run": "the pods of this training, which a Job runs by itself (`inv train --job`)",
    }
)
def monitor(context: Context, once: bool = False, plain: bool = False, run: str | None = None) -> None:
    """Show what every worker's GPU is doing, live."""
    from tasks.fleet.monitor import show_workers

    show_workers(context, run, once=once, plain=plain)
