"""Build of a run's report: load the folder, draw, and write results/<run-id>/report/.

Every file is replaced atomically, index.html last, so that the page is older than its figures and numbers only briefly,
and an interrupted report leaves the previous page in place.

`watch` rebuilds the report while the run continues. It checks only the results, not the ledger: a report is a function
of the folder. Lost trials leave no result until `inv collect` writes one; until then, watching ends after a timeout.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import REPORT_FOLDER, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.run import PlannedTrial, RunRecord
from reports.comparison.compare import CompareError, compare
from reports.document import Document
from reports.figures import CHARTS, run_comparison
from reports.figures.drawing.layout import Chart, draw_picture
from reports.output import benchmark, data_files, markdown, page, training
from reports.output.page import INDEX_FILE
from reports.read.load import load
from reports.read.run import ReportError, ReportWriteError, Run, make_report_folder
from reports.summary.prices import PriceError, Pricing
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from reports.training import repeat
from reports.training import summary as training_values
from reports.training.summary import TrainingReport

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
    refresh_sec: int | None = None,
) -> Report[Summary]:
    """Write the report of a benchmark in results/<run-id>.

    `against` is the folder of another run, to compare with in a figure, also if the conditions `allow` differ.
    `refresh_sec` makes the page reload itself, for a run in progress.

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
    files = _write(run_folder, document, data_files.of_benchmark(summary, run), refresh_sec)
    return Report(document=document, values=summary, files=files)


def build_training(run_folder: Path) -> Report[TrainingReport]:
    """Write the report of a training. Raises ReportError; ReportWriteError if its folder cannot be written."""
    values = training_values.read(run_folder)
    document = training.make(values)
    contents = data_files.of_training(values) | repeat.files(values)
    return Report(document=document, values=values, files=_write(run_folder, document, contents))


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


def _write(
    run_folder: Path, document: Document, data: Mapping[str, bytes], refresh_sec: int | None = None
) -> tuple[Path, ...]:
    """Write figures, data, Markdown and page, in this order, then remove obsolete figures of an earlier report."""
    contents = {f"{FIGURES_FOLDER}/{picture.name}.png": picture.png for picture in document.pictures}
    contents |= {f"{FIGURES_FOLDER}/{picture.name}.svg": picture.svg for picture in document.pictures}
    contents |= dict(data) | {
        "report.md": markdown.render(document).encode(),
        INDEX_FILE: page.render(document, refresh_sec=refresh_sec).encode(),
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


def _stop_refresh(path: Path) -> None:
    """Remove the automatic reload from a page that is not rebuilt any more."""
    try:
        text = path.read_text(encoding="utf-8")
        if (without := page.without_refresh(text)) != text:
            write_atomic(path, without.encode())
    except OSError:  # missing or not writable: the build has reported it
        return
