"""Offline runs of Weights & Biases, one for each trial, written by its own package where that is installed.

Nothing leaves this machine: `wandb sync` sends them later. What its package would add of this machine (processor,
packages, system metrics) is left out, since nothing was measured here.
"""

import contextlib
import hashlib
import importlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.records.result import TrialStatus
from reports.exports.log_model import Logged

FOLDER, PROJECT = "wandb", "qlora-fleet"
_WITHOUT = {
    **dict.fromkeys(("disable_code", "disable_git"), True),
    **dict.fromkeys(("x_disable_meta", "x_disable_stats", "x_disable_machine_info"), True),
    **dict.fromkeys(("save_code", "x_save_requirements"), False),
}


def write(report: Path, runs: Sequence[Logged]) -> Path:
    """Write the runs anew below a report's folder; the old ones stay until all are whole. Raises OSError."""
    wandb = importlib.import_module("wandb")  # installed by those alone who use it
    whole, part = report / FOLDER, report / f".{FOLDER}.part"
    shutil.rmtree(part, ignore_errors=True)
    (part / FOLDER).mkdir(parents=True)
    with _apart():
        for run in runs:
            _run(wandb, part, run)
        wandb.teardown()
    shutil.rmtree(whole, ignore_errors=True)
    (part / FOLDER).rename(whole)
    shutil.rmtree(part)
    return whole


def _run(wandb: Any, folder: Path, run: Logged) -> None:
    known = wandb.Settings.model_fields
    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        root_dir=str(folder),
        **{name: value for name, value in _WITHOUT.items() if name in known},
    )
    name = hashlib.sha256(f"{run.run_id}/{run.name}".encode()).hexdigest()[:16]
    kept = wandb.init(
        project=PROJECT, id=name, name=f"{run.run_id}/{run.name}", group=run.run_id, job_type=run.configuration[:64],
        config={"run_id": run.run_id, "worker": run.worker, "end": run.end, **run.settings}, settings=settings,
    )  # fmt: skip
    steps: dict[int, dict[str, float]] = {}
    for point in run.points:  # a step is logged once, with what was held out after it
        values = {f"{point.phase}/{name}": value for name, value in point.values.items()}
        steps.setdefault(point.step, {}).update(values, _timestamp=point.at)
    for step, values in steps.items():
        kept.log(values, step=step)
    kept.summary.update(dict(run.results))
    kept.finish(exit_code=0 if run.end in (None, TrialStatus.SUCCEEDED.value) else 1)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Without the user's own WANDB_ variables, which might send the runs somewhere."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("WANDB_")}
    try:
        yield
    finally:
        os.environ.update(kept)
