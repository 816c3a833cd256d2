"""What `inv data.check` found, for a terminal and as a page: numbers, lengths, findings, examples with their targets;
and what `inv train` will take.

All text of the data is shown with its control characters escaped: a data file must not be able to move a cursor.
"""

import io
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records import Trial
from bench.records.training_data import ConversationPreview, DataReport
from reports.formatting import count, estimate
from reports.summary.cost import Amount
from tasks.cli.terminal import ruled, table
from tasks.errors import one_line
from tasks.settings.load import Settings
from tasks.train.forecast import ProbeResult, TrainingForecast

TARGET, OTHER = "bold green", "dim"
MUCH_PERCENT = 5  # of a step for communication, from which it is said what would hide it
BAR = 40  # characters
MOST_SHOWN = 1200  # characters of one example
PAGE_COLUMNS = 110


def show(out: Console, report: DataReport, settings: Settings, predicted: TrainingForecast) -> None:
    for line in (*data_lines(report, settings), *headline(predicted)):
        out.print(Text(line))
    out.print(_files(report))
    out.print(_lengths(report))
    if report.findings:
        out.print(_findings(report))
    for number, example in enumerate(report.shown, start=1):
        out.print(_example(number, example))


def page(report: DataReport, settings: Settings, predicted: TrainingForecast) -> str:
    """The same as an HTML page of its own."""
    recorder = Console(record=True, file=io.StringIO(), width=PAGE_COLUMNS, color_system="truecolor", soft_wrap=False)
    show(recorder, report, settings, predicted)
    return recorder.export_html(inline_styles=True)


def data_lines(report: DataReport, settings: Settings) -> list[str]:
    """What there is to train on."""
    share = 100 * report.targets / report.tokens
    per_step = settings.train.rows_per_step
    lines = [
        f"{count(report.examples, 'example')} to train on, {count(report.validation_examples, 'example')} held out, "
        f"{count(report.left_out, 'line')} left out",
        f"{report.tokens:,} tokens an epoch, {share:.1f} % of them trained on (labels: {settings.train.labels})",
        f"{count(report.rows, 'packed row')} an epoch, "
        f"{count(math.ceil(report.rows / per_step), 'step')} of {count(per_step, 'row')}",
    ]
    kept = "read from the examples kept there" if report.was_cached else "tokenized"
    return [*lines, f"{kept} in {report.seconds:.1f} s"]


def headline(predicted: TrainingForecast) -> list[str]:
    """What the training will take: time, dollars, memory, communication."""
    work = f"{count(predicted.steps, 'step')} on {count(predicted.workers, 'worker')}"
    if predicted.seconds is None:
        lines = [f"{work}; the time is unknown: {predicted.basis}"]
    else:
        lines = [f"{work}: {_about(predicted.seconds.times(1 / 3600), ' hours')} ({predicted.basis})"]
    if predicted.steps_left is not None:
        lines.append(
            f"! {predicted.stops_by} stops it after about {predicted.steps_left:,} of these steps; raise that, or take "
            "fewer steps (train.max_steps)"
        )
    if predicted.price is None:
        lines.append("dollars: unknown, no price is known for these workers (cost.price_usd_per_gpu_hour)")
    elif predicted.usd is None:
        lines.append(f"dollars: unknown as long as the time is; the price is {predicted.price.words}")
    else:
        lines.append(f"{_about(predicted.usd, prefix='$')} at {predicted.price.words}")
    if predicted.peak_bytes is not None:
        there = "" if predicted.memory_bytes is None else f" of {predicted.memory_bytes / 2**30:.1f}"
        lines.append(
            f"peak memory with the longest batch: {predicted.peak_bytes / 2**30:.2f}{there} GiB a GPU, predicted"
        )
    return [*lines, *_communication(predicted)]


def _communication(predicted: TrainingForecast) -> list[str]:
    if predicted.workers == 1:
        return []
    share = predicted.share_percent
    if share is None or predicted.step_sec is None or predicted.exchange_sec is None:
        return ["communication: unknown; `inv bench --suite distributed` measures the bandwidth between the workers"]
    line = f"communication: {share:.1f} % of a step before overlap ({predicted.exchange_sec:.3g} s)"
    if share < MUCH_PERCENT:
        return [line]
    times = math.ceil(predicted.exchange_sec * (100 - MUCH_PERCENT) / MUCH_PERCENT / predicted.step_sec)
    return [f"{line}; {times} times train.rows_per_step makes it {MUCH_PERCENT} %, train.gradients: bf16 halves it"]


def show_plan(out: Console, trial: Trial, seen: ProbeResult, predicted: TrainingForecast, names: Sequence[str]) -> None:
    """The plan of `inv train --dry-run`."""
    for line in headline(predicted):
        out.print(Text(line))
    spec = trial.training
    rows = table("setting", "value")
    chosen: dict[str, object] = {
        "model": trial.model,
        "data": ", ".join(file.path for file in seen.data.files),
        "examples": f"{seen.data.examples:,}, {seen.data.validation_examples:,} held out",
        "recipe": f"{trial.recipe}, {trial.base_precision}, {trial.optimizer}",
        "adapters": f"rank {trial.lora_rank} on {', '.join(trial.lora_targets)}",
        "a row": f"{trial.micro_batch_size} x {trial.max_seq_len} tokens",
    }
    if spec is not None:
        chosen |= {
            "a step": count(spec.rows_per_step, "row"),
            "learning rate": f"{trial.learning_rate:g}, {spec.schedule}",
            "stops after": "no limit" if spec.max_hours is None else f"{spec.max_hours:.3g} hours ({spec.limited_by})",
        }
    for name, value in chosen.items():
        rows.add_row(name, Text(one_line(str(value))))
    out.print(rows)
    out.print(Text(f"on {', '.join(names)}; nothing was touched"))


def _about(amount: Amount, suffix: str = "", *, prefix: str = "") -> str:
    return f"{'about ' if amount.low is None else ''}{estimate(amount, suffix, prefix=prefix)}"


def _files(report: DataReport) -> Table:
    table = ruled("file", "kind", "lines", "weight", "sha256", right=("lines", "weight", "sha256"))
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
    last = max(place for place, many in enumerate(report.lengths) if many)
    for edge, many in zip(report.length_edges[: last + 1], report.lengths, strict=False):
        table.add_row(f"{edge:,}", f"{many:,}", Text("█" * math.ceil(BAR * many / most), style="cyan"))
    table.caption = f"median {report.median_length:g}, longest {report.longest:,}"
    table.caption_justify = "left"
    return table


def _findings(report: DataReport) -> Table:
    table = ruled("lines", "what was found", "first at", right=("lines",))
    for finding in sorted(report.findings, key=lambda one: -one.count):
        places = "; ".join(one_line(place) for place in finding.places[:3])
        table.add_row(f"{finding.count:,}", one_line(finding.what), Text(places))
    return table


def _example(number: int, example: ConversationPreview) -> Text:
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
