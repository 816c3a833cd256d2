"""The run folders on this machine: find a run by name, create its folder, link the newest as `latest`."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, RESULT_FILE, RUN_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.training import TrainingRecord
from remote.fleet.ledger import Entry, Ledger, LedgerError
from tasks.cli.log import open_run_log
from tasks.clients.workers import require_same_fleet
from tasks.errors import RetryableError, UsageError, translate_errors
from tasks.settings.layers import Settings

LATEST = "latest"
TRAIN = "train"  # the suite of a run that is a training
_MAX_HISTORY_RUNS, _MAX_NAME_BYTES = 20, 255


def find_run(results_folder: Path, run: str | None) -> Path:
    """Return the folder of the run with this id, or of the newest (`latest`). Raises UsageError, which lists runs."""
    name = run or LATEST
    folder = results_folder / name
    if name == ".." or Path(name).name != name or len(os.fsencode(name)) > _MAX_NAME_BYTES:
        raise UsageError(f"run {name[:80]!r}: expected a run's id, not a path", remedy=_known_runs(results_folder))
    if name == LATEST:
        refuse_copied_latest(results_folder)
    if not (folder / RUN_FILE).is_file():
        # A folder that was copied without its links has runs, but no `latest`.
        is_gone = folder.is_symlink() or any(results_folder.glob(f"*/{RUN_FILE}"))
        no_newest = "the newest run is gone; name another one" if is_gone else "there is no run yet"
        problem = no_newest if name == LATEST else f"run {name!r} does not exist"
        raise UsageError(f"{results_folder}: {problem}", remedy=_known_runs(results_folder))
    return folder.resolve()


def open_run(settings: Settings, name: str | None) -> tuple[RunRecord, Path]:
    """Return the plan and the folder of the run with this id, or of the newest.

    Raises UsageError if it does not exist, is invalid, or was started over another fleet than the configured one.
    """
    folder = find_run(settings.results_folder, name)
    open_run_log(folder)
    with translate_errors(UsageError, ResultError, remedy="choose another run with --run"):
        run = RunRecord.read(folder / RUN_FILE)
    require_same_fleet(settings, run)
    return run, folder


def is_training(folder: Path) -> bool:
    """Check whether a run's folder holds a training; False if it cannot be read, which its reader reports."""
    try:
        return RunRecord.read(folder / RUN_FILE).suite == TRAIN
    except ResultError:
        return False


def newest_training(results_folder: Path) -> str | None:
    """Return the id of the newest training; None without one."""
    folders = sorted((path.parent for path in results_folder.glob(f"*-{TRAIN}*/{RUN_FILE}")), reverse=True)
    return next((folder.name for folder in folders if is_training(folder)), None)


def newest_results(results_folder: Path) -> Iterator[TrialResult]:
    """Yield the results of the newest runs, newest first, without unreadable ones (the report lists those)."""
    # `latest` is a symbolic link.
    trials_folders = [folder for folder in results_folder.glob(f"*/{TRIALS_FOLDER}") if not folder.parent.is_symlink()]
    for folder in sorted(trials_folders, reverse=True)[:_MAX_HISTORY_RUNS]:
        for path in sorted(folder.glob(f"*/{RESULT_FILE}")):
            with contextlib.suppress(ResultError):
                yield TrialResult.read(path)


def newest_trainings(results_folder: Path) -> Iterator[tuple[TrialResult, TrainingRecord]]:
    """Yield result and record of the newest collected trainings, newest first, without unreadable ones."""
    paths = [
        path
        for path in results_folder.glob(f"*-{TRAIN}*/{TRIALS_FOLDER}/*/{TRAINING_FILE}")
        if not path.parents[2].is_symlink()
    ]
    for path in sorted(paths, reverse=True)[:_MAX_HISTORY_RUNS]:
        with contextlib.suppress(ResultError):
            yield TrialResult.read(path.with_name(RESULT_FILE)), TrainingRecord.read(path)


def count_statuses(entries: Iterable[Entry]) -> dict[str, int]:
    """Count the trials that have ended by status, without those of count 0."""
    counts = Counter(entry.status for entry in entries if entry.status is not None)
    return {status.value: counts[status] for status in TrialStatus if counts[status]}


def format_statuses(counts: Mapping[str, int], planned: int | None) -> str:
    """Format how many of the planned trials succeeded, and the other statuses."""
    succeeded = TrialStatus.SUCCEEDED.value
    others = ", ".join(f"{count} {status}" for status, count in counts.items() if status != succeeded)
    return f"{counts.get(succeeded, 0)} of {planned} succeeded" + (f" ({others})" if others else "")


def resume_command(run_id: str) -> str:
    """Return the command that resumes a run, whose id names its suite."""
    return f"inv {'train' if run_id.split('-')[2:3] == [TRAIN] else 'bench'} --resume={run_id}"


def refuse_unended(folder: Path) -> None:
    """Raise RetryableError for a training that has not ended. The reader of its files reports an unreadable ledger."""
    with contextlib.suppress(LedgerError, OSError):
        if list(Ledger(folder / LEDGER_FILE).open_trials()):
            remedy = f"`{resume_command(folder.name)} collect report` goes on to its page"
            raise RetryableError(f"run {folder.name}: the training has not ended", remedy=remedy)


def make_folder(results_folder: Path, run_id: str) -> tuple[str, Path]:
    """Create a new run's folder; a second run within one second gets a number. Raises OSError."""
    for number in range(1, 1000):
        name = run_id if number == 1 else f"{run_id}-{number}"
        try:
            (results_folder / name).mkdir()
        except FileExistsError:
            continue
        return name, results_folder / name
    raise FileExistsError(f"{results_folder / run_id} exists a thousand times")


def refuse_copied_latest(results_folder: Path) -> None:
    """Raise UsageError if `latest` is a folder, which a copy that follows links (scp -r) leaves."""
    latest = results_folder / LATEST
    if latest.is_dir() and not latest.is_symlink():
        raise UsageError(f"{latest}: it is a copy of a run, not a link", remedy="remove it; `inv runs` lists the runs")


def point_latest_at(folder: Path) -> None:
    """Atomically link `latest` to this run. Raises OSError."""
    link = folder.parent / f".{LATEST}.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.parent / LATEST)


def _known_runs(results_folder: Path) -> str:
    names = sorted({path.parent.name for path in results_folder.glob(f"*/{RUN_FILE}")} - {LATEST}, reverse=True)
    if not names:
        return "run `inv bench --quick` to create one"
    more = f" and {len(names) - 5} older" if len(names) > 5 else ""
    return f"known runs: {', '.join(names[:5])}{more}"
