"""Output of `inv data.check` and `inv train`: the data report, the forecast and the plan.

The data report has numbers, lengths, findings and examples. Control characters of the data are escaped, so that a data
file cannot move the cursor. Brackets mark what is trained on, because colours are absent from a pipe and not seen by
every reader.
"""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.records import Trial
from bench.records.training import ConversationPreview, DataReport, Training
from bench.records.units import format_gib
from reports import formatting
from reports.formatting import count
from reports.summary.cost import Amount
from tasks.cli.terminal import plain_table, ruled_table
from tasks.errors import escape_controls
from tasks.fleet import trial_spec
from tasks.train.data_warnings import find_warnings
from tasks.train.forecast import ProbeResult, TrainingForecast

TARGET_STYLE, OTHER_STYLE = "bold green", "dim"
TARGET_MARKS = ("[[", "]]")
BAR_WIDTH = 40  # characters
MAX_EXAMPLE_CHARS = 1200


def show_report(out: Console, probe: ProbeResult, trial: Trial, predicted: TrainingForecast) -> None:
    """Print the data report and the forecast."""
    report = probe.data
    for line in (*data_lines(report, trial_spec.training_of(trial)), *summary_lines(probe, trial, predicted)):
        out.print(Text(escape_controls(line)))
    out.print(_files(report))
    out.print(_lengths(report))
    if report.findings:
        out.print(_findings(report))
    if report.shown:
        out.print(Text(f"Text in {' '.join(TARGET_MARKS)} is trained on."))
    for number, example in enumerate(report.shown, start=1):
        out.print(_example(number, example))


def summary_lines(probe: ProbeResult, trial: Trial, predicted: TrainingForecast) -> list[str]:
    """Return lines about the forecast, the settings that were derived from the data, and what is surprising in it."""
    warnings = find_warnings(probe.data, trial, predicted.steps)
    offer = [trial_spec.INT8_OFFER] if probe.can_use_int8 and trial.matmul == "bf16" else []
    return [
        *headline(predicted),
        *trial_spec.derived_text(probe.derived),
        *offer,
        *_unpacked(probe.data),
        *(f"! {warning.text}" for warning in warnings),
    ]


def data_lines(report: DataReport, training: Training) -> list[str]:
    """Return lines about the amount of data."""
    share = 100 * report.targets / report.tokens
    per_step = training.rows_per_step
    lines = [
        f"{count(report.examples, 'example')} to train on, {count(report.validation_examples, 'example')} held out, "
        f"{count(report.left_out, 'line')} left out",
        f"{report.tokens:,} tokens an epoch, {share:.1f} % of them trained on (labels: {training.data.labels})",
        f"{count(report.rows, 'packed row' if report.is_packed else 'row')} an epoch, "
        f"{count(math.ceil(report.rows / per_step), 'step')} of {count(per_step, 'row')}",
    ]
    source = "read from the worker's cache" if report.was_cached else "tokenized"
    return [*lines, f"{source} in {report.seconds:.1f} s"]


def headline(predicted: TrainingForecast) -> list[str]:
    """Return lines about time, dollars, memory and a fallback of the recipe.

    Without a GPU nothing is rented: what is unknown then is left out.
    """
    title = f"{count(predicted.steps, 'step')} on {count(predicted.workers, 'worker')}"
    has_gpu = predicted.memory_bytes is not None
    if predicted.seconds is None:
        lines = [f"{title}; the time is unknown: {predicted.basis}" if has_gpu else title]
    else:
        lines = [f"{title}: {duration_estimate(predicted.total or predicted.seconds)}"]
        parts = {"steps": predicted.seconds, **predicted.parts}
        lines.append(", ".join(f"{name} {_part(part, predicted)}" for name, part in parts.items() if part.value > 0))
        lines.append(f"time of the steps: {predicted.basis}")
    if predicted.steps_within_limit is not None:
        lines.append(
            f"! train.max_hours stops it after about {predicted.steps_within_limit:,} of these steps; "
            "raise it, or train fewer steps (train.max_steps)"
        )
    if predicted.price is None:
        unknown = "dollars: unknown, no price is known for these workers (cost.price_usd_per_gpu_hour)"
        lines += [unknown] if has_gpu else []
    elif predicted.usd is None:
        lines.append(f"dollars: unknown without the time; the price is {predicted.price.description}")
    else:
        spread = " to ".join(
            formatting.dollars(end) for end in (predicted.usd.low, predicted.usd.high) if end is not None
        )
        spread = f" ({spread})" if spread else ""
        lines.append(f"{formatting.dollars(predicted.usd.value)}{spread} at {predicted.price.description}")
    if predicted.peak_bytes is not None:
        gpu_memory = "" if predicted.memory_bytes is None else f" of {format_gib(predicted.memory_bytes)}"
        peak = format_gib(predicted.peak_bytes, 2)
        lines.append(f"predicted peak memory of the longest batch: {peak}{gpu_memory} per GPU")
    return [*lines, *([] if predicted.fallback is None else [f"! recipe {predicted.fallback}"])]


def _part(part: Amount, predicted: TrainingForecast) -> str:
    """Format a part of the time, with its dollars if there is a price: `35 s ($0.04)`."""
    text = rounded(part.value)
    if predicted.price is None:
        return text
    return f"{text} ({formatting.dollars(part.value * predicted.workers * predicted.price.usd_per_gpu_hour / 3600.0)})"


