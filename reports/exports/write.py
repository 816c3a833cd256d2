"""Export of a run's folder to other tools' formats, by name, below its report."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from reports.exports import mlflow, mlperf, offline_wandb, optimum, tensorboard
from reports.exports.log_model import LoggedRun, read_logged_runs
from reports.read.run import ReportError, ReportWriteError, make_report_folder

FORMATS: Mapping[str, Callable[[Path, Sequence[LoggedRun]], Path]] = {
    "tensorboard": tensorboard.write,
    "mlflow": mlflow.write,
    "wandb": offline_wandb.write,
    "optimum-benchmark": optimum.write,
    "mlperf": mlperf.write,
}


def usable_formats(formats: Sequence[str]) -> tuple[tuple[str, ...], ReportError | None]:
    """Return the formats whose packages are installed, and an error that names one whose package is missing."""
    usable = tuple(name for name in formats if name != offline_wandb.FOLDER or find_spec("wandb") is not None)
    if len(usable) == len(formats):
        return usable, None
    return usable, ReportError("--format wandb: wandb is not installed", remedy="run `pip install wandb`, then retry")


def export(run_folder: Path, formats: Sequence[str], partial_steps: Path | None = None) -> tuple[Path, ...]:
    """Write a run in these formats and return each one's folder. `partial_steps` as in `read_logged_runs`.

    Raises ReportError; ReportWriteError if the files cannot be written.
    """
    if not formats:
        return ()
    runs, report_folder = read_logged_runs(run_folder, partial_steps), make_report_folder(run_folder)
    try:
        return tuple(FORMATS[name](report_folder, runs) for name in formats)
    except OSError as error:
        raise ReportWriteError(error.filename or report_folder, error) from error
