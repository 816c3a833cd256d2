"""A loaded run: its configurations, verified results, unusable files, and two data frames.

Frame `trials`, one row per accepted result:

| column | meaning |
|---|---|
| trial_id, configuration, kind, worker | the trial, its configuration's label, its kind of workload, its worker |
| status, reason, attempt, written_by, started_at | fields of `bench.records.result.TrialResult` |
| wall_time_sec, load_time_sec | seconds |
| n_steps, n_measurements | numbers of measured steps and of other measurements |
| step_time_sec | median over its measured steps, seconds |
| samples_per_sec, tokens_per_sec, useful_tokens_per_sec | per worker |
| padding_percent | share of token positions spent on padding |
| first_loss, last_loss | loss of the first and last measured step |
| peak_vram_bytes, peak_rss_bytes | bytes; VRAM missing without a GPU |

Frame `steps`, one row per optimizer step of an accepted result: trial_id, configuration, worker, status, phase
("warmup" or "measure"), step (from 1, counted over both phases), step_time_sec (seconds), loss, samples, tokens,
useful_tokens (per step and worker).
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.records.paths import REPORT_FOLDER
from bench.records.quality import QualityRecord
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import Failure
from bench.records.workloads import Workload


class ReportError(Failure, ValueError):
    """Raised if no report can be made; the message names the file or folder."""


class ReportWriteError(ReportError):
    """Raised if a file of the report cannot be written: full disk, or another owner. A retry may succeed."""

    def __init__(self, path: object, error: OSError) -> None:
        super().__init__(
            f"{path}: cannot be written: {error.strerror}; check owner, permissions and free space, then retry"
        )


def make_report_folder(run_folder: Path, *subfolders: str) -> Path:
    """Create the folder of a run's report and its subfolders. Raises ReportWriteError.

    Raises ReportError for a symbolic link: another user may control its target, and a report removes old figures.
    """
    folder = run_folder / REPORT_FOLDER
    for path in (folder, *(folder / name for name in subfolders)):
        if path.is_symlink():
            raise ReportError(f"{path}: it is a symbolic link", remedy="remove it, then retry")
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise ReportWriteError(path, error) from error
    return folder


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file that was not averaged in (path relative to the run's folder), and why."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A planned trial without a usable result."""

    trial_id: str
    configuration: str
    worker: str
    reason: str

    @property
    def cause(self) -> str:
        return self.reason


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A configuration and its planned trials. `label` is unique within its run."""

    label: str
    planned: tuple[PlannedTrial, ...]

    @property
    def workload(self) -> Workload:
        return self.planned[0].trial.workload


@dataclass(frozen=True, kw_only=True)
class Run:
    """A loaded run. `configurations` and `results` keep the plan's order.

    `quality` has the held-out losses of configurations, if they were compared.
    """

    folder: Path
    record: RunRecord
    configurations: tuple[Configuration, ...]
    results: tuple[TrialResult, ...]
    label_of: dict[str, str]
    rejected: tuple[Rejected, ...]
    missing: tuple[Missing, ...]
    quality: QualityRecord | None = None

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """The frame `trials`."""
        rows = []
        for result in self.results:
            row: dict[str, Any] = {
                "trial_id": result.trial_id,
                "configuration": self.label_of[result.trial_id],
                "kind": result.trial.kind,
                "status": result.status.value,
                "n_steps": len(result.steps.step_time_sec),
                "n_measurements": len(result.measurements),
            } | {name: getattr(result, name) for name in _RESULT_FIELDS}
            if (metrics := result.metrics) is not None:
                row["step_time_sec"] = metrics.step_time_sec.median
                row |= {name: getattr(metrics, name) for name in ("load_time_sec", *_METRICS, *_PEAKS)}
            rows.append(row)
        return pd.DataFrame(rows, columns=list(_TRIAL_COLUMNS)).astype(_TRIAL_COLUMNS)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """The frame `steps`, with a row for each step of each trial."""
        columns: dict[str, list[Any]] = {name: [] for name in _STEP_COLUMNS}
        for result in self.results:
            done = len(result.warmup.step_time_sec)
            for phase, steps, before in (("warmup", result.warmup, 0), ("measure", result.steps, done)):
                count = len(steps.step_time_sec)
                columns["trial_id"] += [result.trial_id] * count
                columns["configuration"] += [self.label_of[result.trial_id]] * count
                columns["worker"] += [result.worker] * count
                columns["status"] += [result.status.value] * count
                columns["phase"] += [phase] * count
                columns["step"] += range(before + 1, before + count + 1)
                for name in ("step_time_sec", "loss", "samples", "tokens", "useful_tokens"):
                    columns[name] += getattr(steps, name)
        return pd.DataFrame(columns).astype(_STEP_COLUMNS)


_METRICS = ("samples_per_sec", "tokens_per_sec", "useful_tokens_per_sec", "padding_percent", "first_loss", "last_loss")
_PEAKS = ("peak_vram_bytes", "peak_rss_bytes")
_RESULT_FIELDS = ("worker", "reason", "attempt", "written_by", "started_at", "wall_time_sec")
_TRIAL_COLUMNS = {
    **dict.fromkeys(("trial_id", "configuration", "kind", "worker", "status", "reason"), "str"),
    "attempt": "int64",
    **dict.fromkeys(("written_by", "started_at"), "str"),
    **dict.fromkeys(("wall_time_sec", "load_time_sec"), "float64"),
    **dict.fromkeys(("n_steps", "n_measurements"), "int64"),
    **dict.fromkeys(("step_time_sec", *_METRICS), "float64"),
    **dict.fromkeys(_PEAKS, "Int64"),
}
_STEP_COLUMNS = {
    **dict.fromkeys(("trial_id", "configuration", "worker", "status", "phase"), "str"),
    "step": "int64",
    **dict.fromkeys(("step_time_sec", "loss", "samples"), "float64"),
    **dict.fromkeys(("tokens", "useful_tokens"), "int64"),
}
