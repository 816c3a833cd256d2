"""The reports' verbs: signatures and help. `inv --list` reads this file, so the work is imported when a verb runs."""

from collections.abc import Sequence

from invoke.context import Context
from invoke.tasks import task


@task(
    iterable=["format"],
    help={
        "run": "the run's id (default: the newest run)",
        "watch": "renew the report as results arrive, until every planned trial has one",
        "against": "a run's id to compare this one with, in a figure",
        "format": "also write files of tensorboard, mlflow, wandb, optimum-benchmark or mlperf; may be given again",
    },
)
def report(
    context: Context,
    run: str | None = None,
    watch: bool = False,
    against: str | None = None,
    format: Sequence[str] | None = None,  # noqa: A002 - the flag is called so
) -> None:
    """Write a run's report: page, Markdown, data and figures."""
    from tasks.reports.report import write_report

    write_report(context, run, watch=watch, against=against, formats=format or ())


@task(
    help={
        "run": "the run's id (default: the newest run)",
        "port": "where it listens, on this machine alone",
        "once": "write the event files of what there is now, start nothing, and end",
    }
)
def tensorboard(context: Context, run: str | None = None, port: str = "6006", once: bool = False) -> None:
    """Start TensorBoard on a run, also while it goes on."""
    from tasks.reports.tensorboard import show

    show(context, run, port=port, once=once)


@task(help={"json": "print one JSON object for programs"})
def runs(context: Context, json: bool = False) -> None:
    """List the runs: how far each came, what its report says."""
    from tasks.reports.runs import list_runs

    list_runs(context, as_json=json)


@task(
    positional=["first", "second"],
    iterable=["also", "allow"],
    help={
        "first": "the run that the others are compared with",
        "second": "the run to compare",
        "also": "one more run to compare with the first; may be given again",
        "allow": "what may differ (gpu, driver, lock, weights, profile, ...), or unknown; may be given again",
        "tolerance": "percent that a configuration may be slower without failing",
        "out": "where to write compare.json (default: the last run's report folder)",
        "json": "print what compare.json holds; all else goes to standard error",
    },
)
def compare(
    context: Context,
    first: str,
    second: str,
    also: Sequence[str] | None = None,  # any other default would be a type to Invoke: tuple("gpu") is g, p, u
    allow: Sequence[str] | None = None,
    tolerance: str = "1",
    out: str | None = None,
    json: bool = False,
) -> None:
    """Say what became faster or slower between runs."""
    from tasks.reports.compare import compare_runs

    compare_runs(context, (first, second, *(also or ())), allow=allow or (), tolerance=tolerance, out=out, as_json=json)
