"""The runs on this machine: finds one by name, makes its folder, points `latest` at the newest."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.run import RunRecord
from tasks.clients.workers import refuse_other_fleet
from tasks.errors import UsageError, translate_errors
from tasks.settings.load import Settings

LATEST = "latest"
TRAIN = "train"  # the suite of a run that is a training
_RUNS_TO_LEARN_FROM = 20


def find_run(results_folder: Path, run: str | None) -> Path:
    """The folder of the run with this id, or of the newest (`latest`). Raises UsageError, naming the runs there are."""
    name = run or LATEST
    folder = results_folder / name
    if name != LATEST and Path(name).name != name:
        raise UsageError(f"run {name!r}: expected a run's id, not a path; {_known(results_folder)}")
    if not (folder / RUN_FILE).is_file():
        is_gone = folder.is_symlink() or any(results_folder.glob(f"*/{RUN_FILE}"))  # or copied without the link
        newest = "the newest run is gone; name another one" if is_gone else "there is no run yet"
        what = newest if name == LATEST else f"run {name!r} is not there"
        raise UsageError(f"{results_folder}: {what}; {_known(results_folder)}")
    return folder.resolve()


def open_run(settings: Settings, name: str | None) -> tuple[RunRecord, Path]:
    """The plan and the folder of the run with this id, or of the newest.

    Raises UsageError where it is not there, cannot be trusted, or was started over another fleet than the settings'.
    """
    folder = find_run(settings.results_folder, name)
    with translate_errors(UsageError, ResultError, after="; choose another run with --run"):
        run = RunRecord.read(folder / RUN_FILE)
    refuse_other_fleet(settings, run)
    return run, folder


def is_training(folder: Path) -> bool:
    """Whether a run's folder is that of a training; False for one that cannot be read: its reader says why."""
    try:
        return RunRecord.read(folder / RUN_FILE).suite == TRAIN
    except ResultError:
        return False


def newest_training(results_folder: Path) -> str | None:
    """The newest training's id; None where there is none, and then the newest run is spoken of."""
    for path in sorted(results_folder.glob(f"*-{TRAIN}*/{RUN_FILE}"), reverse=True):
        try:
            if RunRecord.read(path).suite == TRAIN:
                return path.parent.name
        except ResultError:
            continue
    return None


def newest_results(results_folder: Path) -> Iterator[list[TrialResult]]:
    """The results of each of the newest runs, newest first. What cannot be read is left out: the report names it."""
    runs = [one for one in results_folder.glob(f"*/{TRIALS_FOLDER}") if not one.parent.is_symlink()]  # `latest` is one
    for folder in sorted(runs, reverse=True)[:_RUNS_TO_LEARN_FROM]:
        found = []
        for path in sorted(folder.glob(f"*/{RESULT_FILE}")):
            with contextlib.suppress(ResultError):
                found.append(TrialResult.read(path))
        yield found


def resume_command(run_id: str) -> str:
    """The command that goes on with a run; its id names its suite."""
    return f"inv {TRAIN if run_id.split('-')[2:3] == [TRAIN] else 'bench'} --resume={run_id}"


def make_folder(results_folder: Path, run_id: str) -> tuple[str, Path]:
    """A new run's folder; a second run within one second gets a number. Raises OSError."""
    for number in range(1, 1000):
        name = run_id if number == 1 else f"{run_id}-{number}"
        try:
            (results_folder / name).mkdir()
        except FileExistsError:
            continue
        return name, results_folder / name
    raise FileExistsError(f"{results_folder / run_id} exists a thousand times")


def point_latest_at(folder: Path) -> None:
    """Make `latest` name this run, in one step. Raises OSError."""
    link = folder.parent / f".{LATEST}.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.parent / LATEST)


def _known(results_folder: Path) -> str:
    names = sorted((path.parent.name for path in results_folder.glob(f"*/{RUN_FILE}")), reverse=True)
    names = [name for name in names if name != LATEST]
    if not names:
        return "type `inv bench --quick` to make one"
    more = f" and {len(names) - 5} older" if len(names) > 5 else ""
    return f"there are {', '.join(names[:5])}{more}"
