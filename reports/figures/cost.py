"""Figure 07, cost: dollars per million useful tokens, and of a fine-tuning on 1, 2 and 4 GPUs."""

from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import BASELINE_TONE, PUBLISHED
from reports.read import reference_results
from reports.read.loaded_run import Run
from reports.read.reference_results import PublishedResults
from reports.summary.cost import FineTuning, Price
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
        (row, plan)
        for row in (best, *(row for row, _ in priced if row is not best and row.label in repeats))
        for plan in (row.cost.fine_tunings if row.cost else ())
    ]
    dollars = [
        (
            f"{row.label}, {formatting.count(plan.gpus, 'GPU')}",
            _usd_mark(plan, price, published if row.label in repeats else None),
        )
        for row, plan in plans
    ]
    if summary.hosted is not None and (usd := summary.hosted.usd_per_10000_samples) is not None:
        mark = Mark(value=usd, text=f"${formatting.number(usd)}", tone=BASELINE_TONE)
        dollars.append((f"hosted: {summary.hosted.source}", mark))
    by_tokens = [
        (
            row.label,
            row_chart.interval_mark(
                cost.usd_per_million_useful_tokens,
                formatting.estimate(cost.usd_per_million_useful_tokens, prefix="$"),
                tone=row_chart.row_tone(row),
            ),
        )
        for row, cost in priced
    ]
    is_assumed = any(mark.is_hollow for _, mark in dollars)
    hatched_note = " Hatched bars assume a speed-up that was not measured for that configuration." if is_assumed else ""
    source = published if published_by_label else None
    rate = formatting.estimate(None if best.cost is None else best.cost.usd_per_million_useful_tokens, prefix="$")
    is_cheapest = chosen is not None and best is priced[0][0] and not chosen.tied
    return RowFigure(
        header=make_header(
            summary,
            f"{best.label} {'is cheapest:' if is_cheapest else 'costs'} {rate} per million useful tokens",
            *row_chart.header_facts(summary),
            *(price.description for price in summary.prices[:_MAX_PRICES]),
            published=source,
            remark="" if source is None else f", at ${_published_usd_per_hour(source):.2f} per GPU hour",
        ),
        groups=(
            one_panel(f"Per million useful tokens, at ${price.usd_per_gpu_hour:,.2f}", by_tokens),
            one_panel(f"10,000 samples at ${price.usd_per_gpu_hour:,.2f}", dollars),
        ),
        caption=(
            "Cheapest first, in US$: shorter bars are better. More GPUs finish sooner at nearly the same cost; billed "
            f"adds the time before a process's first step. Dollars are proportional to the price.{hatched_note}"
        ),
    )


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


COST = Chart(
    name="07_cost_analysis",
    title="Cost",
    needs="a price for the workers' GPU: cost.price_usd_per_gpu_hour and cost.price_source in invoke.yaml",
    gather=gather,
)
