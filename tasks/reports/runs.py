"""`inv runs`: list the runs in results/, newest first, with progress, bytes and recommendation or score."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records import schema
from bench.records.atomic_files import read_regular, regular_file_size
from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, REPORT_FOLDER, RUN_FILE, TRAINING_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.training import TrainingRecord
from bench.records.units import format_size
from remote.fleet.ledger import Ledger, LedgerError
from remote.hosts.host_protocol import HostError
from tasks.cli.command_result import CommandResult
from tasks.cli.lock import followed_run
from tasks.errors import escape_controls
from tasks.fleet.pending_results import uncollected_reason
from tasks.fleet.run_store import LATEST, TRAIN, count_statuses, format_statuses
from tasks.fleet.training_job import is_job_active
from tasks.settings.layers import load

SUMMARY_FILE = "summary.json"
_MAX_SUMMARY_BYTES = 100_000_000  # the summary of 10,000 trials takes 20 MB


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Overview of one run's folder, whose files have `byte_count` bytes. `ends` counts its trials by status.

    Fields that could not be read are None.

    `state` is "complete" (all trials have ended), "cancelled", "running", "abandoned" (nothing works on it), "in pods"
    (a training that no command follows, and that may have ended) or "unreadable: REASON"; `collected`, whether all
    files of an ended run are in its folder. `headline` is the recommendation of a report that is up to date; of a
    training, its data and its score or held-out loss.
    """

    run_id: str
    state: str
    collected: bool | None = None
    byte_count: int = 0
    created_at: str | None = None
    suite: str | None = None
    profile: str | None = None
    workers: int | None = None
    planned: int | None = None
    ends: dict[str, int] | None = None
    headline: str | None = None


def list_runs(context: Context) -> CommandResult:
    settings = load(context)
    runs = find_runs(settings.results_folder)
    return CommandResult(
        data={"runs": [asdict(run) for run in runs]}, show=lambda: _print_runs(settings.results_folder, runs)
    )


def _print_runs(results_folder: Path, runs: Sequence[RunInfo]) -> None:
    if not runs:
        print(f"{results_folder}: no runs yet; type `inv bench --quick` to start one")
        return
    headings = ("run", "workers", "trials", "size", "state")  # a run's id ends with its suite
    rows = [headings, *(_format_row(run) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells, run in zip(rows, (None, *runs), strict=True):
        # A rich table would truncate ids on a narrow terminal. Text read from the folder stays on one line.
        print(escape_controls("  ".join(map(str.ljust, cells, widths)).rstrip()))
        if run is not None and run.headline is not None:
            print(f"  {escape_controls(run.headline)}")


def _format_row(run: RunInfo) -> tuple[str, ...]:
    workers = "-" if run.workers is None else str(run.workers)
    state = run.state
    if run.collected is False:
        state = "not collected" if state == "complete" else f"{state}, not collected"
    return run.run_id, workers, _format_trials(run), format_size(run.byte_count), state


def find_runs(results_folder: Path) -> list[RunInfo]:
    """Read every run's folder, newest first. Raises PermissionError if `results_folder` cannot be listed."""
    if results_folder.is_dir():
        next(results_folder.iterdir(), None)  # glob would find nothing
    folders = [path.parent for path in results_folder.glob(f"*/{RUN_FILE}") if path.parent.name != LATEST]
    # A folder and links to it are one run; its own name comes last and counts.
    by_folder = {folder.resolve(): folder for folder in sorted(folders, key=lambda folder: not folder.is_symlink())}
    followed = followed_run(results_folder)
    runs = [(folder, _read_run(folder, followed)) for folder in by_folder.values()]
    # A run that was deleted meanwhile is not a damaged one.
    return sorted(
        (run for folder, run in runs if folder.exists()),
        key=lambda run: (run.created_at or "", run.run_id),
        reverse=True,
    )


def _read_run(folder: Path, followed: str | None) -> RunInfo:
    size = _byte_count(folder)
    try:
        record = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        reason = str(error).removeprefix(f"{folder}/")
        return RunInfo(run_id=folder.name, state=f"unreadable: {reason}", byte_count=size)
    planned = len(record.planned)
    state, ends, is_collected = "", None, None
    try:
        regular_file_size(folder / LEDGER_FILE, follow=False)  # reading a pipe would block
        ends = count_statuses(Ledger(folder / LEDGER_FILE).entries.values())
    except (LedgerError, OSError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{folder / LEDGER_FILE}: ")
        state = f"unreadable: {LEDGER_FILE}: {reason}"
    if ends is not None and sum(ends.values()) >= planned:
        state = "cancelled" if TrialStatus.CANCELLED.value in ends else "complete"
        is_collected = uncollected_reason(folder, record) is None
    state = state or ("running" if folder.name == followed else _state_of_job(record))
    open_trials = planned - sum((ends or {}).values())
    return RunInfo(
        run_id=folder.name,
        state=state,
        collected=is_collected,
        byte_count=size,
        created_at=record.created_at,
        suite=record.suite,
        profile=record.profile,
        workers=len(record.workers),
        planned=planned,
        ends=ends,
        headline=_training(folder, record)
        if record.suite == TRAIN
        else _headline(folder / REPORT_FOLDER / SUMMARY_FILE, open_trials),
    )


def _state_of_job(run: RunRecord) -> str:
    """Return the state of a run that no command follows: a training's job goes on without one."""
    if run.suite == TRAIN and run.fleet_kind != "local":
        return "in pods"
    with contextlib.suppress(KeyError, TypeError, HostError):  # a benchmark, or a job whose folder is gone
        if is_job_active(run):
            return "running"
    return "abandoned"


def _training(folder: Path, run: RunRecord) -> str:
    """Return a training's data, and once it is collected the change of its score or held-out loss."""
    result = ""
    with contextlib.suppress(ResultError):
        record = TrainingRecord.read(folder / TRAINING_FILE)
        losses = [evaluation.loss for evaluation in record.evaluations]
        arrow = "\N{RIGHTWARDS ARROW}"
        if record.score is not None and record.score.measures:
            measure = record.score.measures[0]
            result = f": score {100 * measure.before:.0f} {arrow} {100 * measure.after:.0f} %"
        elif losses:
            result = f": held-out loss {losses[0]:.2f} {arrow} {losses[-1]:.2f}"
    training = run.planned[0].trial.training if run.planned else None
    return f"{', '.join(training.data.files) if training else 'no data'}{result}"


def _byte_count(folder: Path) -> int:
    """Sum the sizes of a folder's files. Links are not followed; what cannot be read counts as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                total += Path(parent, name).lstat().st_size
    return total


def _headline(summary: Path, open_trials: int) -> str | None:
    """Return the report's recommendation; None if more trials have ended than the report has."""
    try:
        document: Any = schema.parse(read_regular(summary, max_bytes=_MAX_SUMMARY_BYTES, follow=False))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    counts, recommendation = document.get("counts"), document.get("recommendation")
    missing = counts.get("missing") if isinstance(counts, dict) else None
    is_old = isinstance(missing, int) and missing > open_trials
    return recommendation if isinstance(recommendation, str) and not is_old else None


def _format_trials(run: RunInfo) -> str:
    if run.ends is None:
        return "-" if run.planned is None else f"{run.planned} planned"
    return format_statuses(run.ends, run.planned)
