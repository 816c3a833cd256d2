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
    chosen, price = summary.choice, summary.prices[0]
    best = priced[0][0] if chosen is None else chosen.row
    # Published results stand next to the rows that measured the same configuration.
    repeats = {label for label, each in published_by_label.items() if published and each is published.training[-1]}
    plans = [
        (row, plan, published if row.label in repeats else None)
        for row in (best, *(row for row, _ in priced if row is not best and row.label in repeats))
        for plan in (row.cost.fine_tunings if row.cost else ())
    ]
    names = [f"{row.label}, {formatting.count(plan.gpus, 'GPU')}" for row, plan, _ in plans]
    dollars = [_usd_mark(plan, price, reference) for _, plan, reference in plans]
    hours = [_hours_mark(plan, reference) for _, plan, reference in plans]
    if summary.hosted is not None and (usd := summary.hosted.usd_per_10000_samples) is not None:
        names.append(f"hosted: {summary.hosted.source}")
        dollars.append(Mark(value=usd, text=f"${formatting.number(usd)}", tone=BASELINE_TONE))
        hours.append(Mark(value=None, text=formatting.UNKNOWN))
    by_tokens = Panel(
        title=f"Per million useful tokens, at ${priced[0][1].price.usd_per_gpu_hour:,.2f}",
        marks=tuple(
            row_chart.dollars_mark(cost.usd_per_million_useful_tokens, tone=row_chart.row_tone(row))
            for row, cost in priced
        ),
    )
    by_samples = (
        Panel(title=f"10,000 samples at ${price.usd_per_gpu_hour:,.2f}", marks=tuple(dollars)),
        Panel(title="Hours per 10,000 samples", marks=tuple(hours)),
    )
    is_assumed = any(mark.is_hollow for mark in dollars)
    hatched_note = " Hatched bars assume a speed-up that was not measured for that configuration." if is_assumed else ""
    source = published if published_by_label else None
    return RowFigure(
        header=make_header(
            summary,
            _title(best, is_cheapest=chosen is not None and best is priced[0][0] and not chosen.tied),
            *row_chart.header_facts(summary),
            *(price.description for price in summary.prices[:_MAX_PRICES]),
            published=source,
            remark="" if source is None else f", at ${_published_usd_per_hour(source):.2f} per GPU hour",
        ),
        groups=(
            MarkGroup(names=tuple(row.label for row, _ in priced), panels=(by_tokens,)),
            MarkGroup(names=tuple(names), panels=by_samples),
        ),
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


def _published_usd_per_hour(published: PublishedResults) -> float:
    return float(published.cost_10000_samples["usd_per_gpu_hour"])


def _usd_mark(plan: FineTuning, price: Price, published: PublishedResults | None) -> Mark:
    """Make a mark of the dollars, next to published ones only at the published price."""
    is_same_price = published is not None and abs(price.usd_per_gpu_hour - _published_usd_per_hour(published)) < 1e-9
    known = tuple(published.cost_10000_samples["usd"].get(plan.gpus, ())) if published and is_same_price else ()
    places = formatting.significant_decimals(plan.usd.value)
    billed = f", billed ${formatting.number(plan.usd_billed.value, places)}" if plan.startup_sec is not None else ""
    references = f"  {PUBLISHED} {', '.join(f'${usd:.2f}' for usd in dict.fromkeys(known))}" if known else ""
    text = f"${formatting.number(plan.usd.value, places)}{billed}{references}"
    return row_chart.interval_mark(plan.usd, text, is_hollow=not plan.scaling.is_measured, published=known)


def _hours_mark(plan: FineTuning, published: PublishedResults | None) -> Mark:
    hours = plan.training_sec.times(1 / 3600)
    minutes = None if published is None else published.cost_10000_samples["minutes"].get(plan.gpus)
    reference = f"  {PUBLISHED} {minutes / 60:.2f}" if minutes else ""
    text = f"{formatting.number(hours.value)} h{'' if plan.scaling.is_measured else ', assumed'}{reference}"
    known = (minutes / 60,) if minutes else ()
    return row_chart.interval_mark(hours, text, is_hollow=not plan.scaling.is_measured, published=known)


COST = Chart(
    name="07_cost_analysis",
    title="Cost",
    needs="a price for the workers' GPU: cost.price_usd_per_gpu_hour and cost.price_source in invoke.yaml",
    gather=gather,
)
