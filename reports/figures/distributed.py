"""Figure 11, distributed: throughput over ranks, and its share of linear scaling."""

from collections.abc import Iterator

from bench.records.status import TrialStatus
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import PUBLISHED
from reports.read import measurements, reference_results
from reports.read.loaded_run import Run
from reports.read.measurements import MeasuredValue
from reports.read.reference_results import PublishedResults
from reports.statistics import per_config
from reports.statistics.per_process import ProcessSteps
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary.cost import Amount
from reports.summary.summary import Summary


def gather(summary: Summary, run: Run) -> RowFigure | None:
    measured = measurements.select(run, "global_samples_per_sec", "world_size", kind="distributed")
    known = {int(each.context["world_size"]): each for each in measured if each.value is not None}
    rates = dict(sorted(known.items()))
    if not rates:
        return None
    steps = _rates_by_ranks(run)
    published = reference_results.matching_results(run)
    efficiencies = _efficiency_marks(steps, published)
    step_counts = [step.n_steps for step in steps.values()]
    published_note = (
        " Hollow diamonds are the two published records; they contradict each other." if published is not None else ""
    )
    return RowFigure(
        header=make_header(
            summary,
            _title(rates, steps),
            f"n = {formatting.number_range(step_counts)} steps per trial" if step_counts else "",
            "95 % intervals",
            published=published,
            remark=": two contradictory records",
        ),
        groups=(
            one_panel("Samples per second (vertical line: linear)", _rate_marks(rates)),
            one_panel("Percent of linear scaling (dashed: 100 %)", efficiencies, kind="dots", reference=100.0),
        ),
        caption=(
            "Samples of all ranks together: bars that reach the vertical line scale linearly. Blue dots compare with "
            f"one rank. An interval that includes 100 % shows no cost of more ranks.{published_note}"
        ),
    )


def _rates_by_ranks(run: Run) -> dict[int, MeasuredRate]:
    """Compute the rates by number of ranks; a step's samples are one device's, so equal rates mean linear scaling."""
    processes_by_ranks: dict[int, list[ProcessSteps]] = {}
    for result in run.results:
        if result.trial.workload.measures_scaling and result.status is TrialStatus.SUCCEEDED:
            processes_by_ranks.setdefault(result.trial.world_size, []).append(ProcessSteps.from_result(result))
    return {ranks: per_config.measure(processes) for ranks, processes in sorted(processes_by_ranks.items())}


def _rate_marks(rates: dict[int, MeasuredValue]) -> Iterator[tuple[str, Mark]]:
    fewest, first = next(iter(rates.items()))
    for ranks, rate in rates.items():
        linear = None if ranks == fewest else (first.value or 0.0) * ranks / fewest
        yield formatting.count(ranks, "rank"), row_chart.measured_mark(rate, "", limit=linear)


def _efficiency_marks(steps: dict[int, MeasuredRate], published: PublishedResults | None) -> list[tuple[str, Mark]]:
    """Make marks for each number of ranks: against one rank, and published."""
    rows: list[tuple[str, Mark]] = []
    single_rank = steps.get(1)
    for ranks in sorted(steps.keys() - {1}):
        ranks_text = formatting.count(ranks, "rank")
        if single_rank is not None:
            ratio = per_config.ratio(steps[ranks], single_rank, "samples")
            rows.append((f"{ranks_text}, against one rank", _percent_mark(ratio)))
        for record in published.scaling if published is not None else ():
            if (value := record["efficiency_percent"].get(ranks)) is not None:
                text = f"{PUBLISHED} {formatting.number(value)} % published"
                rows.append((f"{ranks_text}, {record['name']}", Mark(value=None, text=text, published=(value,))))
    return rows


def _percent_mark(ratio: Ratio) -> Mark:
    percent = Amount(value=ratio.value, low=ratio.low, high=ratio.high).times(100.0)
    return row_chart.interval_mark(percent, formatting.estimate(percent, " %", decimals=1))


def _title(rates: dict[int, MeasuredValue], steps: dict[int, MeasuredRate]) -> str:
    ranks, rate = list(rates.items())[-1]
    title = f"{formatting.count(ranks, 'rank')} process {formatting.number(rate.value)} samples per second"
    if 1 in steps and ranks in steps and ranks > 1:
        ratio = per_config.ratio(steps[ranks], steps[1], "samples")
        return f"{title}: {_percent_mark(ratio).text} of linear scaling"
    return title.replace("1 rank process ", "1 rank processes ")


DISTRIBUTED = Chart(
    name="11_distributed_dashboard",
    title="Distributed training",
    needs="a trial of suite distributed on several GPUs",
    command="inv bench --suite=distributed",
    gather=gather,
    is_folded=True,
)
