"""A run in the files of TensorBoard and Weights & Biases, written by their packages, which are optional.

TensorBoard's records are written by its `RecordWriter`, and not by its `EventFileWriter`: that one starts a new file at
each export, with this machine's name and the time of the export in it.
"""

import contextlib
import hashlib
import importlib
import io
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.records.atomic_files import write_atomic
from bench.records.status import TrialStatus
from reports import formatting
from reports.exports.log_model import LoggedRun

TENSORBOARD, WANDB = "tensorboard", "wandb"  # the formats' folders below a report


def write_tensorboard(report_folder: Path, runs: Sequence[LoggedRun]) -> Path:
    """Write the event files below a report's folder: a folder with one file for each trial. Raises OSError."""
    for run in runs:
        folder = report_folder / TENSORBOARD / run.name
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / f"events.out.tfevents.{int(run.start_time):010d}", _event_file(run))
    return report_folder / TENSORBOARD


def _event_file(run: LoggedRun) -> bytes:
    """Encode a run as TensorBoard's records of `Event` messages."""
    events = importlib.import_module("tensorboard.compat.proto.event_pb2")  # an optional package
    buffer = io.BytesIO()
    writer = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter(buffer)

    def add(time: float, step: int = 0, **content: Any) -> None:
        writer.write(events.Event(wall_time=time, step=step, **content).SerializeToString(deterministic=True))

    add(run.start_time, file_version="brain.Event:2")
    add(run.start_time, summary={"value": [_settings_summary(run)]})
    for point in run.points:
        values = [{"tag": name, "simple_value": value} for name, value in point.values.items()]
        add(point.time, point.step, summary={"value": values})
    return buffer.getvalue()


def _settings_summary(run: LoggedRun) -> dict[str, Any]:
    """Return the settings as a `Summary.Value`: a table for the text tab."""
    rows = [("run", run.run_id), ("configuration", run.configuration), ("worker", run.worker or "-")]
    rows += [(name, str(value)) for name, value in run.settings.items()]
    table = "\n".join(
        ["| setting | value |", "|---|---|", *(f"| {name} | {formatting.markdown(to)} |" for name, to in rows)]
    )
    tensor = {"dtype": "DT_STRING", "tensor_shape": {}, "string_val": [table.encode()]}
    return {"tag": "settings", "tensor": tensor, "metadata": {"plugin_data": {"plugin_name": "text"}}}


PROJECT = "qlora-fleet"
_DISABLED_SETTINGS = {
    **dict.fromkeys(("disable_code", "disable_git"), True),
    **dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info"), True),
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
}


def write_wandb(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Rewrite the offline runs below a report's folder; the old ones stay until all are complete. Raises OSError.

    Nothing is sent; `wandb sync` does that later. Facts about this machine that wandb would add (processor, packages,
    system metrics) are disabled, since nothing was measured here.
    """
    wandb = importlib.import_module("wandb")  # an optional package
    target, partial = report / WANDB, report / f".{WANDB}.part"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / WANDB).mkdir(parents=True)
    with _without_user_settings():
        for run in runs:
            _write_wandb_run(wandb, partial, run)
        wandb.teardown()
    shutil.rmtree(target, ignore_errors=True)
    (partial / WANDB).rename(target)
    shutil.rmtree(partial)
    return target


def _write_wandb_run(wandb: Any, folder: Path, run: LoggedRun) -> None:
    known_fields = wandb.Settings.model_fields
    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        root_dir=str(folder),
        **{name: value for name, value in _DISABLED_SETTINGS.items() if name in known_fields},
    )
    name = hashlib.sha256(f"{run.run_id}/{run.name}".encode()).hexdigest()[:16]
    wandb_run = wandb.init(
        project=PROJECT, id=name, name=f"{run.run_id}/{run.name}", group=run.run_id, job_type=run.configuration[:64],
        config={"run_id": run.run_id, "worker": run.worker, "end": run.status, **run.settings}, settings=settings,
    )  # fmt: skip
    for point in run.points:
        wandb_run.log({**point.values, "_timestamp": point.time}, step=point.step)
    wandb_run.summary.update(dict(run.results))
    wandb_run.finish(exit_code=0 if run.status == TrialStatus.SUCCEEDED.value else 1)


@contextlib.contextmanager
def _without_user_settings() -> Iterator[None]:
    """Unset the user's WANDB_ variables, which could send the runs to a server."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WANDB_")}
    try:
        yield
    finally:
        os.environ.update(removed)
