"""The verbs of training: signatures and help. `inv --list` reads this file, so the work is imported when one runs."""

from invoke.context import Context
from invoke.tasks import task


@task(help={"page": "write the same as an HTML page to this file", "json": "print the worker's answer as JSON instead"})
def check(context: Context, page: str | None = None, json: bool = False) -> None:
    """Show what a training would train on."""
    from tasks.train.check import check_data

    check_data(context, page, as_json=json)
