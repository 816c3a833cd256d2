"""What `inv data.check` found, for a terminal and as a page: numbers, lengths, findings, examples with their targets.

All text of the data is shown with its control characters escaped: a data file must not be able to move a cursor.
"""

import io
import math

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records.training_data import DataReport, Shown
from tasks.errors import one_line
from tasks.settings.load import Settings

TARGET, OTHER = "bold green", "dim"
BAR = 40  # characters
MOST_SHOWN = 1200  # characters of one example
PAGE_COLUMNS = 110


def show(out: Console, report: DataReport, settings: Settings) -> None:
    for line in headline(report, settings):
        out.print(Text(line))
    out.print(_files(report))
    out.print(_lengths(report))
    if report.findings:
        out.print(_findings(report))
    for number, example in enumerate(report.shown, start=1):
        out.print(_example(number, example))


def page(report: DataReport, settings: Settings) -> str:
    """The same as an HTML page of its own."""
    recorder = Console(record=True, file=io.StringIO(), width=PAGE_COLUMNS, color_system="truecolor", soft_wrap=False)
    show(recorder, report, settings)
    return recorder.export_html(inline_styles=True)


def headline(report: DataReport, settings: Settings) -> list[str]:
    """The numbers that decide what a training costs."""
    share = 100 * report.targets / report.tokens
    per_step = settings.train.rows_per_step
    steps = math.ceil(report.rows / per_step)
    lines = [
        f"{_count(report.examples, 'example')} to train on, {_count(report.validation_examples, 'example')} held out, "
        f"{_count(report.left_out, 'line')} left out",
        f"{report.tokens:,} tokens an epoch, {share:.1f} % of them trained on (labels: {settings.train.labels})",
        f"{_count(report.rows, 'packed row')} an epoch, {_count(steps, 'step')} of {_count(per_step, 'row')}",
    ]
    kept = "read from the examples kept there" if report.was_cached else "tokenized"
    return [*lines, f"{kept} in {report.seconds:.1f} s"]


def _files(report: DataReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("file", "kind"):
        table.add_column(head, overflow="fold")
    for head in ("lines", "weight", "sha256"):
        table.add_column(head, justify="right")
    for file in report.files:
        table.add_row(
            Text(one_line(file.path)), file.kind, f"{file.lines:,}", f"{file.weight:g}", Text(file.sha256[:12])
        )
    return table


def _lengths(report: DataReport) -> Table:
    """How many examples are how long, as bars."""
    table = Table(box=None, pad_edge=False, title="Examples by length in tokens", title_justify="left")
    table.add_column("up to", justify="right")
    table.add_column("examples", justify="right")
    table.add_column("")
    most = max(report.lengths)
    last = max(place for place, count in enumerate(report.lengths) if count)
    for edge, count in zip(report.length_edges[: last + 1], report.lengths, strict=False):
        table.add_row(f"{edge:,}", f"{count:,}", Text("█" * math.ceil(BAR * count / most), style="cyan"))
    table.caption = f"median {report.median_length:g}, longest {report.longest:,}"
    table.caption_justify = "left"
    return table


def _findings(report: DataReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("lines", justify="right")
    table.add_column("what was found", overflow="fold")
    table.add_column("first at", overflow="fold")
    for finding in sorted(report.findings, key=lambda one: -one.count):
        places = "; ".join(one_line(place) for place in finding.places[:3])
        table.add_row(f"{finding.count:,}", one_line(finding.what), Text(places))
    return table


def _example(number: int, example: Shown) -> Text:
    """An example's text, what is trained on in another colour."""
    title = (
        f"\nExample {number}: {one_line(example.place)}, {example.tokens:,} tokens, {example.targets:,} trained on\n"
    )
    text, left = Text(title, style="bold"), MOST_SHOWN
    for part in example.parts:
        piece = part.text[:left]
        text.append(visible(piece), style=TARGET if part.is_target else OTHER)
        left -= len(piece)
        if left <= 0:
            text.append(" ...", style=OTHER)
            break
    return text


def visible(text: str) -> str:
    """Foreign text with its line breaks, and every other control character as an escape."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
