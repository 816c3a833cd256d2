"""`inv report`: from a run's folder to a page. Reads results/<run-id>/ alone; the workers may be gone."""

import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from invoke.context import Context
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records.paths import REPORT_FOLDER
from bench.records.result import TrialStatus
from reports import formatting
from reports.exports.write import FORMATS, check, export
from reports.output import watch as watching
from reports.output.build import ReportSummary, build
from reports.output.html import INDEX_FILE
from reports.read.run import NotWritten, ReportError
from reports.statistics.types import Ratio
from reports.summary.warnings import MOST_SHOWN
from reports.training import page as training
from tasks.cli.flags import one_of_each
from tasks.cli.signals import interrupted_by
from tasks.cli.terminal import FoldingTable, ruled
from tasks.errors import RetryableError, SomeTrialsFailed, UsageError, one_line, translate_errors
from tasks.fleet.pricing import pricing
from tasks.fleet.run_store import find_run, is_training
from tasks.reports.compare import show_trainings
from tasks.settings.load import load
from tasks.settings.sources import shown


def write_report(
    context: Context, run: str | None, *, watch: bool, against: str | None, formats: Sequence[str] = ()
) -> None:
    settings = load(context)
    wanted = one_of_each("--format", formats, tuple(FORMATS))
    with translate_errors(UsageError, ReportError):
        check(wanted)
    folder = find_run(settings.results_folder, run)
    other = None if against is None else find_run(settings.results_folder, against)
    if is_training(folder):
        if watch:
            raise UsageError("report: --watch: a training's page is made of its end; until then see `inv monitor`")
        _report_training(folder, wanted, other)
        return
    make = partial(build, folder, pricing=pricing(settings), against=other)
    with translate_errors(UsageError, ReportError), translate_errors(RetryableError, NotWritten):
        made = _watch(folder, make) if watch else make()
        exported = export(folder, wanted)
    show(made)
    _say(exported)
    if made.exit_code != 0:
        raise SomeTrialsFailed(_shortfall(made))


def _say(exported: Iterable[Path]) -> None:
    for path in exported:
        print(shown(path))


def _report_training(folder: Path, formats: Sequence[str], other: Path | None) -> None:
    """The report of a training; beside that of another one where that is asked for."""
    with translate_errors(UsageError, ReportError), translate_errors(RetryableError, NotWritten):
        made = training.build(folder)
        exported = export(folder, formats)
    console = Console(highlight=False, soft_wrap=True)
    console.print(Text(made.headline, style="bold"))
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in made.lines:
        rows.add_row(name, Text(one_line(value)))
    console.print(rows)
    both = ruled("", "predicted", "actual")
    for cells in made.compared:
        both.add_row(*cells)
    console.print(both)
    print(shown(made.index))
    _say(exported)
    if other is not None:
        show_trainings([other, folder])
    if not made.has_succeeded:
        raise SomeTrialsFailed(one_line(f"run {folder.name}: {made.headline}"))


def _watch(folder: Path, make: Callable[..., ReportSummary]) -> ReportSummary:
    """Renew the report until the run is over, a line for each version."""
    page = shown(folder / REPORT_FOLDER / INDEX_FILE)

    def say(now: watching.WatchProgress) -> None:
        print(f"{now.ended} of {now.planned} trials have ended: {page}", flush=True)

    try:
        with interrupted_by(signal.SIGTERM, signal.SIGHUP):  # so that the page stops renewing
            return watching.watch(folder, lambda refresh_sec: make(refresh_sec=refresh_sec), say)
    except watching.Unchanged as error:
        advice = f"inv collect --run={folder.name} report --run={folder.name}"
        raise RetryableError(f"run {folder.name}: {error}; collect and report what there is: {advice}") from None


def show(made: ReportSummary) -> None:
    """Print the recommendation, the finding, the table and where the page is."""
    console = Console(highlight=False, soft_wrap=False)
    console.print(Text(made.recommendation, style="bold"))
    if made.finding != made.recommendation:
        console.print(Text(made.finding))
    for caution in made.cautions[:MOST_SHOWN]:
        console.print(Text(f"! {caution}"))
    if (folded := len(made.cautions) - MOST_SHOWN) > 0:
        console.print(Text(f"! {folded} more on the page"))
    for rows in (*([table(made)] if made.rows else ()), *([others(made)] if made.others else ())):
        console.print("", rows)
    console.print()
    if made.profile_note is not None:
        console.print(Text(made.profile_note, style="yellow"))
    # Not wrapped, so that the path can be clicked and copied.
    print(shown(made.index))


def table(made: ReportSummary) -> Table:
    """One line per configuration, within 80 characters; a long name is broken."""
    priced = any(row.cost is not None for row in made.rows)
    heads = ["n", "step s", "samples/s", f"x {formatting.shorten(made.baseline, 14)}", "useful tok/s"]
    shown = FoldingTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("configuration", overflow="fold")
    for head in [*heads, *(["$/1000"] if priced else [])]:
        shown.add_column(head, justify="right", no_wrap=True)
    for row in made.rows:
        measured = row.measured
        name = Text(
            formatting.with_breaks(row.label, 14 if priced else 26)
        )  # it may hold what rich would take for markup
        if measured is None:
            shown.add_row(name, "0", *["-"] * (len(heads) - 1 + priced))
            continue
        cells = [
            str(measured.n_steps),
            formatting.number(measured.step_time_sec.value),
            formatting.number(measured.samples_per_sec.value),
            "1" if row.is_baseline else "-" if row.samples_ratio is None else _times(row.samples_ratio),
            formatting.number(measured.useful_tokens_per_sec.value),
        ]
        if priced:
            cells.append("-" if row.cost is None else formatting.number(row.cost.usd_per_1000_samples.value))
        shown.add_row(name, *cells)
    return shown


def others(made: ReportSummary) -> Table:
    """One line per configuration of another kind than training: trials and measurements."""
    shown = FoldingTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    shown.add_column("configuration", overflow="fold", max_width=26)
    shown.add_column("kind")
    shown.add_column("trials", justify="right")
    shown.add_column("measurements", justify="right")
    for other in made.others:
        shown.add_row(
            Text(other.label), other.kind, f"{other.succeeded} of {other.planned}", f"{other.n_measurements:,}"
        )
    return shown


def _times(of: Ratio) -> str:
    places = formatting.ratio_places(of.low, of.high)
    shown = f"{formatting.number(of.value, places)} {formatting.span(of.low, of.high, places, to='-')}".rstrip()
    return f"{shown}{formatting.mark(of)}"


def _shortfall(made: ReportSummary) -> str:
    ends = [f"{amount} {end.value}" for end, amount in made.counts.items() if end is not TrialStatus.SUCCEEDED]
    if made.missing:
        ends.append(f"{len(made.missing)} missing")
    rejected = f"; {formatting.count(len(made.rejected), 'file')} rejected" if made.rejected else ""
    succeeded, run = made.counts.get(TrialStatus.SUCCEEDED, 0), made.record
    return (
        f"run {run.run_id}: {succeeded} of {len(run.planned)} trials succeeded ({', '.join(ends)}{rejected}); "
        "the report says which and why"
    )
