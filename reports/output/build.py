"""Build of a run's report: load the folder, summarize, draw, and write results/<run-id>/report/.

Every file is replaced atomically, index.html last, so that the page is older than its figures and numbers only briefly,
and an interrupted report leaves the previous page in place.

`watch` rebuilds the report while the run continues. It checks only the results, not the ledger: a report is a function
of the folder. Lost trials leave no result until `inv collect` writes one; until then, watching ends after a timeout.
"""

import contextlib
import gc
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import REPORT_FOLDER, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.run import PlannedTrial, RunRecord
from reports import formatting
from reports.comparison.compare import CompareError, compare
from reports.figures import CHARTS, run_comparison
from reports.figures.drawing.layout import Chart, Picture
from reports.figures.renderer import DrawError, FigurePool, RenderJob
from reports.output import html, markdown, tables
from reports.output.html import INDEX_FILE, without_refresh
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
        "trials.csv": tables.to_csv(tables.with_run_id(run, tables.with_settings(run))),
        "steps.csv": tables.to_csv(tables.with_run_id(run, run.steps)),
        "costs.csv": tables.to_csv(tables.costs(summary)),
        "measurements.csv": tables.to_csv(tables.with_run_id(run, run.measurements)),
        "report.md": markdown.render(summary, pictures, skipped).encode(),
        INDEX_FILE: formatting.escape_text(
            html.render(summary, run, pictures, skipped, refresh_sec=refresh_sec)
        ).encode(),
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


INTERVAL_SEC = 5
# Time in addition to the longest trial's deadline: to start it, fetch its result, and for a slow machine.
GRACE_SEC = 300.0

BuiltReport = TypeVar("BuiltReport")  # the result of `build`


class StalledRun(ReportError):
    """Raised if nothing changed for so long that the missing results are not expected any more."""


@dataclass(frozen=True, kw_only=True)
class WatchProgress:
    """Progress of a run. `results` has each result's trial, size and modification time in ns, to detect changes."""

    planned: int
    ended: int
    results: frozenset[tuple[str, int, int]]

    @property
    def is_over(self) -> bool:
        return self.ended >= self.planned


def read_progress(run_folder: Path) -> WatchProgress:
    """Read which planned trials have a result. Raises ReportError if run.json is invalid."""
    planned = {plan.trial_id for plan in _planned_trials(run_folder)}
    results = set()
    for trial_id in planned:
        try:
            status = (run_folder / TRIALS_FOLDER / trial_id / RESULT_FILE).stat()
        except OSError:  # no result yet
            continue
        results.add((trial_id, status.st_size, status.st_mtime_ns))
    return WatchProgress(planned=len(planned), ended=len(results), results=frozenset(results))


def stall_timeout_sec(run_folder: Path) -> float:
    """Return the maximum time without a change: the longest trial's deadline plus GRACE_SEC. Raises ReportError."""
    return max((plan.trial.deadline_sec for plan in _planned_trials(run_folder)), default=0.0) + GRACE_SEC


def _planned_trials(run_folder: Path) -> list[PlannedTrial]:
    try:
        return RunRecord.read(run_folder / RUN_FILE).planned
    except ResultError as error:
        raise ReportError.from_error(error) from error


def watch(
    run_folder: Path,
    build: Callable[[int | None], BuiltReport],
    on_update: Callable[[WatchProgress], None],
    *,
    interval_sec: int = INTERVAL_SEC,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> BuiltReport:
    """Rebuild whenever results have changed; return the last report once every planned trial has a result.

    `build` takes the seconds after which the page reloads itself, or None; `on_update` is called after each build.
    Raises ReportError, and StalledRun after `stall_timeout_sec` without a change. In any case the page stops reloading.
    """
    timeout_sec = stall_timeout_sec(run_folder)
    previous: WatchProgress | None = None
    changed_at = clock()
    try:
        while True:
            progress = read_progress(run_folder)
            if previous is None or progress.results != previous.results:
                report = build(None if progress.is_over else interval_sec)
                on_update(progress)
                previous, changed_at = progress, clock()
            if progress.is_over:
                return report
            if clock() - changed_at > timeout_sec:
                missing = f"{progress.planned - progress.ended} of {progress.planned} trials"
                raise StalledRun(f"{missing} have no result, and nothing changed for {timeout_sec:.0f} s")
            sleep(interval_sec)
    finally:
        _stop_refresh(run_folder / REPORT_FOLDER / INDEX_FILE)


def _stop_refresh(page: Path) -> None:
    """Remove the automatic reload from a page that is not rebuilt any more."""
    try:
        text = page.read_text(encoding="utf-8")
        if (without := without_refresh(text)) != text:
            write_atomic(page, without.encode())
    except OSError:  # missing or not writable: the build has reported it
        return
