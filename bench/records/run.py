"""A run's plan (run.json), and where a running trial is (progress.json)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.checksummed import Checksummed, ResultError, read_sealed, write_sealed
from bench.records.paths import ORDER_END_FILE, RUN_FILE
from bench.records.result import TrialStatus
from bench.records.trial import Trial
from bench.records.validation import TrialError


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
class RunRecord(Checksummed):
    """The plan of a run, written before anything starts. `settings` holds no secret."""

    FILE, KIND = RUN_FILE, "run"

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


@dataclass(frozen=True, kw_only=True)
class Order:
    """A training for a Kubernetes Job, which trains with no operator behind it; its pods find it in ORDER_VARIABLE.

    `shared` is the folder of all runs on the volume that its pods share. A run may be ordered again: `turn` counts from
    1, and attempts up to number `after` are of earlier turns. At `port` of the first pod the ranks meet, who show
    `token`.
    """

    run_id: str
    planned: PlannedTrial
    shared: str
    turn: int
    after: int
    max_restarts: int
    port: int
    token: str


@dataclass(frozen=True, kw_only=True)
class OrderEnd:
    """How an order ended, in the run's folder on the shared volume. Written last, by the first pod."""

    attempt: int
    end: TrialStatus
    reason: str | None

    def write(self, folder: Path, turn: int) -> Path:
        """Raises OSError."""
        return write_sealed(folder / ORDER_END_FILE.format(turn=turn), "order", self)

    @classmethod
    def found(cls, folder: Path, turn: int) -> OrderEnd | None:
        """None where there is none that can be read."""
        try:
            return read_sealed(cls, folder / ORDER_END_FILE.format(turn=turn), "order")
        except ResultError:
            return None
