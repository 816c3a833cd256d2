"""Markdown version of the report, report.md, for reading in a repository."""

from collections.abc import Iterator, Sequence

from reports import formatting
from reports.figures.drawing.layout import Chart, Picture
from reports.output import methods_text
from reports.summary import text, warnings
from reports.summary import text as text_module
from reports.summary.summary import ConfigurationRow, Summary, group_failures, group_missing
from reports.summary.warnings import MAX_SHOWN

_md = formatting.markdown


def render(summary: Summary, pictures: Sequence[Picture], skipped: Sequence[Chart] = ()) -> str:
    """Render report.md. It links the pictures in its folder figures/."""
    recommendation = text_module.recommendation_text(summary)
    parts = list(_heading(summary, recommendation))
    if summary.profile_note:
        parts.append(f"> **{_md(summary.profile_note)}**")
    if summary.cautions:
        parts += _cautions(summary.cautions)
    if unfit := warnings.describe_unfit(summary.rows, summary.others, summary.baseline):
        parts.append(_md(unfit))
    parts.append(_table(("", ""), list(methods_text.facts(summary))))
    if summary.rows:
        parts += ["## Configurations", _configurations(summary)]
    if summary.finding != recommendation:
        finding = text_module.without_basis(summary.finding)
        parts.append(_md(" ".join(filter(None, (finding, summary.second_finding)))))
    if (costs := text.costs(summary)) is not None:
        parts += ["## Cost of a fine-tuning on 10,000 samples", *_costs(costs)]
    if (energy := text.energy_sentence(summary)) is not None:
        parts += ["## Energy", _md(energy)]
    for picture in pictures:
        parts.append(f"## {picture.title}")
        parts.append(_md(picture.caption))
        parts.append(f"![{_md(picture.alt)}](figures/{picture.name}.png)")
    if skipped:
        lines = [
            f"- **{_md(chart.title)}** needs {_md(chart.needs)}" + (f": `{chart.command}`" if chart.command else ".")
            for chart in skipped
        ]
        parts += ["## Figures skipped: no data", "\n".join(lines)]
    if summary.measurements:
        parts += ["## Measurements", *_measurements(summary)]
    parts += ["## Failures", *_failures(summary)]
    parts += ["## Method", *(_md(paragraph) for paragraph in methods_text.paragraphs(summary))]
    parts += ["## Fingerprint", *_fingerprint(summary)]
    return "\n\n".join(parts) + "\n"


def _heading(summary: Summary, recommendation: str) -> Iterator[str]:
    yield f"# {_md(text_module.without_basis(recommendation))}"
    if text_module.has_basis(recommendation):
        yield _md(text_module.ONE_PROCESS_BASIS)
    if (command := text.train_command(summary)) is not None:
        yield f"Train with {_md(text.recommended_label(summary) or '')}: `{command}`"


def _cautions(cautions: Sequence[str]) -> list[str]:
    lines = [f"- {_md(caution)}" for caution in cautions]
    shown, folded = lines[:MAX_SHOWN], lines[MAX_SHOWN:]
    parts = ["Warnings:", "\n".join(shown)]
    if folded:
        head = f"<details><summary>{len(folded)} more</summary>"
        parts += [head, "\n".join(folded), "</details>"]
    return parts


def _configurations(summary: Summary) -> str:
    head = ["configuration", "workers", "steps", "step time, s", "samples/s", "ratio", "tokens/s", "useful tokens/s"]
    head += ["ratio", "padding %", "peak memory", "loss"]
    if summary.price is not None:
        head.append(f"US$ per 1,000 samples at {summary.price.usd_per_gpu_hour:,.2f}/GPU h ({summary.price.source})")
    energies = any(row.energy is not None for row in summary.rows)
    if energies:
        head.append("GPU energy, J per 1,000 useful tokens")
    note = (
        "Values with 95 % intervals; rates are per worker, over the time of all steps; step times are of median "
        f"steps; ratios are of rates, against {summary.baseline}."
    )
    note = f"{note} {methods_text.interval_mark_note(summary)}".rstrip()
    rows = [
        (*_configuration(row, summary.price is not None), *([_energy(row)] if energies else []))
        for row in text.recommended_first(summary)
    ]
    table = _table(tuple(head), rows)
    return f"{table}\n\n{_md(note)}"


