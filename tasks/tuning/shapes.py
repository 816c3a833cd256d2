"""Which GPU is the cheapest for a search's configurations: a row for each priced GPU.

On the search's own GPU the row is the measured best. On any other it is the candidate with the best estimated rate of
those that fit: the worker's factors come from the chips' published figures (`bench.predict.chips`).

Not covered: communication, start-up; that a search on that GPU may find another configuration.
"""

from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from reports import formatting
from reports.summary.cost import Amount
from tasks.cli.terminal import plain_table
from tasks.errors import escape_controls
from tasks.fleet.pricing import price_table
from tasks.settings.load import Settings
from tasks.tuning.pareto import MeasuredCandidate
from tasks.tuning.search_state import ChipRates, TuneRecord

SMALLEST_USD = 0.01
MEASURED, ESTIMATED, UNKNOWN = "measured", "estimated", "unknown"


@dataclass(frozen=True, kw_only=True)
class ShapeRate:
    """The best configuration on a GPU of a shape. `rate` is useful tokens per second, `usd` the price of a million.

    Without `rate` no candidate fits, or nothing is known about the GPU.
    """

    shape: str
    gpu: str
    basis: str
    configuration: str | None = None
    rate: Amount | None = None
    usd: Amount | None = None


def shape_rates(settings: Settings, record: TuneRecord, best: MeasuredCandidate | None = None) -> list[ShapeRate]:
    """Return a row for each GPU and price of the table, the cheapest first. Raises UsageError for an invalid table."""
    table = price_table(settings)
    if table is None or not record.chips:
        return []
    rows: dict[tuple[str, float], ShapeRate] = {}
    for name, shape in table.shapes.items():
        key = (shape.gpu, shape.on_demand.amount)
        if key in rows:
            continue
        chip = next((each for each in record.chips if each.name == shape.gpu), None)
        configuration, rate, basis = _estimate(record, chip)
        if best is not None and record.gpu == shape.gpu:
            ends = best.interval
            low, high = (None, None) if ends is None else (ends.low, ends.high)
            rate = Amount(value=best.useful_tokens_per_sec, low=low, high=high)
            configuration, basis = best.trial.trial_id, MEASURED
        usd = None if rate is None else _usd_per_million(rate, shape.on_demand.amount)
        rows[key] = ShapeRate(shape=name, gpu=shape.gpu, basis=basis, configuration=configuration, rate=rate, usd=usd)
    return sorted(rows.values(), key=lambda row: float("inf") if row.usd is None else row.usd.value)


def _estimate(record: TuneRecord, chip: ChipRates | None) -> tuple[str | None, Amount | None, str]:
    """Return the fastest candidate that fits a chip, its useful tokens per second, and the basis of that rate."""
    if chip is None:
        return None, None, UNKNOWN
    rates = {
        candidate.key: [candidate.score * factor for factor in chip.rates[candidate.trial.recipe]]
        for candidate in record.candidates
        if candidate.peak_bytes is not None
        and candidate.peak_bytes <= chip.largest_peak_bytes
        and candidate.trial.recipe in chip.rates
    }
    if not rates:
        return None, None, ESTIMATED
    key = max(rates, key=lambda name: rates[name][1])
    low, middle, high = rates[key]
    return key, Amount(value=middle, low=low, high=high), ESTIMATED


def _usd_per_million(rate: Amount, usd_per_hour: float) -> Amount:
    usd = 1e6 / 3600.0 * usd_per_hour
    low, high = (None if end is None else usd / end for end in (rate.high, rate.low))
    return Amount(value=usd / rate.value, low=low, high=high)


def show_shapes(out: Console, rows: list[ShapeRate]) -> None:
    """Print the rows as a table; nothing without rows."""
    if not rows:
        return
    table = plain_table("shape", "configuration", "useful\ntokens/s", "$ / M useful", "basis")
    for row in rows:
        missing = "?" if row.basis == UNKNOWN else "none fits"
        table.add_row(
            Text(escape_controls(row.shape)),
            Text(escape_controls(row.configuration or missing)),
            "-" if row.rate is None else formatting.number(row.rate.value),
            _dollars(row.usd),
            row.basis,
        )
    out.print(Text("\nOne GPU of each priced shape, without communication (estimates and their range: docs/cost.md):"))
    out.print(table)


def _dollars(amount: Amount | None) -> str:
    if amount is None:
        return "-"
    if amount.value < SMALLEST_USD:
        return f"<{SMALLEST_USD:g}"
    decimals = max(0, formatting.significant_decimals(amount.value) - 1)
    ends = formatting.span(amount.low, amount.high, decimals, "-")
    return f"{formatting.number(amount.value, decimals)} {ends}".rstrip()
