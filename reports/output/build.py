"""Build of a run's report: load the folder, summarize, draw, and write results/<run-id>/report/.

Every file is replaced atomically, index.html last, so that the page is older than its figures and numbers only briefly,
and an interrupted report leaves the previous page in place.
"""

import contextlib
import gc
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from bench.records.atomic_files import write_atomic
from reports.comparison.compare import CompareError, compare
from reports.figures import CHARTS, RUN_COMPARISON, run_comparison
from reports.figures.drawing.chart import Chart, Picture
from reports.figures.renderer import DrawError, FigurePool, RenderJob
from reports.output import csv_frames, html, markdown, tables
from reports.output.html import INDEX_FILE
from reports.read.load import load
from reports.read.run import ReportError, ReportWriteError, Run, make_report_folder
from reports.summary import text
from reports.summary.prices import PriceError, Pricing
from reports.summary.summarize import summarize
from reports.summary.summary import Summary

FIGURES_FOLDER = "figures"


@dataclass(frozen=True, kw_only=True)
class ReportSummary(Summary):
    """A summary with the files of its written report."""

    index: Path
    files: tuple[Path, ...]
    recommendation: str


@contextlib.contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector: millions of values without cycles made it take 1/14 of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_pause_garbage_collection()
def build(
    run_folder: Path,
    *,
    pricing: Pricing | None = None,
    against: Path | None = None,
    allow: Collection[str] = (),
    refresh_sec: int | None = None,
) -> ReportSummary:
    """Write the report of results/<run-id> and return its summary.

    `against` is the folder of another run, to compare with in a figure, also if the conditions `allow` differ.
    `refresh_sec` makes the page reload itself, for
    a run in progress.

    Raises ReportError, with nothing written, if run.json or the price is invalid, the runs cannot be compared or a
    figure cannot be drawn; ReportWriteError if the report's folder cannot be written.
    """
    with FigurePool() as pool:
        run = load(run_folder)
        try:
            summary = summarize(run, pricing)
            charts = _charts_with_comparison(run, None if against is None else load(against), allow)
            pictures, skipped = _draw_charts(pool, charts, summary, run)
        except (PriceError, CompareError, DrawError) as error:
            raise ReportError.from_error(error) from error
    figures = {
        f"{FIGURES_FOLDER}/{picture.name}.{kind}": content
        for picture in pictures
        for kind, content in (("png", picture.png), ("svg", picture.svg))
    }
    contents = figures | {
        "summary.json": tables.summary_json(summary, run),
        "summary.csv": tables.summary_csv(summary),
        "trials.csv": csv_frames.to_csv(csv_frames.with_run_id(run, csv_frames.with_settings(run))),
        "steps.csv": csv_frames.to_csv(csv_frames.with_run_id(run, run.steps)),
        "costs.csv": csv_frames.to_csv(csv_frames.costs(summary)),
        "measurements.csv": csv_frames.to_csv(csv_frames.with_run_id(run, run.measurements)),
        "report.md": markdown.render(summary, pictures, skipped).encode(),
        INDEX_FILE: html.render(summary, run, pictures, skipped, refresh_sec=refresh_sec).encode(),
    }
    folder = make_report_folder(run_folder, FIGURES_FOLDER)
    files = _write_files(folder, contents)
    return ReportSummary(
        **{field.name: getattr(summary, field.name) for field in fields(summary)},
        index=folder / INDEX_FILE,
        files=files,
        recommendation=text.recommendation_text(summary),
    )


def _charts_with_comparison(run: Run, other: Run | None, allow: Collection[str]) -> tuple[Chart, ...]:
    """Return all charts; with another run, the comparison's chart gets the comparison. Raises CompareError."""
    if other is None:
        return CHARTS
    compared = compare([other, run], allow=allow)
    if compared.refused:
        before, after = compared.run_ids
        differences = "; ".join(difference.description for difference in compared.refused)
        names = ",".join(dict.fromkeys((*allow, *(difference.name for difference in compared.refused))))
        anyway = f"to compare anyway: `inv report --run={after} --against={before} --allow={names}`"
        remedy = compared.remedy if compared.incomplete_runs else anyway
        raise CompareError(f"run {after} is not comparable with {before}: {differences}", remedy=remedy)
    gather = partial(run_comparison.gather, comparison=compared)
    return tuple(replace(chart, gather=gather) if chart is RUN_COMPARISON else chart for chart in CHARTS)


def _draw_charts(
    pool: FigurePool, charts: Sequence[Chart], summary: Summary, run: Run
) -> tuple[tuple[Picture, ...], tuple[Chart, ...]]:
    """Draw every chart that has data; return the pictures and the charts without data."""
    drawings = [(chart, chart.gather(summary, run)) for chart in charts]
    jobs = [RenderJob(chart=chart, drawing=drawing) for chart, drawing in drawings if drawing is not None]
    pictures = [
        replace(picture, is_folded=job.chart.is_folded) for picture, job in zip(pool.draw(jobs), jobs, strict=True)
    ]
    return tuple(pictures), tuple(chart for chart, drawing in drawings if drawing is None)


def _write_files(folder: Path, contents: dict[str, bytes]) -> tuple[Path, ...]:
    """Write `contents` (relative name -> bytes) in order, then remove obsolete figures of an earlier report."""
    path = folder
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
