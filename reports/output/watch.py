"""Implementation of `inv report --follow`: rebuild the report as results arrive, until every planned trial has one.

Only the run's results are checked, not its ledger: a report is a function of the folder. While the run continues, the
page reloads itself every few seconds; each version replaces the previous one atomically, and the last does not reload.

Lost trials leave no result until `inv collect` writes one; until then, watching ends after a timeout without changes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import REPORT_FOLDER, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.run import PlannedTrial, RunRecord
from reports.output.html import INDEX_FILE, without_refresh
from reports.read.run import ReportError

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
