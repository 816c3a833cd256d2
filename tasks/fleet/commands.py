"""Fleet commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from invoke.context import Context
from invoke.tasks import task

_PLAIN = "plain lines instead of the live display, also on a terminal"


@task(
    optional=["resume"],
    help={
        "quick": "run suite quick: 2 trials, the published baseline and optimum",
        "full": "run suite full: 12 trials, one factor at a time",
        "only": "ids of the trials to run, separated by commas (`python -m bench list` shows all)",
        "suite": "quick, full, hardware, loading, inference, distributed, recipes or all (default: bench.suite)",
        "spread": "replicate: every trial on every worker; shard: every trial once (default: bench.spread)",
        "trial-file": "JSON file with the trial to run, or a list of trials (`inv tune` writes one)",
        "repeats": "processes per trial and worker, 1 to 100 (default: bench.repeats)",
        "strict": "mark a trial on a shared or throttled GPU or CPU, or with another recipe, as FAILED instead of "
        "flagging it (default: bench.strict)",
        "resume": "resume the newest run, or the run with this id; finished trials are not repeated",
        "workers": "run on this many of the fleet's workers (default: fleet.size)",
        "dry-run": "print the plan, and change nothing",
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
    trial_file: str | None = None,
    repeats: str | None = None,
    workers: str | None = None,
    strict: bool = False,
    resume: str | None = None,
    dry_run: bool = False,
    plain: bool = False,
) -> None:
    """Run a suite of trials on the fleet, or --resume a run."""
    from tasks.fleet.bench import BenchOptions, run_bench

    options = BenchOptions(
        quick=quick,
        full=full,
        only=only,
        spread=spread,
        suite=suite,
        trial_file=trial_file,
        repeats=repeats,
        workers=workers,
        strict=strict,
        resume=resume,
        dry_run=dry_run,
        plain=plain,
    )
    run_bench(context, options)


@task(help={"run": "run id (default: the newest run)"})
def cancel(context: Context, run: str | None = None) -> None:
    """Stop the trials of an abandoned run on the workers."""
    from tasks.fleet.bench import cancel_run

    cancel_run(context, run)


@task(
    help={
        "run": "run id (default: the newest run)",
        "all": "collect every run with missing results",
    }
)
def collect(context: Context, run: str | None = None, all: bool = False) -> None:  # noqa: A002 - the flag's name
    """Copy the results of a run to results/RUN, verified."""
    from tasks.fleet.collect import collect_runs

    collect_runs(context, run, all_runs=all)


@task(
    help={
        "once": "print one table and exit",
        "plain": _PLAIN,
        "run": "run id of a training in a Job (`inv train --job`): show its pods",
    }
)
def monitor(context: Context, once: bool = False, plain: bool = False, run: str | None = None) -> None:
    """Show the activity of every worker's GPU, live."""
    from tasks.fleet.monitor import show_workers

    show_workers(context, run, once=once, plain=plain)
