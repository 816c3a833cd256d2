"""A run in the files of TensorBoard, MLflow and Weights & Biases.

TensorBoard's and W&B's files are written by their packages, which are optional. MLflow's store is written here: its own
writer needs seconds to import and gives random run ids, so that a new export would be another run.
"""

import contextlib
import fcntl
import hashlib
import importlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.records.atomic_files import write_atomic
from bench.records.status import TrialStatus
from reports import formatting
from reports.exports.log_model import LoggedRun

TENSORBOARD, MLFLOW, WANDB = "tensorboard", "mlflow", "wandb"  # the formats' folders below a report
_MAX_FLOAT32 = 3.4e38


def write_tensorboard(report_folder: Path, runs: Sequence[LoggedRun]) -> Path:
    """Update the event files below a report's folder: a folder with one file for each trial. Raises OSError.

    The same measurements always give the same bytes, and new steps only append, so an existing file is extended and
    TensorBoard can follow a run in progress. A truncated file is completed. If an earlier value changed (a restarted
    training repeats steps), a new file replaces the old one.
    """
    for run in runs:
        _update_file(report_folder / TENSORBOARD / run.name, int(run.start_time), _event_file(run))
    return report_folder / TENSORBOARD


def _update_file(folder: Path, start_time: int, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    existing = sorted(folder.glob("events.out.tfevents.*"))
    if existing:
        with existing[-1].open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # `inv report` and `inv tensorboard` may run at once
            current = file.read()
            if content.startswith(current):
                file.write(content[len(current) :])
                return
    file_number = int(existing[-1].suffix[1:]) + 1 if existing else 1
    write_atomic(folder / f"events.out.tfevents.{start_time:010d}.{file_number:06d}", content)
    for path in existing:
        path.unlink()


def _event_file(run: LoggedRun) -> bytes:
    """Encode a run as TensorBoard's records of `Event` messages."""
    events = importlib.import_module("tensorboard.compat.proto.event_pb2")  # an optional package
    buffer = io.BytesIO()
    writer = importlib.import_module("tensorboard.summary.writer.record_writer").RecordWriter(buffer)

    def add(time: float, step: int = 0, **content: Any) -> None:
        writer.write(events.Event(wall_time=time, step=step, **content).SerializeToString(deterministic=True))

    add(run.start_time, file_version="brain.Event:2")
    # Discards the values of an earlier file for these steps.
    add(run.start_time, session_log={"status": events.SessionLog.START})
    add(run.start_time, summary={"value": [_settings_summary(run)]})
    for point in run.points:
        values = [
            {"tag": f"{point.phase}/{name}", "simple_value": value}
            for name, value in point.values.items()
            if abs(value) <= _MAX_FLOAT32
        ]
        if values:
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


_RUNNING, _FINISHED, _FAILED, _KILLED = 1, 3, 4, 5  # MLflow's RunStatus
_STATUS_CODES = {None: _RUNNING, TrialStatus.SUCCEEDED.value: _FINISHED, TrialStatus.CANCELLED.value: _KILLED}


def write_mlflow(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Rewrite the file store below a report's folder; the old one stays until the new one is complete. Raises OSError.

    The layout is MLflow's: an experiment for the run, an MLflow run for each trial, with meta.yaml and a file for each
    parameter, metric and tag. A training's adapter is an artifact.
    """
    store, partial = report / MLFLOW, report / f".{MLFLOW}.part"
    shutil.rmtree(partial, ignore_errors=True)
    for run_id in dict.fromkeys(run.run_id for run in runs):
        _write_experiment(store, partial, run_id, [run for run in runs if run.run_id == run_id])
    partial.mkdir(parents=True, exist_ok=True)  # a run without collected results
    shutil.rmtree(store, ignore_errors=True)
    partial.rename(store)
    return store


def _write_experiment(store: Path, partial: Path, run_id: str, runs: Sequence[LoggedRun]) -> None:
    experiment_id = str(int(hashlib.sha256(run_id.encode()).hexdigest()[:14], 16))  # MLflow's ids are digits
    start_ms = _to_ms(min(run.start_time for run in runs))
    meta: dict[str, Any] = {
        "experiment_id": experiment_id,
        "name": run_id,
        "artifact_location": _uri(store / experiment_id),
    }
    meta |= {"creation_time": start_ms, "last_update_time": start_ms, "lifecycle_stage": "active"}
    _write_meta(partial / experiment_id, meta)
    for run in runs:
        name = hashlib.sha256(f"{run_id}/{run.name}".encode()).hexdigest()[:32]
        _write_mlflow_run(
            partial / experiment_id / name, _uri(store / experiment_id / name / "artifacts"), experiment_id, run
        )


def _write_mlflow_run(folder: Path, artifacts: str, experiment: str, run: LoggedRun) -> None:
    end_ms = None if run.end_time is None else _to_ms(run.end_time)
    meta: dict[str, Any] = {
        "run_id": folder.name,
        "run_uuid": folder.name,
        "run_name": run.name,
        "experiment_id": experiment,
    }
    meta |= {
        "artifact_uri": artifacts,
        "start_time": _to_ms(run.start_time),
        "end_time": end_ms,
        "lifecycle_stage": "active",
    }
    meta |= {"status": _STATUS_CODES.get(run.status, _FAILED), "user_id": "", "tags": [], "deleted_time": None}
    meta |= {"source_name": "", "source_type": 4, "source_version": "", "entry_point_name": ""}
    _write_meta(folder, meta)
    tags = {"mlflow.runName": run.name, "run_id": run.run_id, "configuration": run.configuration}
    tags |= {"worker": run.worker or "", "end": run.status or ""}
    _write_texts(folder / "tags", tags)
    _write_texts(folder / "params", {name: str(value) for name, value in run.settings.items()})
    _write_texts(folder / "metrics", _metric_lines(run))
    (folder / "artifacts" / "adapter").mkdir(parents=True)
    for name, path in run.files.items():
        _link_or_copy(path, folder / "artifacts" / "adapter" / name)


def _metric_lines(run: LoggedRun) -> dict[str, str]:
    """Return the lines of each metric's file: time in milliseconds, value, step."""
    lines: dict[str, list[str]] = {}
    for point in run.points:
        for name, value in point.values.items():
            lines.setdefault(f"{point.phase}/{name}", []).append(f"{_to_ms(point.time)} {value!r} {point.step}")
    last = run.points[-1].step if run.points else 0
    for name, value in run.results.items():
        lines[name] = [f"{_to_ms(run.end_time or run.start_time)} {value!r} {last}"]
    return {name: "\n".join(metric_lines) + "\n" for name, metric_lines in lines.items()}


def _write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, content in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def _write_meta(folder: Path, values: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "meta.yaml").write_text(yaml.safe_dump(dict(values), allow_unicode=True), encoding="utf-8")


def _link_or_copy(path: Path, target: Path) -> None:
    """Create a hard link if the file system allows it, else a copy."""
    with contextlib.suppress(OSError):
        os.link(path, target)
        return
    shutil.copyfile(path, target)


def _uri(path: Path) -> str:
    return path.absolute().as_uri()


def _to_ms(seconds: float) -> int:
    return round(seconds * 1000)


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
    steps: dict[int, dict[str, float]] = {}
    for point in run.points:  # log each step once, with the held-out losses after it
        values = {f"{point.phase}/{name}": value for name, value in point.values.items()}
        steps.setdefault(point.step, {}).update(values, _timestamp=point.time)
    for step, values in steps.items():
        wandb_run.log(values, step=step)
    wandb_run.summary.update(dict(run.results))
    wandb_run.finish(exit_code=0 if run.status in (None, TrialStatus.SUCCEEDED.value) else 1)


@contextlib.contextmanager
def _without_user_settings() -> Iterator[None]:
    """Unset the user's WANDB_ variables, which could send the runs to a server."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WANDB_")}
    try:
        yield
    finally:
        os.environ.update(removed)
