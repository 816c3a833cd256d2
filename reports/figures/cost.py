"""07 cost: dollars per 1,000 samples and per million useful tokens, and what a fine-tuning costs on 1, 2 and 4 GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from reports import text
from reports.figures.drawing import marks, rows
from reports.figures.drawing.board import Head, Sheet, board, head
from reports.figures.drawing.chart import Chart
from reports.figures.drawing.marks import Mark, Panel
from reports.figures.drawing.palette import BASELINE_TONE, OTHER_TONE, PUBLISHED
from reports.read import published
from reports.read.published import Published
from reports.read.run import Run
from reports.summary.cost import FINE_TUNING_SAMPLES, Amount, Cost, FineTuning, Price
from reports.summary.summary import ConfigurationRow, Summary

_MOST_PRICES = 4  # named over the figure; the page's table has all of them
_MOST_BESIDE = 3  # side by side: with more, neither titles nor words fit


@dataclass(frozen=True, kw_only=True)
class Data:
    """Configurations, cheapest first, with their panels; and fine-tunings, a row per configuration and GPUs."""

    over: Head
    names: tuple[str, ...]
    panels: tuple[Panel, ...]
    tunings: tuple[str, ...]
    tuning_panels: tuple[Panel, ...]
    has_published: bool
    is_assumed: bool


def gather(summary: Summary, run: Run) -> Data | None:
    priced = [(row, row.cost) for row in rows.drawn(summary) if row.cost is not None]
    if not priced:
        return None
    priced.sort(key=lambda item: item[1].usd_per_million_useful_tokens.value)
    beside = published.beside(run)
    like = published.training_by_label(run, beside)
    best, cheapest = priced[0]
    told = [
        best,
        *(row for row, _ in priced if row is not best and beside and like.get(row.label) is beside.training[-1]),
    ]
    tunings, tuning_panels = _tunings(told, beside, like, summary)
    shown = beside is not None and bool(like) and any(_is_published(price, beside) for price in summary.prices)
    first = cheapest.price
    return Data(
        over=head(
            summary,
            _title(best, cheapest),
            *rows.facts(summary),
            *(price.told for price in summary.prices[:_MOST_PRICES]),
            f"{PUBLISHED} {beside.source}, at ${beside.cost_10000_samples['usd_per_gpu_hour']:.2f} per GPU hour"
            if beside is not None and shown
            else "",
        ),
        names=tuple(row.label for row, _ in priced),
        panels=(
            Panel(
                title=f"Per million useful tokens, at ${first.usd_per_gpu_hour:,.2f}",
                marks=tuple(_tokens(row, one) for row, one in priced),
            ),
            *(
                Panel(
                    title=f"Per 1,000 samples, at ${price.usd_per_gpu_hour:,.2f}",
                    marks=tuple(
                        _samples(row, row.costs[place], like.get(row.label) if _is_published(price, beside) else None)
                        for row, _ in priced
                    ),
                )
                for place, price in _drawn(summary, beside)
                if place == 0 or _is_published(price, beside)
            ),
        ),
        tunings=tunings,
        tuning_panels=tuning_panels,
        has_published=shown,
        is_assumed=any(mark.is_hollow for panel in tuning_panels for mark in panel.marks),
    )


def _title(best: ConfigurationRow, cheapest: Cost) -> str:
    one = next(iter(cheapest.fine_tunings), None)
    said = f"{best.label} is cheapest: {_dollars(cheapest.usd_per_million_useful_tokens)} per million useful tokens"
    if one is None:
        return said
    return (
        f"{said}; {FINE_TUNING_SAMPLES:,} samples cost ${text.number(one.usd.value)} on {text.count(one.gpus, 'GPU')}"
    )


def _dollars(of: Amount) -> str:
    places = text.decimals(of.value)
    return f"${text.number(of.value, places)} {text.span(of.low, of.high, places)}".rstrip()


def _tokens(row: ConfigurationRow, at: Cost) -> Mark:
    amount = at.usd_per_million_useful_tokens
    return Mark(value=amount.value, words=_dollars(amount), low=amount.low, high=amount.high, tone=rows.tone(row))


def _samples(row: ConfigurationRow, at: Cost, like: published.Training | None) -> Mark:
    amount = Amount(value=at.usd_per_1000_samples, low=at.low, high=at.high)
    more = f"  {PUBLISHED} ${like.usd_per_1000_samples:g} published" if like is not None else ""
    return Mark(
        value=amount.value,
        words=_dollars(amount) + more,
        low=amount.low,
        high=amount.high,
        tone=rows.tone(row),
        published=() if like is None else (like.usd_per_1000_samples,),
    )


def _tunings(
    told: list[ConfigurationRow], beside: Published | None, like: Mapping[str, published.Training], summary: Summary
) -> tuple[tuple[str, ...], tuple[Panel, ...]]:
    """A row for each of `told` on each number of GPUs; a panel for each price, and one for how long it takes."""
    plans = [
        (row, number, plan) for row in told if row.cost is not None for number, plan in enumerate(row.cost.fine_tunings)
    ]
    names = [f"{row.label}, {text.count(plan.gpus, 'GPU')}" for row, _, plan in plans]
    panels = []
    for place, price in _drawn(summary, beside):
        found = []
        for row, number, plan in plans:
            same = beside is not None and like.get(row.label) is beside.training[-1] and _is_published(price, beside)
            usd = beside.cost_10000_samples["usd"].get(plan.gpus, ()) if same and beside is not None else ()
            found.append(_usd(row.costs[place].fine_tunings[number], tuple(usd), first=place == 0))
        if summary.hosted is not None:
            asked = summary.hosted.usd_per_10000_samples
            found.append(Mark(value=asked, words=f"${text.number(asked)}", tone=BASELINE_TONE))
        panels.append(Panel(title=f"10,000 samples at ${price.usd_per_gpu_hour:,.2f}", marks=tuple(found)))
    hours = []
    for row, _, plan in plans:
        same = beside is not None and like.get(row.label) is beside.training[-1]
        minutes = beside.cost_10000_samples["minutes"].get(plan.gpus) if same and beside is not None else None
        hours.append(_hours(plan, minutes))
    if summary.hosted is not None:
        names.append(f"hosted: {summary.hosted.source}")
        hours.append(Mark(value=None, words=text.UNKNOWN))
    panels.append(Panel(title="Hours of 10,000 samples", marks=tuple(hours)))
    return tuple(names), tuple(panels)


def _drawn(summary: Summary, beside: Published | None) -> list[tuple[int, Price]]:
    """The prices with a panel, and their places: the first and the published one before others, no amount twice."""
    order = sorted(enumerate(summary.prices), key=lambda one: (one[0] > 0, not _is_published(one[1], beside)))
    place_of: dict[float, int] = {}
    for place, price in order:
        place_of.setdefault(price.usd_per_gpu_hour, place)
    return [(place, summary.prices[place]) for place in sorted([*place_of.values()][:_MOST_BESIDE])]


def _is_published(price: Price, beside: Published | None) -> bool:
    """True at the price that published dollars were counted with; dollars at another are not the same thing."""
    if beside is None:
        return False
    return abs(price.usd_per_gpu_hour - float(beside.cost_10000_samples["usd_per_gpu_hour"])) < 1e-9


def _usd(plan: FineTuning, references: tuple[float, ...], *, first: bool) -> Mark:
    billed = plan.usd_billed.value
    places = text.decimals(plan.usd.value)
    more = f", billed ${text.number(billed, places)}" if plan.startup_sec is not None else ""
    also = f"  {PUBLISHED} {', '.join(f'${one:.2f}' for one in dict.fromkeys(references))}" if references else ""
    return Mark(
        value=plan.usd.value,
        words=f"${text.number(plan.usd.value, places)}{more}{also}",
        low=plan.usd.low,
        high=plan.usd.high,
        tone=OTHER_TONE if first else BASELINE_TONE,
        is_hollow=not plan.scaling.is_measured,
        published=references,
    )


def _hours(plan: FineTuning, minutes: float | None) -> Mark:
    hours = plan.training_sec.times(1 / 3600)
    also = f"  {PUBLISHED} {minutes / 60:.2f}" if minutes else ""
    return Mark(
        value=hours.value,
        words=f"{text.number(hours.value)} h{'' if plan.scaling.is_measured else ', assumed'}{also}",
        low=hours.low,
        high=hours.high,
        is_hollow=not plan.scaling.is_measured,
        published=(minutes / 60,) if minutes else (),
    )


def draw(data: Data, sheet: Sheet) -> Figure:
    panels, tunings = data.panels, data.tuning_panels
    if sheet.narrow:  # below each other on a phone: the price that counts, the hours, and what was published
        panels = (panels[0], panels[-1]) if len(panels) > 1 else panels
        tunings = tuple(
            one for one in tunings if one in (tunings[0], tunings[-1]) or any(m.published for m in one.marks)
        )
    first = marks.panels_height_in(len(data.names), len(panels), sheet)
    second = marks.panels_height_in(len(data.tunings), len(tunings), sheet) if data.tunings else 0.0
    drawing = board(data.over, sheet, first + second)
    marks.draw_panels(drawing, data.names, panels, aligned_with=data.tunings)
    if data.tunings:
        marks.draw_panels(drawing, data.tunings, tunings, top_in=first, aligned_with=data.names)
    return drawing.figure


def caption(data: Data) -> str:
    hollow = " Hatched is a speed-up that no trial of this very configuration measured." if data.is_assumed else ""
    return (
        "Cheapest first, in US$: shorter bars are better. More GPUs finish sooner at nearly the same cost; billed adds "
        f"what a process spends before its first step.{hollow}"
    )


def alt(data: Data) -> str:
    more = f" {rows.alt(data.tunings, data.tuning_panels)}" if data.tunings else ""
    return f"{rows.alt(data.names, data.panels)}{more}"


COST = Chart(
    name="07_cost_analysis",
    title="Cost",
    needs="a price of the workers' GPU: cost.price_usd_per_gpu_hour and cost.price_source in invoke.yaml",
    gather=gather,
    draw=draw,
    caption=caption,
    alt=alt,
)
