"""Numbers of the first screen: a few large ones, the cost of a fine-tuning, the use of the workers' time."""

from dataclasses import dataclass

from reports import formatting
from reports.statistics.types import Estimate, Ratio
from reports.summary import tables, text
from reports.summary.cost import MEASURED_PHASE, Amount, FineTuning, Price
from reports.summary.summary import ConfigurationRow, Summary


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A number with its name, and a detail in small print: interval or source."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """A number of GPUs, with the time for 10,000 samples and their cost at each price."""

    name: str
    detail: str
    time: tables.Cell
    amounts: tuple[tables.Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The cost of a fine-tuning with one configuration. `sources` has every price's source and date."""

    configuration: str
    prices: tuple[Tile, ...]
    lines: tuple[CostLine, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BilledTime:
    """The use of the workers' time, as a sentence and by parts."""

    sentence: str
    parts: tuple[tuple[str, str], ...]


def best_row(summary: Summary) -> ConfigurationRow | None:
    """Return the configuration to train with (`text.choose`); None if nothing was measured."""
    chosen = text.recommended_choice(summary)
    return None if chosen is None else chosen.row


def recommended_label(summary: Summary) -> str | None:
    """Return the label of `best_row`; None if it was not compared with another configuration."""
    row, measured = best_row(summary), summary.measured_rows
    return row.label if row is not None and len(measured) > 1 and any(other.is_baseline for other in measured) else None


def recommended_first(summary: Summary) -> tuple[ConfigurationRow, ...]:
    """Return all configurations in the plan's order, after the recommended one."""
    label = recommended_label(summary)
    return tuple(sorted(summary.rows, key=lambda row: row.label != label))


def tiles(summary: Summary) -> tuple[Tile, ...]:
    """Return at most four numbers about the best configuration; () if nothing was measured."""
    row = best_row(summary)
    if row is None or row.measured is None:
        return ()
    rate = row.measured.elapsed_useful_tokens_per_sec
    numbers = [
        Tile(
            name="Useful tokens per second and worker",
            value=formatting.number(rate.value),
            detail=_detail(rate, formatting.estimate_decimals(rate)),
        )
    ]
    ratio = row.useful_tokens_ratio
    if ratio is not None:
        decimals = formatting.ratio_decimals(ratio.low, ratio.high)
        detail = _detail(ratio, decimals, ratio.verdict or "not shown to differ")
        numbers.append(
            Tile(
                name=f"Against {summary.baseline}", value=f"{formatting.number(ratio.value, decimals)}x", detail=detail
            )
        )
    if row.cost is not None:
        amount = row.cost.usd_per_million_useful_tokens
        numbers.append(Tile(name="Per million useful tokens", value=_dollars(amount), detail=_price(row.cost.price)))
        tuning = next(iter(row.cost.fine_tunings), None)
        if tuning is not None:
            detail = f"in {duration(tuning.training_sec.value)} on {formatting.count(tuning.gpus, 'GPU')}"
            numbers.append(Tile(name="10,000 samples", value=_dollars(tuning.usd), detail=detail))
    else:
        where = "GPU" if row.peak_vram_bytes is not None else "process"
        numbers.append(Tile(name=f"Peak {where} memory", value=formatting.gigabytes(row.peak_bytes)))
    return tuple(numbers)


def costs(summary: Summary) -> Costs | None:
    """Return the cost of the best configuration's fine-tunings at every price; None without a price."""
    row = best_row(summary)
    if row is None or not row.costs or not row.costs[0].fine_tunings:
        return None
    lines = [
        CostLine(
            name=formatting.count(plan.gpus, "GPU"),
            detail=plan.scaling.source,
            time=tables.Cell(value=duration(plan.training_sec.value), details=_interval_details(plan)),
            amounts=tuple(_amount(cost.fine_tunings[number]) for cost in row.costs),
        )
        for number, plan in enumerate(row.costs[0].fine_tunings)
    ]
    sources = [price.description for price in summary.prices]
    if summary.hosted is not None:
        hosted = summary.hosted
        sources.append(
            f"A hosted service charges ${formatting.number(hosted.usd_per_10000_samples)} ({hosted.source})."
        )
    return Costs(
        configuration=row.label,
        prices=tuple(Tile(name=_price(cost.price), value="", detail=_price_name(cost.price)) for cost in row.costs),
        lines=tuple(lines),
        sources=tuple(sources),
    )


def energy_sentence(summary: Summary) -> str | None:
    """Describe the GPU energy of a fine-tuning with `best_row`; None if no power was sampled."""
    row = best_row(summary)
    if row is None or row.energy is None:
        return None
    joules = formatting.estimate(row.energy.joules_per_1000_useful_tokens, " J")
    return f"With {row.label}: {joules} per 1,000 useful tokens. {row.energy.sentence}"


def billed_time(summary: Summary) -> BilledTime | None:
    """Describe how the workers' time was used; None if no trial recorded when it ran."""
    used = summary.billed
    if used is None:
        return None
    sentence = (
        f"{formatting.count(used.workers, 'worker was', 'workers were')} held for {duration(used.held_sec)} in total; "
        f"{formatting.number(used.useful_percent, 0)} % of it in measured steps. "
        f"Not measured: {formatting.join_with_and(list(used.unknown))}."
    )
    phases = [
        (f"{name}, between steps" if name == MEASURED_PHASE else name, sec) for name, sec in used.by_phase.items()
    ]
    parts = [("measured steps", used.useful_sec), *phases, ("between trials", used.idle_sec)]
    return BilledTime(
        sentence=sentence, parts=tuple((name, duration(seconds)) for name, seconds in parts if seconds > 0)
    )


def duration(seconds: float) -> str:
    """Format `12.4 s`, `20 min 24 s`, `3 h 48 min`."""
    if seconds < 100:
        return f"{formatting.number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {rest} min"


def _detail(rate: Estimate | Ratio, decimals: int, verdict: str = "") -> str:
    mark = ", of one process" if formatting.interval_mark(rate) else ""
    return f"{formatting.span(rate.low, rate.high, decimals)} {verdict}".strip() + mark


def _dollars(amount: Amount) -> str:
    return f"${formatting.number(amount.value)}"


def _price(price: Price) -> str:
    return f"${price.usd_per_gpu_hour:,.2f} per GPU hour"


def _price_name(price: Price) -> str:
    return "as set" if price.name == "set" else price.name


def _interval_details(plan: FineTuning) -> tuple[str, ...]:
    low, high = plan.training_sec.low, plan.training_sec.high
    return () if low is None or high is None else (f"{duration(low)} to {duration(high)}",)


def _amount(plan: FineTuning) -> tables.Cell:
    usd, decimals = plan.usd, formatting.significant_decimals(plan.usd.value)
    spread = formatting.span(usd.low, usd.high, decimals).strip("()")
    billed = f"billed {formatting.number(plan.usd_billed.value, decimals)}" if plan.startup_sec is not None else ""
    return tables.Cell(value=_dollars(usd), details=tuple(filter(None, (spread, billed))))
