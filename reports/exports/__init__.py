"""Export of a run to TensorBoard and Weights & Biases, by name, below its report.

log_model: a run's trials or training in the common model of these tools: settings, curves, final values
trackers: files of TensorBoard and Weights & Biases, written by their packages
"""

from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from reports.exports import trackers
from reports.exports.log_model import LoggedRun, read_logged_runs
from reports.read.loaded_run import ReportError, ReportWriteError, make_report_folder

FORMATS: dict[str, Callable[[Path, Sequence[LoggedRun]], Path]] = {
    trackers.TENSORBOARD: trackers.write_tensorboard,
    trackers.WANDB: trackers.write_wandb,
}


def check_packages(formats: Iterable[str]) -> None:
    """Raise ReportError if a format's package, which has its name, is not installed."""
    missing = [name for name in formats if find_spec(name) is None]
    if missing:
        names = " ".join(missing)
        raise ReportError(f"{names} is not installed; its files need it", remedy=f"`pip install {names}`, then retry")


def export(run_folder: Path, formats: Sequence[str]) -> tuple[Path, ...]:
    """Write a run in these formats and return each one's folder.

    Raises ReportError; ReportWriteError if the files cannot be written.
    """
    if not formats:
        return ()
    runs, report_folder = read_logged_runs(run_folder), make_report_folder(run_folder)
    try:
        return tuple(FORMATS[name](report_folder, runs) for name in formats)
    except OSError as error:
        raise ReportWriteError(error.filename or report_folder, error) from error
