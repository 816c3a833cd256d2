"""MLflow file store, written without the mlflow package: an experiment for the run, an MLflow run for each trial.

The layout is MLflow's (a folder for each run, with meta.yaml and a file for each parameter, metric and tag). A curve is
a metric with its steps. A training's adapter is an artifact.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.records.status import TrialStatus
from reports.exports.log_model import LoggedRun

FOLDER = "mlflow"
_RUNNING, _FINISHED, _FAILED, _KILLED = 1, 3, 4, 5  # MLflow's RunStatus
_STATUS_CODES = {None: _RUNNING, TrialStatus.SUCCEEDED.value: _FINISHED, TrialStatus.CANCELLED.value: _KILLED}


def write(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Rewrite the store below a report's folder; the old one stays until the new one is complete. Raises OSError."""
    store, partial = report / FOLDER, report / f".{FOLDER}.part"
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
        _write_run(partial / experiment_id / name, _uri(store / experiment_id / name / "artifacts"), experiment_id, run)


def _write_run(folder: Path, artifacts: str, experiment: str, run: LoggedRun) -> None:
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
