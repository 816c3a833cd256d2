"""Figure 01, executive summary: the speed of each configuration in useful tokens and samples."""

from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, MarkGroup, Panel, make_header
from reports.figures.drawing.row_chart import RowFigure
from reports.read import reference_results
from reports.read.loaded_run import Run
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary


def gather(summary: Summary, run: Run) -> RowFigure | None:
    rows = sorted(row_chart.drawn_rows(summary), key=lambda row: -row.useful_rate)
    if not rows:
        return None
    published = reference_results.matching_results(run)
    published_by_label = reference_results.training_by_label(run, published)

    def samples(row: ConfigurationRow) -> Mark:
        rates = published_by_label.get(row.label, {}).get("samples_per_sec", ())
        return row_chart.estimate_mark(row, "elapsed_samples_per_sec", published=tuple(rates))

    panels = (
        Panel(
            title="Useful tokens per s, per worker",
            marks=tuple(row_chart.estimate_mark(row, "elapsed_useful_tokens_per_sec") for row in rows),
        ),
        Panel(title="Samples per s, per worker", marks=tuple(samples(row) for row in rows)),
    )
    source = published if any(row.label in published_by_label for row in rows) else None
    reservation = "" if summary.recommended_label in (None, rows[0].label) else ", but is not recommended"
    baseline_note = f"; grey is {summary.baseline}" if any(row.is_baseline for row in rows) else ""
    published_note = "; hollow diamonds are published results" if source else ""
    return RowFigure(
        header=make_header(
            summary,
            f"{rows[0].label} gives the most useful tokens per second{reservation}: {panels[0].marks[0].text}",
            *row_chart.header_facts(summary),
            published=source,
        ),
        groups=(MarkGroup(names=tuple(row.label for row in rows), panels=panels),),
        caption=(
            "Best first. Longer bars are better: rates over the time of all steps, slow ones "
            "included; black lines are 95 % intervals"
            f"{baseline_note}{published_note}."
        ),
    )


EXECUTIVE_SUMMARY = Chart(
    name="01_executive_summary",
    title="Executive summary",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
)
