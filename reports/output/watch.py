"""`inv report --follow`: the report renewed as results arrive, until every planned trial has one.

Looks at the run's results alone, not at its ledger: a report is a function of the folder. While the run goes on, the
page loads itself again every few seconds; each version replaces the one before whole, and the last does not renew.

Not covered: trials that were lost and left no result. `inv collect` writes their ends; until it does, watching ends
after a time without any change.
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
# Beyond the longest trial's own deadline: starting it, bringing its result, and a slow machine.
GRACE_SEC = 300.0

BuiltReport = TypeVar("Made")  # what a build gives


class StalledRun(ReportError):
    """Nothing has changed for so long that whatever is missing will not come by itself."""


@dataclass(frozen=True, kw_only=True)
class WatchProgress:
    """How far a run is. `seen` tells two looks apart: each result's trial, size and time of writing in nanoseconds."""

    planned: int
    ended: int
    results: frozenset[tuple[str, int, int]]

    @property
    def is_over(self) -> bool:
        return self.ended >= self.planned


def read_progress(run_folder: Path) -> WatchProgress:
    """What results are there of those that are planned. Raises ReportError when run.json cannot be trusted."""
    planned = {plan.trial_id for plan in _planned_trials(run_folder)}
    results = set()
    for trial_id in planned:
        try:
            status = (run_folder / TRIALS_FOLDER / trial_id / RESULT_FILE).stat()
        except OSError:  # not there yet
            continue
        results.add((trial_id, status.st_size, status.st_mtime_ns))
    return WatchProgress(planned=len(planned), ended=len(results), results=frozenset(results))


def stall_timeout_sec(run_folder: Path) -> float:
    """How long nothing may change: the longest trial's deadline, and some. Raises ReportError."""
    return max((plan.trial.deadline_sec for plan in _planned_trials(run_folder)), default=0.0) + GRACE_SEC


def _planned_trials(run_folder: Path) -> list[PlannedTrial]:
    try:
        return RunRecord.read(run_folder / RUN_FILE).planned
    except ResultError as error:
        raise ReportError(str(error)) from None


def watch(
    run_folder: Path,
    build: Callable[[int | None], BuiltReport],
    on_update: Callable[[WatchProgress], None],
    *,
    interval_sec: int = INTERVAL_SEC,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> BuiltReport:
    """Build again whenever results have changed; the last report, once every planned trial has a result.

    `build` takes the seconds after which the page loads itself again, None for never; `say` hears of each version.
    Raises ReportError, and Unchanged after `patience_sec` without a change. However it ends, the page stops renewing.
    """
    patience = stall_timeout_sec(run_folder)
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
            if clock() - changed_at > patience:
                raise StalledRun(
                    f"{progress.planned - progress.ended} of {progress.planned} trials have no result, and nothing has changed for "
                    f"{patience:.0f} s"
                )
            sleep(interval_sec)
    finally:
        _stop_refresh(run_folder / REPORT_FOLDER / INDEX_FILE)


def _stop_refresh(page: Path) -> None:
    """Take the renewing out of a page that nobody renews any more."""
    try:
        text = page.read_text(encoding="utf-8")
        if (without := without_refresh(text)) != text:
            write_atomic(page, without.encode())
    except OSError:  # there is none, or it cannot be written: building it has reported that
        return
