"""The report of a benchmark as a document."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from bench.records.status import TrialStatus
from reports import formatting
from reports.document import (
    Cell,
    Column,
    Document,
    Picture,
    Row,
    Section,
    Table,
    Text,
    Tile,
    estimate_cell,
    paragraph,
    ratio_cell,
    text_table,
)
from reports.figures.drawing.layout import Chart
from reports.statistics.types import Ratio
from reports.summary import sentences, tables
from reports.summary.cost import Cost, FineTuning, Price
from reports.summary.rows import ConfigurationRow, group_name, group_similar, group_workers
from reports.summary.summary import Summary


def make(summary: Summary, pictures: Sequence[Picture] = (), skipped: Sequence[Chart] = ()) -> Document:
    """Make the document of a benchmark. `skipped` are the charts without data."""
    unfit, one_process = sentences.unfit(summary), sentences.one_process_note(summary)
    return Document(
        kicker="benchmark report",
        run_id=summary.record.run_id,
        headline=sentences.recommendation(summary),
        notes=(one_process,) if one_process else (),
        commands=tuple(_train_command(summary)),
        tiles=tuple(_tiles(summary)),
        doubts=(*([summary.profile_note] if summary.profile_note else []), *sentences.cautions(summary)),
        results=(unfit,) if unfit else (),
        facts=tuple(_facts(summary)),
        sections=tuple(_sections(summary, pictures, skipped)),
    )


def _train_command(summary: Summary) -> Iterator[tuple[str, str]]:
    command, row = summary.train_command, summary.best_row
    if command is not None and row is not None:
        yield "Train" if command == "inv train" else f"Train with {row.label}", command


def _tiles(summary: Summary) -> Iterator[Tile]:
    """Yield at most four numbers about the best configuration; none if nothing was measured."""
    row = summary.best_row
    if row is None or row.measured is None:
        return
    rate, ratio = row.measured.elapsed_useful_tokens_per_sec, row.useful_tokens_ratio
    yield _tile("Useful tokens per second and worker", estimate_cell(rate))
    if ratio is not None:
        yield _tile(f"Against {summary.baseline}", ratio_cell(ratio, ratio.word or "not shown to differ, steady"))
    if row.cost is None:
        where = "GPU" if row.peak_vram_bytes is not None else "process"
        yield Tile(name=f"Peak {where} memory", value=formatting.gigabytes(row.peak_bytes))
        return
    per_million = f"${formatting.number(row.cost.usd_per_million_useful_tokens.value)}"
    yield Tile(name="Per million useful tokens", value=per_million, detail=_price(row.cost.price))
    for tuning in row.cost.fine_tunings[:1]:
        detail = f"in {formatting.duration(tuning.training_sec.value)} on {formatting.count(tuning.gpus, 'GPU')}"
        yield Tile(name="10,000 samples", value=f"${formatting.number(tuning.usd.value)}", detail=detail)


def _tile(name: str, cell: Cell) -> Tile:
    return Tile(name=name, value=cell.value, detail=", ".join(cell.details))


def _price(price: Price) -> str:
    return f"${price.usd_per_gpu_hour:,.2f} per GPU hour"


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    """Yield name and value of the facts that identify the run."""
    record = summary.record
    sha, dirty = record.provenance.get("git_sha"), record.provenance.get("git_dirty")
    yield "Run", record.run_id
    yield "Started", _format_time(record.created_at)
    yield "Suite", f"{record.suite}, profile {record.profile}"
    yield "Fleet", f"{record.fleet_kind}, {formatting.count(len(record.workers), 'worker')}"
    yield "Device", summary.hosts.device
    yield "Code", f"{str(sha)[:12]}{' with uncommitted changes' if dirty else ''}" if sha else "git revision unknown"
    yield "Trials", f"{summary.counts.get(TrialStatus.SUCCEEDED, 0)} of {len(record.planned)} succeeded"


def _format_time(iso: str) -> str:
    """Format an ISO 8601 timestamp as `2026-03-01 10:15:00 UTC`; invalid ones are returned unchanged."""
    try:
        return datetime.fromisoformat(iso).strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()
    except ValueError:
        return iso


def _sections(summary: Summary, pictures: Sequence[Picture], skipped: Sequence[Chart]) -> Iterator[Section]:
    if summary.rows:
        yield Section(title="Configurations", parts=(_configurations(summary),), is_brief=True)
    if summary.others:
        kinds = [
            (other.label, other.kind, f"{other.succeeded} of {other.planned}", f"{other.n_measurements:,}")
            for other in summary.others
        ]
        heads = ("Other configuration", "Kind", "Trials", "Measurements")
        yield Section(title="Other workloads", parts=(text_table(heads, kinds, heads[2:]),), is_brief=True)
    row = summary.best_row
    if row is not None and row.costs and row.costs[0].fine_tunings:
        sources = [price.description for price in summary.prices]
        sources += [] if summary.hosted is None else [summary.hosted.description]
        parts = (_costs(row), Text(items=tuple(sources), is_quiet=True))
        yield Section(title="Cost of a fine-tuning on 10,000 samples", parts=parts)
    if pictures:
        ordered = sorted(pictures, key=lambda picture: picture.is_folded)
        yield Section(title="Figures", parts=tuple(ordered))
    yield Section(title="Failures", parts=tuple(_failures(summary)))
    for section, made in summary.measurements.items():
        yield Section(title=f"{tables.section_title(section)} measurements", parts=made, is_folded=True)
    yield Section(title="Method", parts=(Text(items=tuple(sentences.method(summary))),), is_folded=True)
    yield Section(title="Fingerprint", parts=tuple(_fingerprint(summary)), is_folded=True)
    if skipped:
        missing = [
            f"{chart.title} needs {chart.needs}" + (f": `{chart.command}`" if chart.command else "")
            for chart in skipped
        ]
        yield Section(title="Figures without data", parts=(Text(items=tuple(missing), is_list=True),), is_folded=True)


def _configurations(summary: Summary) -> Table:
    caption = (
        "Values with 95 % intervals; rates are per worker, over the time of all steps. Step times are of median steps. "
        f"Ratios are of rates, against {summary.baseline}."
    )
    if summary.price is not None:
        caption += f" Dollars: {summary.price.description}."
    columns = [
        Column(title="Configuration", is_number=False),
        Column(title="n", unit="steps", is_wide_only=True),
        Column(title="Step time", unit="s", is_wide_only=True),
        Column(title="Samples", unit="per s"),
        Column(title="Samples", unit="ratio", is_wide_only=True),
        Column(title="Tokens", unit="per s", is_wide_only=True),
        Column(title="Useful tokens", unit="per s"),
        Column(title="Useful tokens", unit="ratio"),
        Column(title="Padding", unit="%", is_wide_only=True),
        Column(title="Peak memory", unit="GB"),
        Column(title="Loss", unit="first to last", is_wide_only=True),
        *([Column(title="US$", unit="per 1,000 samples")] if summary.price is not None else []),
    ]
    return Table(
        columns=tuple(columns),
        rows=tuple(
            Row(
                cells=tuple(_configuration(row, summary.price is not None)),
                is_marked=row.is_baseline,
                tag="recommended" if row.label == summary.recommended_label else "",
            )
            for row in summary.recommended_first
        ),
        caption=caption,
    )


def _configuration(row: ConfigurationRow, priced: bool) -> Iterator[Cell | None]:
    trial, measured = row.trial, row.measured
    accumulation = f" x {trial.gradient_accumulation_steps}" if trial.gradient_accumulation_steps > 1 else ""
    shape = f"{trial.max_seq_len} tokens, batch {trial.micro_batch_size}{accumulation}; {trial.reason}"
    if measured is None:
        ends = f"no trial succeeded: {sentences.ends_text([row])}"
        yield Cell(value=row.label, details=(shape, ends))
        yield Cell(value="0")
        yield from [None] * (9 + priced)
        return
    trials = () if row.succeeded == row.planned else (f"{row.succeeded} of {row.planned} trials",)
    yield Cell(value=row.label, details=(shape, *trials))
    workers = formatting.count(measured.n_workers, "worker")
    yield Cell(value=str(measured.n_steps), details=(workers,))
    yield estimate_cell(measured.step_time_sec)
    yield estimate_cell(measured.elapsed_samples_per_sec)
    yield _ratio(row, row.samples_ratio)
    yield estimate_cell(measured.elapsed_tokens_per_sec)
    yield estimate_cell(measured.elapsed_useful_tokens_per_sec)
    yield _ratio(row, row.useful_tokens_ratio)
    yield Cell(value=formatting.number(measured.padding_percent, 0))
    peak = row.peak_bytes
    yield None if peak is None else Cell(value=formatting.number(peak / 1e9))
    losses = [formatting.number(loss, 2) for loss in (row.first_loss, row.last_loss)]
    yield Cell(value=losses[0], details=(f"to {losses[1]}",))
    if priced:
        yield None if row.cost is None else estimate_cell(row.cost.usd_per_1000_samples)


def _ratio(row: ConfigurationRow, ratio: Ratio | None) -> Cell | None:
    if row.is_baseline:
        return Cell(value="1", details=("baseline",))
    return None if ratio is None else ratio_cell(ratio, ratio.word)


def _costs(row: ConfigurationRow) -> Table:
    """Make the table of the fine-tuning's time and its dollars at each price, by number of GPUs."""
    return Table(
        columns=(
            Column(title="GPUs", is_number=False),
            Column(title="Time"),
            *(Column(title=_price(cost.price), unit=_price_name(cost.price)) for cost in row.costs),
        ),
        rows=tuple(_plan(number, plan, row.costs) for number, plan in enumerate(row.costs[0].fine_tunings)),
        caption=(
            f"{row.label}, in US$. Billed includes the time before the first step and the boot volume, if their prices "
            "are known."
        ),
    )


