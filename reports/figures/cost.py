"""Figure 07, cost: dollars per million useful tokens, and of a fine-tuning on 1, 2 and 4 GPUs."""

from collections.abc import Mapping

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import BASELINE_TONE, PUBLISHED
from reports.read import reference_results
from reports.read.loaded_run import Run
from reports.read.reference_results import PublishedResults
from reports.summary.cost import FINE_TUNING_SAMPLES, Cost, FineTuning, Price
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary

_MAX_PRICES = 4  # in the header; the page's table has all of them


def gather(summary: Summary, run: Run) -> RowFigure | None:
    priced = [(row, row.cost) for row in row_chart.drawn_rows(summary) if row.cost is not None]
    if not priced:
        return None
    priced.sort(key=lambda item: item[1].usd_per_million_useful_tokens.value)
    published = reference_results.matching_results(run)
    published_by_label = reference_results.training_by_label(run, published)
    chosen = summary.choice
    best = priced[0][0] if chosen is None else chosen.row
    cheapest = priced[0][1]
    planned_rows = [
        best,
        *(
            row
            for row, _ in priced
            if row is not best and published and published_by_label.get(row.label) is published.training[-1]
        ),
    ]
    fine_tunings = _fine_tuning_group(planned_rows, published, published_by_label, summary)
    has_published = published is not None and bool(published_by_label)
    first_price = cheapest.price
    is_assumed = any(mark.is_hollow for panel in fine_tunings.panels for mark in panel.marks)
    hatched_note = " Hatched bars assume a speed-up that was not measured for that configuration." if is_assumed else ""
    panels = (
        Panel(
            title=f"Per million useful tokens, at ${first_price.usd_per_gpu_hour:,.2f}",
            marks=tuple(
                row_chart.dollars_mark(cost.usd_per_million_useful_tokens, tone=row_chart.row_tone(row))
                for row, cost in priced
            ),
        ),
    )
    return RowFigure(
        header=make_header(
            summary,
            _title(best, is_cheapest=chosen is not None and best is priced[0][0] and not chosen.tied),
            *row_chart.header_facts(summary),
            *(price.description for price in summary.prices[:_MAX_PRICES]),
            f"{PUBLISHED} {published.source}, at ${published.cost_10000_samples['usd_per_gpu_hour']:.2f} per GPU hour"
            if published is not None and has_published
            else "",
        ),
        groups=(MarkGroup(names=tuple(row.label for row, _ in priced), panels=panels), fine_tunings),
        caption=(
            "Cheapest first, in US$: shorter bars are better. More GPUs finish sooner at nearly the same cost; billed "
            "adds the time before a process's first step. Dollars are proportional to the price."
            f"{hatched_note}{_saving_note(priced, published, published_by_label)}"
        ),
    )


def _saving_note(
    priced: list[tuple[ConfigurationRow, Cost]],
    published: PublishedResults | None,
    published_by_label: Mapping[str, reference_results.PublishedTraining],
) -> str:
    """Compare how much less the cheapest published configuration costs than the dearest, here and as published."""
    if published is None:
        return ""
    usd = {published_by_label[row.label]: (row, cost) for row, cost in priced if row.label in published_by_label}
    by_price = sorted(usd, key=lambda training: training.usd_per_1000_samples)
    if len(by_price) < 2:
        return ""
    cheap, dear = by_price[0], by_price[-1]
    shares = [
        100.0 * (1.0 - small / large)
        for small, large in (
            (usd[cheap][1].usd_per_1000_samples.value, usd[dear][1].usd_per_1000_samples.value),
            (cheap.usd_per_1000_samples, dear.usd_per_1000_samples),
        )
    ]
    names = f"{usd[cheap][0].label} costs {shares[0]:.0f} % less than {usd[dear][0].label} for the same samples"
    return f" {names} ({shares[1]:.0f} % published)."


