"""A run's plan (run.json), and where a running trial is (progress.json)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.checks import TrialError
from bench.records.layout import RUN_FILE
from bench.records.sealed import read_sealed, write_sealed
from bench.records.trial import Trial


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial of a run's plan. It runs on `worker` (replicate), or on any idle one where that is None (shard).

    `trial_id` is the name of its folder. Raises TrialError where it cannot be one.
    """

    trial_id: str
    trial: Trial
    worker: str | None = None

    def __post_init__(self) -> None:
        name = self.trial_id
        if not (name.isprintable() and 0 < len(name.encode()) <= 255 and "/" not in name) or name in (".", ".."):
            raise TrialError(f"trial_id: expected a folder's name, found {name[:80]!r}")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The plan of a run, written before anything starts. `settings` holds no secret."""

    run_id: str
    created_at: str
    suite: str
    profile: str
    spread: str
    fleet_kind: str
    workers: list[str]
    planned: list[PlannedTrial]
    settings: dict[str, Any]
    provenance: dict[str, Any]

    def write(self, folder: Path) -> Path:
        """Write run.json into `folder`, atomically. Raises OSError."""
        return write_sealed(folder / RUN_FILE, "run", self)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read and verify run.json at `path`. Raises ResultError."""
        return read_sealed(cls, path, "run")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a running trial is: progress.json, for people to watch; never a result.

    `phase` is one of a result's `phases`, or write; `step` of `steps` optimizer steps are done, warm-up included
    (measurements where there are no steps); `elapsed_sec` counts from the start of the process.

    The last four are a fine-tuning's: held-out loss per target token, tokens a second over all ranks without padding,
    the step of the newest checkpoint, and how often the training was started again.
    """

    phase: str
    step: int
    steps: int
    elapsed_sec: float
    samples_per_sec: float | None = None
    loss: float | None = None
    validation_loss: float | None = None
    useful_tokens_per_sec: float | None = None
    checkpoint_step: int | None = None
    restarts: int | None = None
