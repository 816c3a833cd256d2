"""`inv runs --history`: each configuration's speed and each training's loss over all runs, as a page and a table."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from reports.history.page import COLUMNS, headline, row, write_page
from reports.history.series import History, read_history
from reports.read.run import ReportError
from tasks.cli.answer import Answer
from tasks.cli.terminal import console, print_path, ruled_table
from tasks.errors import RetryableError, UsageError, escape_controls, translate_errors
from tasks.settings.load import Settings


def read_answer(settings: Settings) -> Answer:
    """Write the page and return the history. Raises UsageError without a run."""
    folder = settings.results_folder
    history = read_history(folder)
    if not history.series and not history.rejected:
        raise UsageError(f"{folder}: no run has a speed or a loss", remedy="type `inv bench --quick` to measure one")
    with translate_errors(RetryableError, ReportError):
        index = write_page(history, folder)
    return Answer(kind="history", data=_document(history), show=lambda: _print(history, index))


def _print(history: History, index: Path) -> None:
    out = console()
    out.print(Text(escape_controls(headline(history)), style="bold"))
    for series in history.series:
        table = ruled_table(*(COLUMNS[index] for index in (0, 2, 3, 4)))
        for point in series.points:
            cells = [escape_controls(cell) for cell in row(point)]
            change = "\n".join((cells[4], *(escape_controls(change) for change in point.changes)))
            table.add_row(Text(cells[0]), cells[2], cells[3], Text(change))
        out.print("", Text(escape_controls(f"{series.name} ({series.detail}), {series.unit}"), style="bold"), table)
    for rejected in history.rejected:
        print(escape_controls(f"left out: {rejected.file}: {rejected.reason}"))
    if history.omitted:
        print(f"left out: {history.omitted} older runs")
    print_path(index)


def _document(history: History) -> dict[str, Any]:
    return {
        "series": [{**asdict(series), "unit": series.unit} for series in history.series],
        "rejected": [asdict(each) for each in history.rejected],
        "omitted": history.omitted,
    }
