"""A file store of MLflow, written without its packages: an experiment for the run, a run for each trial.

The layout is MLflow's own (a folder a run, meta.yaml, a file for each parameter, metric and tag). A curve is a metric
with its steps. A training's adapter is an artifact.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.records.result import TrialStatus
from reports.exports.log_model import Logged

FOLDER = "mlflow"
_RUNNING, _FINISHED, _FAILED, _KILLED = 1, 3, 4, 5  # MLflow's numbers
_STATUS = {None: _RUNNING, TrialStatus.SUCCEEDED.value: _FINISHED, TrialStatus.CANCELLED.value: _KILLED}


def write(report: Path, runs: Sequence[Logged]) -> Path:
    """Write the store anew below a report's folder; the old one stays until the new one is whole. Raises OSError."""
    store, part = report / FOLDER, report / f".{FOLDER}.part"
    shutil.rmtree(part, ignore_errors=True)
    for run_id in dict.fromkeys(run.run_id for run in runs):
        _experiment(store, part, run_id, [run for run in runs if run.run_id == run_id])
    part.mkdir(parents=True, exist_ok=True)  # a run of which nothing came home yet
    shutil.rmtree(store, ignore_errors=True)
    part.rename(store)
    return store


def _experiment(store: Path, part: Path, run_id: str, runs: Sequence[Logged]) -> None:
    number = str(int(hashlib.sha256(run_id.encode()).hexdigest()[:14], 16))  # as MLflow's: a number as text
    began = _ms(min(run.began for run in runs))
    meta: dict[str, Any] = {"experiment_id": number, "name": run_id, "artifact_location": _uri(store / number)}
    meta |= {"creation_time": began, "last_update_time": began, "lifecycle_stage": "active"}
    _meta(part / number, meta)
    for one in runs:
        name = hashlib.sha256(f"{run_id}/{one.name}".encode()).hexdigest()[:32]
        _run(part / number / name, _uri(store / number / name / "artifacts"), number, one)


def _run(folder: Path, artifacts: str, experiment: str, run: Logged) -> None:
    ended = None if run.ended is None else _ms(run.ended)
    meta: dict[str, Any] = {
        "run_id": folder.name,
        "run_uuid": folder.name,
        "run_name": run.name,
        "experiment_id": experiment,
    }
    meta |= {"artifact_uri": artifacts, "start_time": _ms(run.began), "end_time": ended, "lifecycle_stage": "active"}
    meta |= {"status": _STATUS.get(run.end, _FAILED), "user_id": "", "tags": [], "deleted_time": None}
    meta |= {"source_name": "", "source_type": 4, "source_version": "", "entry_point_name": ""}
    _meta(folder, meta)
    tags = {"mlflow.runName": run.name, "run_id": run.run_id, "configuration": run.configuration}
    tags |= {"worker": run.worker or "", "end": run.end or ""}
    _texts(folder / "tags", tags)
    _texts(folder / "params", {name: str(value) for name, value in run.settings.items()})
    _texts(folder / "metrics", _metrics(run))
    (folder / "artifacts" / "adapter").mkdir(parents=True)
    for name, path in run.files.items():
        _copy(path, folder / "artifacts" / "adapter" / name)


def _metrics(run: Logged) -> dict[str, str]:
    """A line for each value: time in milliseconds, value, step."""
    lines: dict[str, list[str]] = {}
    for point in run.points:
        for name, value in point.values.items():
            lines.setdefault(f"{point.phase}/{name}", []).append(f"{_ms(point.at)} {value!r} {point.step}")
    last = run.points[-1].step if run.points else 0
    for name, value in run.results.items():
        lines[name] = [f"{_ms(run.ended or run.began)} {value!r} {last}"]
    return {name: "\n".join(each) + "\n" for name, each in lines.items()}


def _texts(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, content in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")


def _meta(folder: Path, values: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "meta.yaml").write_text(yaml.safe_dump(dict(values), allow_unicode=True), encoding="utf-8")


def _copy(path: Path, to: Path) -> None:
    """A second name of the same file where the disk can do that, else a copy."""
    with contextlib.suppress(OSError):
        os.link(path, to)
        return
    shutil.copyfile(path, to)


def _uri(path: Path) -> str:
    return path.absolute().as_uri()


def _ms(at: float) -> int:
    return round(at * 1000)