def _unpacked(report: DataReport) -> list[str]:
    if report.is_packed:
        return []
    padding = 100 * (1 - report.tokens / report.positions)
    return [
        f"not packed: models of this type may mix packed samples; {padding:.0f} % of the positions are padding, and an "
        f"epoch takes about {report.slowdown:.1f} times as long"
    ]


def show_plan(out: Console, trial: Trial, probe: ProbeResult, names: Sequence[str]) -> None:
    """Print the settings of a planned training, and its workers."""
    training = trial_spec.training_of(trial)
    rows = plain_table("setting", "value")
    values: dict[str, object] = {
        "model": trial.model,
        "data": ", ".join(file.path for file in probe.data.files),
        "examples": f"{probe.data.examples:,}, {probe.data.validation_examples:,} held out",
        "recipe": f"{probe.recipe}, {trial.base_precision}, {trial.optimizer}",
        "adapters": f"rank {trial.lora_rank} on {', '.join(trial.lora_targets)}",
        "row": f"{trial.micro_batch_size} x {trial.max_seq_len} tokens",
        "step": count(training.rows_per_step, "row"),
        "learning rate": f"{trial.learning_rate:g}, {training.schedule}",
        "stops after": "no limit" if training.max_hours is None else f"{training.max_hours:.3g} hours",
    }
    for name, value in values.items():
        rows.add_row(name, Text(escape_controls(str(value))))
    out.print(rows)
    out.print(Text(f"on {', '.join(names)}; nothing was changed"))


def duration_estimate(amount: Amount) -> str:
    """Format `35 s (31 s to 40 s)`; `about 35 s` without an interval."""
    value, low, high = (None if sec is None else rounded(sec) for sec in (amount.value, amount.low, amount.high))
    return f"about {value}" if low is None or high is None else f"{value} ({low} to {high})"


def rounded(seconds: float) -> str:
    """Format a predicted time: `4.2 s`, `35 s`, `2 min 10 s`."""
    return f"{seconds:.2g} s" if seconds < 99.5 else formatting.duration(seconds)


def _files(report: DataReport) -> Table:
    table = ruled_table("file", "kind", "lines", "sha256", right=("lines", "sha256"))
    for file in report.files:
        table.add_row(Text(escape_controls(file.path)), file.kind, f"{file.lines:,}", Text(file.sha256[:12]))
    return table


def _lengths(report: DataReport) -> Table:
    """Return a histogram of the examples' lengths."""
    table = Table(box=None, pad_edge=False, title="Examples by length in tokens", title_justify="left")
    table.add_column("up to", justify="right")
    table.add_column("examples", justify="right")
    table.add_column("")
    bins = length_bins(report)
    largest = max((examples for _, examples in bins), default=0)
    for edge, examples in bins:
        bar = Text("█" * math.ceil(BAR_WIDTH * examples / largest), style="cyan")
        table.add_row(f"{edge:,}", f"{examples:,}", bar)
    table.caption = f"median {report.median_length:g}, longest {report.longest:,}"
    table.caption_justify = "left"
    return table


def length_bins(report: DataReport) -> list[tuple[int, int]]:
    """Return upper ends and examples of the histogram's bins, from its first to its last with an example."""
    filled = [index for index, examples in enumerate(report.lengths) if examples]
    shown = slice(min(filled, default=0), max(filled, default=-1) + 1)
    return list(zip(report.length_edges[shown], report.lengths[shown], strict=True))


def _findings(report: DataReport) -> Table:
    table = ruled_table("lines", "finding", "first at", right=("lines",))
    for finding in sorted(report.findings, key=lambda finding: -finding.count):
        locations = "; ".join(escape_controls(location) for location in finding.places[:3])
        table.add_row(f"{finding.count:,}", Text(escape_controls(finding.what)), Text(locations))
    return table


def _example(number: int, example: ConversationPreview) -> Text:
    """Return an example's text; the trained part is in TARGET_MARKS and has another colour."""
    sizes = f"{example.tokens:,} tokens, {example.targets:,} trained on"
    title = f"\nExample {number}: {escape_controls(example.place)}, {sizes}\n"
    text = Text().append(title, "bold")
    for piece, is_target in parts_within(example, MAX_EXAMPLE_CHARS):
        start, end = TARGET_MARKS if is_target else ("", "")
        text.append(f"{start}{escape_control_chars(piece)}{end}", style=TARGET_STYLE if is_target else OTHER_STYLE)
    return text


def parts_within(example: ConversationPreview, max_chars: int) -> list[tuple[str, bool]]:
    """Return about `max_chars` characters of the example as pairs of text and whether the model trains on it.

    Of a longer example, long texts that are not trained on, such as tools, keep their beginning and end; " ..." stands
    for what is left out.
    """
    is_long = sum(len(part.text) for part in example.parts) > max_chars
    parts, remaining = [], max_chars
    for part in example.parts:
        text = part.text
        if is_long and not part.is_target and len(text) > max_chars // 2:
            text = f"{text[: max_chars // 4]} ... {text[-(max_chars // 4) :]}"
        parts.append((text[:remaining], part.is_target))
        remaining -= len(text)
        if remaining <= 0:
            parts.append((" ...", False))
            break
    return parts


def escape_control_chars(text: str) -> str:
    """Escape control characters of untrusted text, except line breaks."""
    return "\n".join(escape_controls(line) for line in text.split("\n"))
