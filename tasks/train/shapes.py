"""Which shape is the cheapest for a training: a row for each shape of the price table.

A row is one node of the shape, rented whole, with one rank on each of its GPUs. Its hours come from steps that an
earlier run here measured on that GPU, if there are any; otherwise the worker estimates them from the chip's published
figures (`bench.predict.chips`), with the range that measured pairs had. A GPU without figures is unknown.

Not covered: start-up, communication between the GPUs, evaluations; several nodes; interruptions of preemptible nodes.
"""

import dataclasses
import math
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from bench.records import Trial
from reports import formatting
from reports.summary.cost import Amount
from reports.summary.prices import PriceTable
from tasks.cli.terminal import plain_table
from tasks.errors import escape_controls
from tasks.fleet.pricing import hosted_price, price_table
from tasks.fleet.trial_spec import training_of
from tasks.settings.layers import Settings
from tasks.train.forecast import ProbeResult, measured_step

SMALLEST = 0.01  # hours or dollars
MEASURED, ESTIMATED, UNKNOWN = "measured", "estimated", "unknown"


@dataclass(frozen=True, kw_only=True)
class ShapeCost:
    """A training on one node of a shape. `usd` is of all GPUs of the node; None if unknown, as `hours` and `fits`.

    `preemptible_usd` is the price on a preemptible node; None without such a price.
    """

    shape: str
    gpu: str
    gpus: int
    basis: str
    fits: bool | None = None
    hours: Amount | None = None
    usd: Amount | None = None
    preemptible_usd: Amount | None = None


def shape_costs(settings: Settings, trial: Trial, probe: ProbeResult) -> list[ShapeCost]:
    """Return a row for each shape of the price table, the cheapest first. Raises UsageError for an invalid table."""
    table = price_table(settings)
    if table is None:
        return []
    rows = [_shape_cost(settings, trial, probe, table, name) for name in table.shapes]
    return sorted(rows, key=lambda row: (row.fits is False, math.inf if row.usd is None else row.usd.value))


def _shape_cost(settings: Settings, trial: Trial, probe: ProbeResult, table: PriceTable, name: str) -> ShapeCost:
    shape = table.shapes[name]
    row = ShapeCost(shape=name, gpu=shape.gpu, gpus=shape.gpus, basis=UNKNOWN)
    chip = next((each for each in probe.chips if each.name == shape.gpu), None)
    if chip is None:
        return row
    rows_per_rank = math.ceil(training_of(trial).rows_per_step / shape.gpus)
    step = measured_step(settings, trial, probe, shape.gpu, rows_per_rank)
    basis = ESTIMATED if step is None else MEASURED
    if step is None:
        step = Amount(value=chip.row_sec, low=chip.row_sec_low, high=chip.row_sec_high).times(rows_per_rank)
    hours = step.times(probe.steps / 3600.0)
    return dataclasses.replace(
        row,
        basis=basis,
        fits=chip.fits,
        hours=hours,
        usd=hours.times(shape.gpus * shape.on_demand.amount),
        preemptible_usd=None if shape.preemptible is None else hours.times(shape.gpus * shape.preemptible.amount),
    )


def hosted_line(settings: Settings, trial: Trial, probe: ProbeResult) -> str | None:
    """Return what a hosted service would charge for the same tokens; None if its price per token is not set."""
    hosted, training = hosted_price(settings), training_of(trial)
    if hosted is None or hosted.usd_per_million_tokens is None:
        return None
    rows = min(probe.steps * training.rows_per_step, probe.data.rows * training.epochs)
    tokens = probe.data.tokens * rows / max(1, probe.data.rows)
    usd = formatting.dollars(tokens * hosted.usd_per_million_tokens / 1e6)
    return f"a hosted service charges {usd} for these {tokens:,.0f} tokens ({hosted.source})"


def show_shapes(out: Console, rows: list[ShapeCost], hosted: str | None = None) -> None:
    """Print the rows as a table, with what its numbers are worth, and the line about a hosted service."""
    table = plain_table("shape", "GPUs", "fits", "hours", "dollars", "basis")
    for row in rows:
        fits = {True: Text("yes", style="green"), False: Text("no", style="red"), None: Text("?")}[row.fits]
        chip = row.gpu.removeprefix("NVIDIA ").removeprefix("AMD Instinct ").partition(" ")[0].partition("-")[0]
        table.add_row(
            Text(escape_controls(row.shape)),
            Text(escape_controls(f"{row.gpus} {chip}")),
            fits,
            _range(row.hours),
            _range(row.usd, "$"),
            row.basis,
        )
    if rows:
        title = "Each shape of the price table, one node with all its GPUs, without start-up and communication:"
        out.print(Text(f"\n{title}"))
        out.print(table)
    for line in (*notes(rows), *([] if hosted is None else [hosted])):
        out.print(Text(escape_controls(line)))


def notes(rows: list[ShapeCost]) -> list[str]:
    """Return lines about preemptible nodes and about the estimates."""
    lines = [
        f"{row.shape} preemptible: {_range(row.preemptible_usd, '$')} without interruptions"
        for row in rows
        if row.preemptible_usd is not None
    ]
    if any(row.basis == ESTIMATED for row in rows):
        lines.append(
            "estimated: from the chip's published figures; the range is that of steps which were both measured and "
            "estimated (docs/cost.md); `inv bench` on a shape measures it"
        )
    return lines


def _range(amount: Amount | None, prefix: str = "") -> str:
    """Format `1.2 (1.0-1.4)`, with two significant digits of the value and at most two decimals."""
    if amount is None:
        return "?"
    if amount.value < SMALLEST:
        return f"<{prefix}{SMALLEST:g}"
    decimals = min(2, max(0, formatting.significant_decimals(amount.value) - 1))
    value = f"{prefix}{formatting.number(amount.value, decimals)}"
    if amount.low is None or amount.high is None:
        return value
    low, high = (formatting.number(end, decimals) for end in (amount.low, amount.high))
    return value if low == high else f"{value} ({low}-{high})"
