"""Build of a run's report: load the folder, draw, and write results/<run-id>/report/.

Every file is replaced atomically, index.html last, so that the page is older than its figures and numbers only briefly,
and an interrupted report leaves the previous page in place.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from bench.records.atomic_files import write_atomic
from reports.comparison.compare import CompareError, compare
from reports.document import Document
from reports.figures import CHARTS, run_comparison
from reports.figures.drawing.layout import Chart, draw_picture
from reports.output import benchmark, data_files, markdown, page, training_document
from reports.output.page import INDEX_FILE
from reports.read.loaded_run import ReportError, ReportWriteError, Run, make_report_folder
from reports.read.run_folder import load
from reports.summary.prices import PriceError, Pricing
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from reports.training import training_facts as training_values
from reports.training.training_facts import TrainingReport

FIGURES_FOLDER = "figures"
Values = TypeVar("Values", Summary, TrainingReport)


@dataclass(frozen=True, kw_only=True)
class Report(Generic[Values]):
    """A written report: what it says, the values behind that, and its files, the page last."""

    document: Document
    values: Values
    files: tuple[Path, ...]

    @property
    def index(self) -> Path:
        return self.files[-1]


def build(
    run_folder: Path,
    *,
    pricing: Pricing | None = None,
    against: Path | None = None,
    allow: Collection[str] = (),
) -> Report[Summary]:
    """Write the report of a benchmark in results/<run-id>.

    `against` is the folder of another run, to compare with in a figure, also if the conditions `allow` differ.

    Raises ReportError, with nothing written, if run.json or the price is invalid or the runs cannot be compared;
    ReportWriteError if the report's folder cannot be written.
    """
    run = load(run_folder)
    try:
        summary = summarize(run, pricing)
        charts = _charts_with_comparison(run, None if against is None else load(against), allow)
    except (PriceError, CompareError) as error:
        raise ReportError.from_error(error) from error
    drawings = [(chart, chart.gather(summary, run)) for chart in charts]
    pictures = [
        draw_picture(chart.name, chart.title, drawing, is_folded=chart.is_folded)
        for chart, drawing in drawings
        if drawing is not None
    ]
    document = benchmark.make(summary, pictures, [chart for chart, drawing in drawings if drawing is None])
    files = _write(run_folder, document, data_files.of_benchmark(summary, run))
    return Report(document=document, values=summary, files=files)


def build_training(run_folder: Path) -> Report[TrainingReport]:
    """Write the report of a training. Raises ReportError; ReportWriteError if its folder cannot be written."""
    values = training_values.read(run_folder)
    document = training_document.make(values)
    return Report(document=document, values=values, files=_write(run_folder, document, data_files.of_training(values)))


def _charts_with_comparison(run: Run, other: Run | None, allow: Collection[str]) -> tuple[Chart, ...]:
    """Return all charts; with another run, the comparison's chart gets the comparison. Raises CompareError."""
    if other is None:
        return CHARTS
    compared = compare([other], [run], allow=allow)
    if compared.refused:
        before, after = other.record.run_id, run.record.run_id
        differences = "; ".join(difference.description for difference in compared.refused)
        names = ",".join(dict.fromkeys((*allow, *(difference.name for difference in compared.refused))))
        anyway = f"to compare anyway: `inv report --run={after} --against={before} --allow={names}`"
        remedy = compared.remedy if compared.incomplete_runs else anyway
        raise CompareError(f"run {after} is not comparable with {before}: {differences}", remedy=remedy)
    gather = partial(run_comparison.gather, comparison=compared)
    return tuple(replace(chart, gather=gather) if chart is run_comparison.RUN_COMPARISON else chart for chart in CHARTS)


def _write(run_folder: Path, document: Document, data: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write figures, data, Markdown and page, in this order, then remove obsolete figures of an earlier report."""
    contents = {f"{FIGURES_FOLDER}/{picture.name}.png": picture.png for picture in document.pictures}
    contents |= {f"{FIGURES_FOLDER}/{picture.name}.svg": picture.svg for picture in document.pictures}
    contents |= dict(data) | {
        "report.md": markdown.render(document).encode(),
        INDEX_FILE: page.render(document).encode(),
    }
    path = folder = make_report_folder(run_folder, FIGURES_FOLDER)
    try:
        for name, content in contents.items():
            path = folder / name
            write_atomic(path, content)
        for path in sorted((folder / FIGURES_FOLDER).iterdir()):
            if f"{FIGURES_FOLDER}/{path.name}" not in contents and path.suffix in (".png", ".svg"):
                path.unlink()
    except OSError as error:
        raise ReportWriteError(path, error) from error
    return tuple(folder / name for name in contents)
