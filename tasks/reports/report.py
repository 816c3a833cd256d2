"""`inv report`: build a run's report and print its summary. Reads only results/<run-id>/; no workers are needed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from invoke.context import Context
from rich.table import Table as RichTable
from rich.text import Text

from bench.records.paths import REPORT_FOLDER
from bench.records.status import TrialStatus
from reports import formatting
from reports.comparison.comparability import NAMES
from reports.document import Cell, Table
from reports.exports import FORMATS, check_packages, export
from reports.output.page import INDEX_FILE
from reports.output.write_report import Report, build, build_training
from reports.read.loaded_run import ReportError, ReportWriteError
from reports.summary.summary import Summary
from reports.training.training_facts import TrainingReport
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.flags import parse_names
from tasks.cli.terminal import console, ruled_table
from tasks.cli.waiting import Wait
from tasks.errors import RetryableError, SomeTrialsFailed, UsageError, escape_controls, translate_errors
from tasks.fleet.pending_results import missing_reason
from tasks.fleet.pricing import pricing
from tasks.fleet.run_store import find_run, is_training, refuse_unended
from tasks.reports.compare import compare_trainings
from tasks.settings.layers import load
from tasks.settings.sources import display_path

MAX_SHOWN = 5  # warnings on the terminal
DRAWING = "drawing the report"


def write_report(
    context: Context,
    run: str | None,
    *,
    against: str | None,
    allow: Sequence[str] = (),
    formats: Sequence[str] = (),
    dry_run: bool = False,
) -> CommandResult:
    settings = load(context)
    allowed = parse_names("--allow", allow, NAMES)
    if allowed and against is None:
        raise UsageError("report: --allow: there is no run to compare with", remedy="pass it with --against")
    selected_formats = parse_names("--format", formats, tuple(FORMATS))
    with translate_errors(UsageError, ReportError):
        check_packages(selected_formats)
    folder = find_run(settings.results_folder, run)
    other = None if against is None else find_run(settings.results_folder, against)
    if dry_run:
        target = folder / REPORT_FOLDER
        lines = [f"write  {display_path(target / INDEX_FILE)}, and its data and figures"]
        lines += [f"write  {display_path(target)}: files for {name}" for name in selected_formats]
        return plan_result(lines, run=folder.name, folder=str(target), formats=list(selected_formats))
    is_of_training = is_training(folder)
    if is_of_training:
        refuse_unended(folder)
    report: Report[Summary] | Report[TrainingReport]
    with translate_errors(UsageError, ReportError), translate_errors(RetryableError, ReportWriteError):
        with Wait(DRAWING):
            if is_of_training:
                report = build_training(folder)
            else:
                report = build(folder, pricing=pricing(settings), against=other, allow=allowed)
        exported = export(folder, selected_formats)
    document = report.document
    _show(report, exported)
    if is_of_training and other is not None:
        compare_trainings([other, folder])
    data = {
        "run": folder.name,
        "headline": document.headline,
        "notes": [*document.notes, *document.doubts, *document.results],
        "tables": {
            title: [[None if cell is None else cell.text for cell in row.cells] for row in table.rows]
            for title, table in document.brief_tables
        },
        "page": str(report.index),
        "files": list(map(str, (*report.files, *exported))),
    }
    values = report.values
    if isinstance(values, Summary):
        return CommandResult(data=data, failure=_failure(values, folder) if values.exit_code else None)
    failed = SomeTrialsFailed(escape_controls(f"run {folder.name}: {document.headline}"))
    return CommandResult(data=data, failure=None if values.has_succeeded else failed)


def _show(report: Report[Any], exported: Iterable[Path]) -> None:
    """Print the first screen of a report, its brief tables, and the paths of its files."""
    out, document = console(soft_wrap=False), report.document
    out.print(Text(escape_controls(document.headline), style="bold"))
    for note in document.notes:
        out.print(Text(escape_controls(note)))
    for doubt in document.doubts[:MAX_SHOWN]:
        out.print(Text(escape_controls(f"! {doubt}")))
    if (hidden := len(document.doubts) - MAX_SHOWN) > 0:
        out.print(Text(f"! {hidden} more on the page"))
    for result in document.results:
        out.print(Text(escape_controls(result)))
    for _, table in document.brief_tables:
        out.print("", terminal_table(table))
    out.print()
    for purpose, command in document.commands:
        print(escape_controls(f"{purpose}: `{command}`"))
    for path in (report.index, *exported):
        print(display_path(path))


def terminal_table(table: Table) -> RichTable:
    """Return a table without its wide columns; each cell has its value, a ratio also its interval."""
    columns = [(index, column) for index, column in enumerate(table.columns) if not column.is_wide_only]
    labels = {column.label: column.is_number for _, column in columns}
    shown = ruled_table(*labels, right={label for label, is_number in labels.items() if is_number})
    for row in table.rows:
        shown.add_row(*(_terminal_text(row.cells[index], has_interval="ratio" in each.unit) for index, each in columns))
    return shown


def _terminal_text(cell: Cell | None, *, has_interval: bool) -> Text:
    """Return text that no markup in it changes."""
    lines = () if cell is None else (cell.value, *(each.replace(" to ", "-") for each in cell.details[:has_interval]))
    return Text("\n".join(map(escape_controls, lines)))


def _failure(summary: Summary, folder: Path) -> SomeTrialsFailed:
    failures = [
        f"{count} {status.value}" for status, count in summary.counts.items() if status is not TrialStatus.SUCCEEDED
    ]
    if summary.missing:
        failures.append(f"{len(summary.missing)} missing")
    rejected = f"; {formatting.count(len(summary.rejected), 'file')} rejected" if summary.rejected else ""
    succeeded, record = summary.counts.get(TrialStatus.SUCCEEDED, 0), summary.record
    return SomeTrialsFailed(
        f"run {record.run_id}: {succeeded} of {len(record.planned)} trials succeeded ({', '.join(failures)}{rejected})",
        remedy=(summary.missing and missing_reason(folder, record)) or "see the report for the reasons",
    )
