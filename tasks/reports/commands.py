"""Report commands: signatures and help. The work is imported when a command runs, so that `inv --list` is fast."""

from collections.abc import Sequence

from invoke.context import Context
from invoke.tasks import task


@task(
    iterable=["format", "allow"],
    help={
        "run": "run id (default: the newest run)",
        "follow": "update the report as results arrive, until every planned trial has one",
        "against": "run id to compare with, in a figure",
        "allow": "condition of --against that may differ (gpu, driver, lock, weights, profile, ...); repeatable",
        "format": "also export for tensorboard, mlflow, wandb, optimum-benchmark or mlperf; repeatable",
    },
)
def report(
    context: Context,
    run: str | None = None,
    follow: bool = False,
    against: str | None = None,
    allow: Sequence[str] | None = None,
    format: Sequence[str] | None = None,  # noqa: A002 - the flag's name
) -> None:
    """Write a run's report: HTML, Markdown, data and figures."""
    from tasks.reports.report import write_report

    write_report(context, run, follow=follow, against=against, allow=allow or (), formats=format or ())


@task(
    help={
        "run": "run id (default: the newest run)",
        "port": "port on this machine's loopback address (default: 6006)",
        "once": "write the event files of the current results and exit, without starting TensorBoard",
    }
)
def tensorboard(context: Context, run: str | None = None, port: str = "6006", once: bool = False) -> None:
    """Start TensorBoard on a run, also on a running one."""
    from tasks.reports.tensorboard import serve_run

    serve_run(context, run, port=port, once=once)


@task(help={"json": "print one JSON object"})
def runs(context: Context, json: bool = False) -> None:
    """List the runs with their progress and main result."""
    from tasks.reports.runs import list_runs

    list_runs(context, as_json=json)


@task(
    positional=["first", "second"],
    iterable=["also", "allow"],
    help={
        "first": "run id of the reference",
        "second": "run id to compare with it",
        "also": "another run id to compare with the first; repeatable",
        "allow": "condition that may differ (gpu, driver, lock, weights, profile, ...) or be unknown; repeatable",
        "tolerance": "percent that a configuration may be slower without failing (default: 1)",
        "out": "folder for compare.json (default: the report folder of the last run)",
        "json": "print the content of compare.json; other output goes to standard error",
    },
)
def compare(
    context: Context,
    first: str,
    second: str,
    also: Sequence[str] | None = None,  # Invoke casts to the type of another default: tuple("gpu") is g, p, u
    allow: Sequence[str] | None = None,
    tolerance: str = "1",
    out: str | None = None,
    json: bool = False,
) -> None:
    """Show what became faster or slower between runs."""
    from tasks.reports.compare import compare_runs

    compare_runs(context, (first, second, *(also or ())), allow=allow or (), tolerance=tolerance, out=out, as_json=json)
