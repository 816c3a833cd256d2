"""The verb of tuning: signature and help. `inv --list` reads this file, so the work is imported when it runs."""

from invoke.context import Context
from invoke.tasks import task


@task(
    optional=["resume"],
    help={
        "resume": "go on with the newest search, or with the one of this id; nothing finished is measured again",
        "memory-gib": "GPU memory a configuration may use (default: tune.memory_gib, else what the GPU has)",
        "dry-run": "print the candidates and the first wave, and touch nothing",
        "plain": "plain lines instead of the live table, also on a terminal",
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
