"""What the first screen shows besides the recommendation: a few large numbers, and what a fine-tuning costs."""

from dataclasses import dataclass

from reports import formatting
from reports.statistics.types import Estimate, Ratio
from reports.summary import recommendation, tables
from reports.summary.cost import MEASURED_PHASE, Amount, FineTuning, Price
from reports.summary.summary import ConfigurationRow, Summary


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number with its name, and its interval or source in small print."""

    name: str
    value: str
    under: str = ""


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """A number of GPUs: how long 10,000 samples take, and what they cost at each price."""

    name: str
    under: str
    time: tables.Cell
    amounts: tuple[tables.Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """A fine-tuning with one configuration. `sources` name every price's source and date."""

    configuration: str
    prices: tuple[Tile, ...]
    lines: tuple[CostLine, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class BilledTime:
    """Where the workers' hours went, in a sentence and in parts."""

    sentence: str
    parts: tuple[tuple[str, str], ...]


def best(summary: Summary) -> ConfigurationRow | None:
    """The configuration to train with (`choice.choose`), None where nothing was measured."""
    chosen = recommendation.recommended_choice(summary)
    return None if chosen is None else chosen.row


def recommended(summary: Summary) -> str | None:
    """Its label; None where it was compared with no other."""
    row, measured = best(summary), summary.measured_rows
    return row.label if row is not None and len(measured) > 1 and any(one.is_baseline for one in measured) else None


def tiles(summary: Summary) -> tuple[Tile, ...]:
    """At most four numbers about the best configuration; none where nothing was measured."""
    row = best(summary)
    if row is None or row.measured is None:
        return ()
    rate = row.measured.useful_tokens_per_sec
    found = [
        Tile(
            name="Useful tokens per second and worker",
            value=formatting.number(rate.value),
            under=_under(rate, formatting.places(rate)),
        )
    ]
    ratio = row.useful_tokens_ratio
    if ratio is not None:
        at = formatting.ratio_places(ratio.low, ratio.high)
        under = f"{_under(ratio, at)} {ratio.verdict or 'not shown to differ'}".strip()
        found.append(
            Tile(name=f"Against {summary.baseline}", value=f"{formatting.number(ratio.value, at)}x", under=under)
        )
    if row.cost is not None:
        amount = row.cost.usd_per_million_useful_tokens
        found.append(Tile(name="Per million useful tokens", value=_dollars(amount), under=_price(row.cost.price)))
        tuning = next(iter(row.cost.fine_tunings), None)
        if tuning is not None:
            under = f"in {duration(tuning.training_sec.value)} on {formatting.count(tuning.gpus, 'GPU')}"
            found.append(Tile(name="10,000 samples", value=_dollars(tuning.usd), under=under))
    else:
        where = "GPU" if row.peak_vram_bytes is not None else "process"
        found.append(Tile(name=f"Peak {where} memory", value=formatting.gigabytes(row.peak_bytes)))
    return tuple(found)


def costs(summary: Summary) -> Costs | None:
    """The best configuration's fine-tunings at every price; None without a price."""
    row = best(summary)
    if row is None or not row.costs or not row.costs[0].fine_tunings:
        return None
    lines = [
        CostLine(
            name=formatting.count(plan.gpus, "GPU"),
            under=plan.scaling.source,
            time=tables.Cell(value=duration(plan.training_sec.value), under=_between(plan)),
            amounts=tuple(_amount(cost.fine_tunings[number]) for cost in row.costs),
        )
        for number, plan in enumerate(row.costs[0].fine_tunings)
    ]
    sources = [price.words for price in summary.prices]
    if summary.hosted is not None:
        asked = summary.hosted
        sources.append(f"A hosted service asks ${formatting.number(asked.usd_per_10000_samples)} ({asked.source}).")
    return Costs(
        configuration=row.label,
        prices=tuple(Tile(name=_price(cost.price), value="", under=_called(cost.price)) for cost in row.costs),
        lines=tuple(lines),
        sources=tuple(sources),
    )


def energy(summary: Summary) -> str | None:
    """What the GPU uses for a fine-tuning with the configuration to train with; None where no power was sampled."""
    row = best(summary)
    if row is None or row.energy is None:
        return None
    each = formatting.estimate(row.energy.joules_per_1000_useful_tokens, " J")
    return f"With {row.label}: {each} per 1,000 useful tokens. {row.energy.words}"


def billed(summary: Summary) -> BilledTime | None:
    """How much of the time that workers were held was spent in measured steps; None where no trial says when it ran."""
    found = summary.billed
    if found is None:
        return None
    sentence = (
        f"{formatting.count(found.workers, 'worker was', 'workers were')} held for {duration(found.held_sec)} in all; "
        f"{formatting.number(found.useful_percent, 0)} % of that was measured steps. "
        f"Not known: {formatting.listing(list(found.unknown))}."
    )
    phases = [
        (f"{name}, between steps" if name == MEASURED_PHASE else name, sec) for name, sec in found.by_phase.items()
    ]
    parts = [("measured steps", found.useful_sec), *phases, ("between trials", found.idle_sec)]
    return BilledTime(
        sentence=sentence, parts=tuple((name, duration(seconds)) for name, seconds in parts if seconds > 0)
    )


def duration(seconds: float) -> str:
    """`12.4 s`, `20 min 24 s`, `3 h 48 min`."""
    if seconds < 100:
        return f"{formatting.number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    hours, left = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {left} min"


def _under(of: Estimate | Ratio, places: int) -> str:
    return formatting.span(of.low, of.high, places) + (", of one process" if formatting.mark(of) else "")


def _dollars(of: Amount) -> str:
    return f"${formatting.number(of.value)}"


def _price(price: Price) -> str:
    return f"${price.usd_per_gpu_hour:,.2f} per GPU hour"


def _called(price: Price) -> str:
    return "as set" if price.name == "set" else price.name


def _between(plan: FineTuning) -> tuple[str, ...]:
    low, high = plan.training_sec.low, plan.training_sec.high
    return () if low is None or high is None else (f"{duration(low)} to {duration(high)}",)


def _amount(plan: FineTuning) -> tables.Cell:
    usd, places = plan.usd, formatting.decimals(plan.usd.value)
    spread = formatting.span(usd.low, usd.high, places).strip("()")
    more = f"billed {formatting.number(plan.usd_billed.value, places)}" if plan.startup_sec is not None else ""
    return tables.Cell(value=_dollars(usd), under=tuple(filter(None, (spread, more))))
