"""Offline runs of Weights & Biases, one for each trial, written with the wandb package.

Nothing is sent; `wandb sync` does that later. Facts about this machine that wandb would add (processor, packages,
system metrics) are disabled, since nothing was measured here.
"""

import contextlib
import hashlib
import importlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.records.status import TrialStatus
from reports.exports.log_model import LoggedRun

FOLDER, PROJECT = "wandb", "qlora-fleet"
_DISABLED_SETTINGS = {
    **dict.fromkeys(("disable_code", "disable_git"), True),
    **dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info"), True),
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
}


def write(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Rewrite the runs below a report's folder; the old ones stay until all are complete. Raises OSError."""
    wandb = importlib.import_module("wandb")  # an optional package
    target, partial = report / FOLDER, report / f".{FOLDER}.part"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / FOLDER).mkdir(parents=True)
    with _without_user_settings():
        for run in runs:
            _write_run(wandb, partial, run)
        wandb.teardown()
    shutil.rmtree(target, ignore_errors=True)
    (partial / FOLDER).rename(target)
    shutil.rmtree(partial)
    return target


def _write_run(wandb: Any, folder: Path, run: LoggedRun) -> None:
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
