"""11 distributed: throughput over ranks, its share of linear scaling, the cost of communication and its bound."""

from bench.records.result import TrialStatus
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.glyphs import RowFigure
from reports.figures.drawing.palette import ACCENT_TONE, PUBLISHED
from reports.figures.drawing.panel import Mark, MarkGroup, Panel
from reports.read import queries, reference_results
from reports.read.queries import MeasuredValue
from reports.read.reference_results import PublishedResults
from reports.read.run import Run
from reports.statistics import per_config
from reports.statistics.per_process import ProcessSteps
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary.cost import Amount
from reports.summary.summary import Summary


def gather(summary: Summary, run: Run) -> RowFigure | None:
    rates = _by_ranks(run, "global_samples_per_sec")
    if not rates:
        return None
    steps = _measured(run)
    beside = reference_results.matching_results(run)
    silent = _by_ranks(run, "efficiency_percent")
    found = _efficiencies(steps, silent, beside)
    n = [step.n_steps for step in steps.values()]
    panels = [Panel(title="Samples per second (upright: linear)", marks=tuple(_rates(rates)))]
    shares = _by_ranks(run, "communication_share_no_sync_percent")
    if shares:
        bounds = _by_ranks(run, "communication_bound_sec")
        panels.append(
            Panel(
                title="Communication, % of a step (upright: bound)",
                marks=tuple(_share(shares.get(rate), bounds.get(rate)) for rate in rates),
                kind="dots",
                at=0.0,
            )
        )
    both = " Hollow diamonds are the two published records; they contradict each other." if beside is not None else ""
    return RowFigure(
        over=head(
            summary,
            _title(rates, steps, silent),
            f"n = {formatting.number_range(n)} steps per trial" if n else "",
            "95 % intervals",
            f"{PUBLISHED} {beside.source}: two records that do not agree" if beside is not None else "",
        ),
        groups=(
            MarkGroup(names=tuple(formatting.count(rate, "rank") for rate in rates), panels=tuple(panels)),
            MarkGroup(
                names=tuple(name for name, _ in found),
                panels=(
                    Panel(
                        title="Percent of linear scaling (dashed: 100 %)",
                        marks=tuple(mark for _, mark in found),
                        kind="dots",
                        at=100.0,
                    ),
                ),
            ),
        ),
        caption=(
            "Samples of all ranks together: bars that reach the upright line scale linearly. Blue dots compare with "
            "one rank; orange dots with the same ranks when they do not exchange gradients, which is the cost of "
            "communication alone. An interval that includes 100 % (or 0 %) shows no such cost. The bound is what it "
            f"would be if nothing overlapped with it.{both}"
        ),
    )


def _by_ranks(run: Run, name: str) -> dict[int, MeasuredValue]:
    found = [one for one in queries.select(run, name, "world_size", kind="distributed") if one.value is not None]
    return {
        int(one.context["world_size"]): one for one in sorted(found, key=lambda one: int(one.context["world_size"]))
    }


def _measured(run: Run) -> dict[int, MeasuredRate]:
    """Steps of each number of ranks; a step's samples are one device's, so equal rates mean linear scaling."""
    groups: dict[int, list[ProcessSteps]] = {}
    for result in run.results:
        if result.trial.kind == "distributed" and result.status is TrialStatus.SUCCEEDED:
            groups.setdefault(result.trial.world_size, []).append(ProcessSteps.from_result(result))
    return {ranks: per_config.measure(found) for ranks, found in sorted(groups.items())}


def _rates(rates: dict[int, MeasuredValue]) -> list[Mark]:
    fewest, first = next(iter(rates.items()))
    linear = {ranks: (first.value or 0.0) * ranks / fewest for ranks in rates}
    return [
        row_chart.reading_mark(one, "", limit=None if ranks == fewest else linear[ranks])
        for ranks, one in rates.items()
    ]


def _share(one: MeasuredValue | None, bound: MeasuredValue | None) -> Mark:
    if one is None or one.value is None:
        return Mark(value=None, words="one rank: no communication")
    most = None
    if bound is not None and (left := bound.context.get("efficiency_without_overlap_percent")) is not None:
        most = 100.0 - float(left)
    more = "" if most is None else f"  | bound {most:.2g} %"
    return row_chart.percent_mark(_amount(one), more, tone=ACCENT_TONE, limit=most)


def _efficiencies(
    steps: dict[int, MeasuredRate], silent: dict[int, MeasuredValue], beside: PublishedResults | None
) -> list[tuple[str, Mark]]:
    """For each number of ranks: against one rank, against the same ranks without communication, and published."""
    found: list[tuple[str, Mark]] = []
    one = steps.get(1)
    for ranks in sorted({*steps, *silent} - {1}):
        called = formatting.count(ranks, "rank")
        if one is not None and ranks in steps:
            ratio = per_config.ratio(steps[ranks], one, "samples_per_sec")
            mark = row_chart.percent_mark(_percent(ratio))
            found.append((f"{called}, against one rank", mark))
        if (own := silent.get(ranks)) is not None and own.value is not None:
            mark = row_chart.percent_mark(_amount(own), tone=ACCENT_TONE)
            found.append((f"{called}, against no exchange", mark))
        for record in beside.scaling if beside is not None else ():
            if (value := record.efficiency_percent.get(ranks)) is not None:
                words = f"{PUBLISHED} {formatting.number(value)} % published"
                found.append((f"{called}, {record.name}", Mark(value=None, words=words, published=(value,))))
    return found


def _percent(of: Ratio) -> Amount:
    return Amount(value=of.value, low=of.low, high=of.high).times(100.0)


def _amount(of: MeasuredValue) -> Amount:
    return Amount(value=of.value or 0.0, low=of.low, high=of.high)


def _title(rates: dict[int, MeasuredValue], steps: dict[int, MeasuredRate], silent: dict[int, MeasuredValue]) -> str:
    ranks, last = list(rates.items())[-1]
    title = f"{formatting.count(ranks, 'rank')} process {formatting.number(last.value)} samples per second"
    if 1 in steps and ranks in steps and ranks > 1:
        ratio = per_config.ratio(steps[ranks], steps[1], "samples_per_sec")
        return f"{title}: {row_chart.percent_mark(_percent(ratio)).words} of linear"
    if ranks in silent:
        return f"{title}: {formatting.number(silent[ranks].value, 1)} % of their rate without communication"
    return title.replace("1 rank process ", "1 rank processes ")


DISTRIBUTED = Chart(
    name="11_distributed_dashboard",
    title="Distributed training",
    needs="a trial of suite distributed on several GPUs",
    command="inv bench --suite=distributed",
    gather=gather,
    folded=True,
)
