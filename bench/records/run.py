"""Plan of a run (run.json), progress of a trial (progress.json), and the job of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.checksummed import Checksummed, ResultError, read_checksummed, write_checksummed
from bench.records.paths import JOB_END_FILE, RUN_FILE
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.trial import Trial
from bench.records.validation import TrialError

REPEATS = 2  # so many processes of a trial on one worker tell a difference from a drift


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One trial of a run's plan, for one worker; one over several pods is for the first of them.

    `trial_id` is the name of its folder. Raises TrialError for an invalid folder name.
    """

    trial_id: str
    trial: Trial
    worker: str

    def __post_init__(self) -> None:
        name = self.trial_id
        if not (name.isprintable() and 0 < len(name.encode()) <= 255 and "/" not in name) or name in (".", ".."):
            raise TrialError(f"trial_id: expected a folder's name, found {name[:80]!r}")


@dataclass(frozen=True, kw_only=True)
class RunRecord(Checksummed):
    """Plan of a run, written before anything starts. `settings` contains no secrets.

    `is_on_one_machine`: the workers share the operator's machine.
    """

    FILE, KIND = RUN_FILE, "run"

    run_id: str
    created_at: str
    suite: str
    profile: str
    fleet_kind: str
    is_on_one_machine: bool
    workers: list[str]
    planned: list[PlannedTrial]
    settings: dict[str, Any]
    provenance: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a running trial (progress.json), for display only.

    `phase` is one of a result's `phases`, or check (of the inputs, before all others) or write; `step` of `steps`
    optimizer steps are finished, including warm-up (measurements if there are no steps); `elapsed_sec` counts from the
    start of the process.

    The last five belong to a fine-tuning: held-out loss per target token, tokens per second over all ranks without
    padding, the step of the newest checkpoint, the number of restarts, and the last score as text.
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
    score: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingJobSpec:
    """Training that runs without the operator's machine, in pods or on one host; it is read from JOB_SPEC_VARIABLE.

    `shared` is the folder of all runs, on the volume that the pods share or on the host. A run may be submitted again:
    `turn` counts from 1, and attempts up to number `after` belong to earlier turns. Ranks in several pods connect to
    `port` of the first one and authenticate with `token`; otherwise all ranks are on one host. `keeps_pod`: the folder
    is lost with its pod, which therefore waits until it was collected.
    """

    run_id: str
    planned: PlannedTrial
    shared: str
    turn: int
    after: int
    max_restarts: int
    port: int | None = None
    token: str = ""
    keeps_pod: bool = False


@dataclass(frozen=True, kw_only=True)
class TrainingJobEnd:
    """Final status of a training, in the run's folder. Written last, by its host or the first of its pods."""

    attempt: int
    end: TrialStatus
    reason: str | None
    reason_code: ReasonCode | None = None
    remedy: str | None = None

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.end, self.reason_code, self.reason, self.remedy)

    def write(self, folder: Path, turn: int) -> Path:
        """Write the record. Raises OSError."""
        return write_checksummed(folder / JOB_END_FILE.format(turn=turn), "job end", self)

    @classmethod
    def read_or_none(cls, folder: Path, turn: int) -> TrainingJobEnd | None:
        """Read the record; None if it is missing or invalid."""
        try:
            return read_checksummed(cls, folder / JOB_END_FILE.format(turn=turn), "job end")
        except ResultError:
            return None
