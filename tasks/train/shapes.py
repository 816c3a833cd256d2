"""Which shape is the cheapest for a training: a row for each shape of the price table.

A row is one node of the shape, rented whole, with one rank on each of its GPUs. Its hours come from steps that an
earlier run here measured on that GPU, if there are any; otherwise the worker estimates them from the chip's published
figures (`bench.predict.chips`), with the range that measured pairs had. A GPU without figures is unknown.

An interruption of a preemptible node costs the time from the last checkpoint to the first new step, as earlier
trainings here have measured it.

Not covered: start-up, communication between the GPUs, evaluations; several nodes.
"""

import contextlib
import dataclasses
import math
import statistics
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from bench.records import Trial
from reports import formatting
from reports.read import attempts
from reports.summary.cost import Amount
from reports.summary.prices import PriceTable
from tasks.cli.terminal import plain_table
from tasks.errors import escape_controls
from tasks.fleet.pricing import hosted_price, price_table
from tasks.fleet.run_store import newest_trainings
from tasks.settings.load import Settings
from tasks.train.forecast import ProbeResult, measured_step

SMALLEST = 0.01  # hours or dollars
MEASURED, ESTIMATED, UNKNOWN = "measured", "estimated", "unknown"


@dataclass(frozen=True, kw_only=True)
class RestartTime:
    """Seconds from the last checkpoint to the first new step after a restart, and where they were measured."""

    sec: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Preemptible:
    """Price of the same on preemptible nodes. `usd` is without interruptions, `interruption_usd` the price of one.

    At `break_even` interruptions it costs as much as on demand. `expected_usd` is the price at
    cost.interruptions_per_hour; None if that is unset, or so high that the training would not end. All of these are
    None without a measured restart.
    """

    usd: Amount
    restart: RestartTime | None = None
    interruption_usd: float | None = None
    break_even: float | None = None
    interruptions_per_hour: float | None = None
    expected_usd: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class ShapeCost:
    """A training on one node of a shape. `usd` is of all GPUs of the node; None if unknown, as `hours` and `fits`.

    `preemptible` is None without a preemptible price.
    """

    shape: str
    gpu: str
    gpus: int
    basis: str
    fits: bool | None = None
    hours: Amount | None = None
    usd: Amount | None = None
    preemptible: Preemptible | None = None


def shape_costs(settings: Settings, trial: Trial, probe: ProbeResult, steps: int) -> list[ShapeCost]:
    """Return a row for each shape of the price table, the cheapest first. Raises UsageError for an invalid table."""
    table = price_table(settings)
    if table is None or trial.training is None:
        return []
    restart = restart_time(settings)
    rows = [_shape_cost(settings, trial, probe, table, name, steps, restart) for name in table.shapes]
    return sorted(rows, key=lambda row: (row.fits is False, math.inf if row.usd is None else row.usd.value))


def _shape_cost(
    settings: Settings,
    trial: Trial,
    probe: ProbeResult,
    table: PriceTable,
    name: str,
    steps: int,
    restart: RestartTime | None,
) -> ShapeCost:
    shape = table.shapes[name]
    row = ShapeCost(shape=name, gpu=shape.gpu, gpus=shape.gpus, basis=UNKNOWN)
    chip = next((each for each in probe.forecast.chips if each.name == shape.gpu), None)
    if chip is None or trial.training is None:
        return row
    rows_per_rank = math.ceil(trial.training.rows_per_step / shape.gpus)
    step = measured_step(settings, trial, probe, shape.gpu, rows_per_rank)
    basis = ESTIMATED if step is None else MEASURED
    if step is None:
        step = Amount(value=chip.row_sec, low=chip.row_sec_low, high=chip.row_sec_high).times(rows_per_rank)
    hours = step.times(steps / 3600.0)
    usd = hours.times(shape.gpus * shape.on_demand.amount)
    row = dataclasses.replace(row, basis=basis, fits=chip.fits, hours=hours, usd=usd)
    if shape.preemptible is None:
        return row
    usd_per_hour = shape.gpus * shape.preemptible.amount
    rate = settings.cost.interruptions_per_hour
    return dataclasses.replace(row, preemptible=price_preemptible(hours, usd, usd_per_hour, restart, rate))


def price_preemptible(
    hours: Amount,
    on_demand: Amount,
    usd_per_hour: float,
    restart: RestartTime | None,
    interruptions_per_hour: float | None,
) -> Preemptible:
    """Price a training on a preemptible node with its interruptions, which come during restarts, too."""
    usd = hours.times(usd_per_hour)
    if restart is None:
        return Preemptible(usd=usd)
    interruption_usd = restart.sec / 3600.0 * usd_per_hour
    expected = None
    if interruptions_per_hour is not None and (lost := interruptions_per_hour * restart.sec / 3600.0) < 1.0:
        expected = usd.times(1.0 / (1.0 - lost))
    return Preemptible(
        usd=usd,
        restart=restart,
        interruption_usd=interruption_usd,
        break_even=max(0.0, on_demand.value - usd.value) / interruption_usd,
        interruptions_per_hour=interruptions_per_hour,
        expected_usd=expected,
    )


def restart_time(settings: Settings) -> RestartTime | None:
    """Return the median of the restarts in the newest trainings here; None without one."""
    lost: list[float] = []
    for folder, _, record in newest_trainings(settings.results_folder):
        with contextlib.suppress(OSError):
            spans = attempts.read(folder, record.trial_id)
            lost += [span.lost_sec for span in spans if span.lost_sec]
    if not lost:
        return None
    return RestartTime(sec=statistics.median(lost), source=f"median of {formatting.count(len(lost), 'restart')} here")


def hosted_line(settings: Settings, trial: Trial, probe: ProbeResult, steps: int) -> str | None:
    """Return what a hosted service would charge for the same tokens; None if its price per token is not set."""
    hosted, training = hosted_price(settings), trial.training
    if hosted is None or hosted.usd_per_million_tokens is None or training is None:
        return None
    rows = min(steps * training.rows_per_step, probe.data.rows * training.epochs)
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
    lines = []
    for row in rows:
        if row.preemptible is not None:
            lines += [f"{row.shape} preemptible: {text}" for text in _preemptible_texts(row.preemptible)]
    if any(row.basis == ESTIMATED for row in rows):
        lines.append(
            "estimated: from the chip's published figures; the range is that of steps which were both measured and "
            "estimated (docs/cost.md); `inv bench` on a shape measures it"
        )
    return lines


def _preemptible_texts(priced: Preemptible) -> list[str]:
    price = f"{_range(priced.usd, '$')} without interruptions"
    if priced.restart is None or priced.interruption_usd is None or priced.break_even is None:
        return [f"{price}; no restart was measured here, so the cost of an interruption is unknown"]
    cost = f"each costs {_usd(priced.interruption_usd)} ({priced.restart.sec:,.0f} s, {priced.restart.source})"
    bears = f"cheaper than on demand below {formatting.count(round(priced.break_even), 'interruption')}"
    texts = [f"{price}; {cost}; {bears}"]
    if priced.interruptions_per_hour is not None:
        total = "does not end" if priced.expected_usd is None else f"{_range(priced.expected_usd, '$')} expected"
        texts.append(f"{total} at {priced.interruptions_per_hour:g} interruptions an hour")
    return texts


def _usd(dollars: float) -> str:
    return f"<${SMALLEST:g}" if dollars < SMALLEST else formatting.dollars(dollars)


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
