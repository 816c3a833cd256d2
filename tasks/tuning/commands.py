"""Tuning command: signature and help. `inv --list` imports this file; the command imports its work when it runs."""

from invoke.context import Context
from invoke.tasks import task


@task(
    optional=["resume"],
    help={
        "resume": "resume the newest search, or the search with this id; finished trials are not repeated",
        "memory-gib": "GPU memory limit in GiB (default: tune.memory_gib, else the GPU's memory)",
        "dry-run": "print the candidates and the first wave, and change nothing",
        "plain": "plain lines instead of the live display, also on a terminal",
    },
)
def tune(
    context: Context,
    resume: str | None = None,
    memory_gib: str | None = None,
    dry_run: bool = False,
    plain: bool = False,
) -> None:
    """Search for the fastest configuration that fits."""
    from tasks.tuning.tune import tune_fleet

    tune_fleet(context, resume, memory_gib, dry_run=dry_run, plain=plain)