def _title(best: ConfigurationRow, *, is_cheapest: bool) -> str:
    rate = formatting.estimate(None if best.cost is None else best.cost.usd_per_million_useful_tokens, prefix="$")
    title = f"{best.label} {'is cheapest:' if is_cheapest else 'costs'} {rate} per million useful tokens"
    fine_tuning = None if best.cost is None else next(iter(best.cost.fine_tunings), None)
    if fine_tuning is None:
        return title
    dollars = formatting.number(fine_tuning.usd.value)
    return f"{title}; {FINE_TUNING_SAMPLES:,} samples cost ${dollars} on {formatting.count(fine_tuning.gpus, 'GPU')}"


def _fine_tuning_group(
    rows: list[ConfigurationRow],
    published: PublishedResults | None,
    published_by_label: Mapping[str, reference_results.PublishedTraining],
    summary: Summary,
) -> MarkGroup:
    """Make a row for each configuration and number of GPUs: dollars at the first price, and hours."""
    plans = [
        (row, number, plan) for row in rows if row.cost is not None for number, plan in enumerate(row.cost.fine_tunings)
    ]
    # Published results, for the rows that measured the same configuration.
    references = [
        published if published is not None and published_by_label.get(row.label) is published.training[-1] else None
        for row, *_ in plans
    ]
    names = [f"{row.label}, {formatting.count(plan.gpus, 'GPU')}" for row, _, plan in plans]
    price = summary.prices[0]
    dollars = []
    for (*_, plan), reference in zip(plans, references, strict=True):
        published_usd = (
            {}
            if reference is None or not _is_published_price(price, published)
            else reference.cost_10000_samples["usd"]
        )
        dollars.append(_usd_mark(plan, tuple(published_usd.get(plan.gpus, ()))))
    hosted = summary.hosted
    hosted_usd = None if hosted is None else hosted.usd_per_10000_samples
    if hosted_usd is not None:
        dollars.append(Mark(value=hosted_usd, text=f"${formatting.number(hosted_usd)}", tone=BASELINE_TONE))
    panels = [Panel(title=f"10,000 samples at ${price.usd_per_gpu_hour:,.2f}", marks=tuple(dollars))]
    hours = [
        _hours_mark(plan, None if reference is None else reference.cost_10000_samples["minutes"].get(plan.gpus))
        for (*_, plan), reference in zip(plans, references, strict=True)
    ]
    if hosted is not None and hosted_usd is not None:
        names.append(f"hosted: {hosted.source}")
        hours.append(Mark(value=None, text=formatting.UNKNOWN))
    panels.append(Panel(title="Hours per 10,000 samples", marks=tuple(hours)))
    return MarkGroup(names=tuple(names), panels=tuple(panels))


def _is_published_price(price: Price, published: PublishedResults | None) -> bool:
    """Return whether this is the price of the published dollars; others cannot be compared."""
    if published is None:
        return False
    return abs(price.usd_per_gpu_hour - float(published.cost_10000_samples["usd_per_gpu_hour"])) < 1e-9


def _usd_mark(plan: FineTuning, references: tuple[float, ...]) -> Mark:
    billed = plan.usd_billed.value
    places = formatting.significant_decimals(plan.usd.value)
    billed_text = f", billed ${formatting.number(billed, places)}" if plan.startup_sec is not None else ""
    published_text = (
        f"  {PUBLISHED} {', '.join(f'${fromkey:.2f}' for fromkey in dict.fromkeys(references))}" if references else ""
    )
    text = f"${formatting.number(plan.usd.value, places)}{billed_text}{published_text}"
    return row_chart.interval_mark(plan.usd, text, is_hollow=not plan.scaling.is_measured, published=references)


def _hours_mark(plan: FineTuning, minutes: float | None) -> Mark:
    hours = plan.training_sec.times(1 / 3600)
    published_text = f"  {PUBLISHED} {minutes / 60:.2f}" if minutes else ""
    text = f"{formatting.number(hours.value)} h{'' if plan.scaling.is_measured else ', assumed'}{published_text}"
    references = (minutes / 60,) if minutes else ()
    return row_chart.interval_mark(hours, text, is_hollow=not plan.scaling.is_measured, published=references)


COST = Chart(
    name="07_cost_analysis",
    title="Cost",
    needs="a price for the workers' GPU: cost.price_usd_per_gpu_hour and cost.price_source in invoke.yaml",
    gather=gather,
)