def _energy(row: ConfigurationRow) -> str:
    return "" if row.energy is None else formatting.estimate(row.energy.joules_per_1000_useful_tokens)


def _costs(costs: text.Costs) -> list[str]:
    head = ("GPUs", "time", *(f"US$ at {price.name}, {price.detail}" for price in costs.prices))
    lines = [(line.name, line.time.text, *(amount.text for amount in line.amounts)) for line in costs.lines]
    sources = [f"- {_md(source)}" for source in costs.sources]
    scaling = [f"- {_md(line.name)}: {_md(line.detail)}" for line in costs.lines]
    return [_md(f"Configuration: {costs.configuration}."), _table(head, lines), "\n".join([*sources, *scaling])]


def _configuration(row: ConfigurationRow, priced: bool) -> tuple[str, ...]:
    measured = row.measured
    if measured is None:
        return (row.label, "0", "0", "no trial succeeded", *[""] * (9 if priced else 8))
    cells = [
        row.label,
        str(measured.n_workers),
        str(measured.n_steps),
        formatting.estimate(measured.step_time_sec),
        formatting.estimate(measured.elapsed_samples_per_sec),
        "1" if row.is_baseline else _ratio(row, "samples_ratio"),
        formatting.estimate(measured.elapsed_tokens_per_sec),
        formatting.estimate(measured.elapsed_useful_tokens_per_sec),
        "1" if row.is_baseline else _ratio(row, "useful_tokens_ratio"),
        formatting.number(measured.padding_percent, 0),
        formatting.gigabytes(row.peak_bytes),
        f"{formatting.number(row.first_loss, 2)} to {formatting.number(row.last_loss, 2)}",
    ]
    if priced:
        cells.append(formatting.estimate(None if row.cost is None else row.cost.usd_per_1000_samples))
    return tuple(cells)


def _ratio(row: ConfigurationRow, name: str) -> str:
    ratio = getattr(row, name)
    return "" if ratio is None else " ".join(filter(None, (formatting.ratio(ratio), ratio.word)))


def _measurements(summary: Summary) -> list[str]:
    parts = []
    section = ""
    for table in summary.measurements:
        if table.section != section:
            section = table.section
            parts.append(f"### {table.title}")
        if table.common_context:
            parts.append(_md(f"All rows: {table.common_context}."))
        head = (*table.keys, *(", ".join(filter(None, (column.title, column.unit))) for column in table.columns))
        rows = [(*line.keys, *("" if cell is None else cell.text for cell in line.cells)) for line in table.lines]
        parts.append(_table(head, rows))
        if table.n_omitted:
            parts.append(
                _md(f"{formatting.count(table.n_omitted, 'more row is', 'more rows are')} in measurements.csv.")
            )
    return parts


def _failures(summary: Summary) -> list[str]:
    parts = []
    if summary.failures:
        rows_of_failures = [
            (
                failure.name,
                failure.workers("none"),
                failure.first.end.value,
                failure.first.reason or "not known",
                *counts,
            )
            for failure in group_failures(summary.failures)
            for counts in [(failure.number_range("n_steps"), failure.number_range("n_measurements"))]
        ]
        parts.append(_table(("trial", "worker", "status", "reason", "steps", "measurements"), rows_of_failures))
    if summary.missing:
        rows = [(trial.name, trial.workers("any"), trial.first.reason) for trial in group_missing(summary.missing)]
        parts.append(_table(("planned trial without a usable result", "worker", "reason"), rows))
    if summary.rejected:
        rows_of_files = [(trial.file, trial.reason) for trial in summary.rejected]
        parts.append(_table(("rejected file", "reason"), rows_of_files))
    return parts or ["None. Every planned trial succeeded, and every file was verified."]


def _fingerprint(summary: Summary) -> list[str]:
    parts = []
    if summary.hosts.differences:
        rows = [
            (
                difference.key,
                "; ".join(
                    f"{value} on {formatting.first_n(locations)}"
                    for value, locations in difference.where_by_value.items()
                ),
            )
            for difference in summary.hosts.differences
        ]
        parts.append(_table(("differing fact", "values"), rows))
    if summary.hosts.common:
        parts.append(_table(("common fact", "value"), list(summary.hosts.common.items())))
    return parts or ["No result has a fingerprint."]


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell if number == 1 else _md(cell) for cell in line) + " |"
        for number, line in enumerate(lines)
    )