def _plan(number: int, plan: FineTuning, costs: Sequence[Cost]) -> Row:
    low, high = plan.training_sec.low, plan.training_sec.high
    span = () if low is None or high is None else (f"{formatting.duration(low)} to {formatting.duration(high)}",)
    time = Cell(value=formatting.duration(plan.training_sec.value), details=span)
    name = Cell(value=formatting.count(plan.gpus, "GPU"), details=(plan.scaling.source,))
    return Row(cells=(name, time, *(_amount(cost.fine_tunings[number]) for cost in costs)))


def _price_name(price: Price) -> str:
    return "as set" if price.name == "set" else price.name


def _amount(plan: FineTuning) -> Cell:
    decimals = formatting.significant_decimals(plan.usd.value)
    billed = f"billed {formatting.number(plan.usd_billed.value, decimals)}" if plan.startup_sec is not None else ""
    return estimate_cell(plan.usd, billed, prefix="$")


def _failures(summary: Summary) -> Iterator[Table | Text]:
    if summary.failures:
        groups = group_similar(summary.failures)
        heads = ("Trial that did not succeed", "Worker", "Status", "Reason", "Attempt", "Steps", "Measurements")
        yield Table(
            columns=tuple(Column(title=head, is_number=number > 3) for number, head in enumerate(heads)),
            rows=tuple(
                Row(
                    cells=(
                        Cell(value=group_name(group)),
                        Cell(value=group_workers(group)),
                        Cell(value=group[0].result.status.value),
                        Cell(value=group[0].result.outcome.text or "unknown", log=tuple(group[0].result.log_tail)),
                        *(
                            Cell(value=formatting.number_range(trial.counts[name] for trial in group))
                            for name in group[0].counts
                        ),
                    )
                )
                for group in groups
            ),
        )
    missing = group_similar(summary.missing)
    if missing:
        texts = [(group_name(group), group_workers(group), group[0].reason) for group in missing]
        yield text_table(("Planned trial without a usable result", "Worker", "Reason"), texts)
    if summary.rejected:
        yield text_table(("Rejected file", "Reason"), [(file.file, file.reason) for file in summary.rejected])
    if not (summary.failures or missing or summary.rejected):
        planned = formatting.count(len(summary.record.planned), "planned trial")
        yield paragraph(f"None. {planned} succeeded, and every file was verified.")


def _fingerprint(summary: Summary) -> Iterator[Table | Text]:
    hosts = summary.hosts
    if hosts.differences:
        rows = [
            (key, "; ".join(f"{value} on {formatting.first_n(workers)}" for value, workers in values.items()))
            for key, values in hosts.differences.items()
        ]
        yield text_table(("Key that differs", "Values"), rows)
    elif hosts.common:
        yield paragraph("Every trial ran under the same conditions.")
    if hosts.common:
        yield text_table(("Key on which all agree", "Value"), hosts.common.items())
    else:
        yield paragraph("No result has a fingerprint.")
