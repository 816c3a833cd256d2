"""The records of a results folder: one run.json, and one result.json for every planned trial.

Both are sealed: they carry a schema version and the sha256 of everything else in them, and are verified on reading, so
a truncated, bit-flipped or foreign file is refused by name and never averaged in. Writing is atomic: a temporary file
beside the target, fsync, rename, fsync of the folder; a reader sees the old file, the new file or none, never a part.

Standard library alone (Python 3.10 to 3.13): hosts, operator and report share this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from bench.records import Trial, TrialError, schema

SCHEMA_VERSION = 1
RESULT_FILE = "result.json"
PROGRESS_FILE = "progress.json"
RUN_FILE = "run.json"
SUMS_FILE = "SHA256SUMS"
EXIT_NOT_WRITTEN = 74  # a trial's process did its work but could not write its result (sysexits' EX_IOERR)


class ResultError(ValueError):
    """A record that cannot be trusted; the message names the file and what is wrong with it."""


class End(str, Enum):
    """How a trial ended. Every planned trial reaches exactly one."""

    SUCCEEDED = "SUCCEEDED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"
    CANCELLED = "CANCELLED"

    @property
    def is_resumable(self) -> bool:
        """True where the trial did not get to say what it is worth, so a resumed run tries it again."""
        return self in (End.PREEMPTED, End.LOST, End.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median with its spread (p10, p90) and its bootstrap 95 % interval (low, high), over n values."""

    median: float
    p10: float
    p90: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One entry per optimizer step, in order, in equally long lists; nothing is averaged away.

    `samples` is a whole number where samples are padded, and may be a fraction where they are packed.
    """

    step_time_sec: list[float] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    useful_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What the measured steps say. Rates are per device: mean amount per step over the median step time.

    `tokens_per_sec` counts every token position computed, `useful_tokens_per_sec` leaves padding out.
    `peak_vram_bytes` is None where there is no GPU; `peak_rss_bytes` is the process's own high-water mark.
    `load_time_sec` is the base weights' way from disk to the device, quantized; adapters and optimizer not included.
    """

    step_time_sec: Interval
    samples_per_sec: float
    tokens_per_sec: float
    useful_tokens_per_sec: float
    padding_percent: float
    first_loss: float | None
    last_loss: float | None
    peak_vram_bytes: int | None
    peak_rss_bytes: int
    load_time_sec: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured quantity that is not a training step's: a bandwidth, a load time, a decoding rate.

    `name` ends in its unit (`matmul_tflops`, `decode_tokens_per_sec`); `context` says what it was measured on
    (`{"dtype": "bf16", "size": 8192}`); `value` is None where it could not be had, and `note` then says why.
    `share_percent` is `value` against the chip's published figure, None where none is known.
    """

    name: str
    value: float | None
    interval: Interval | None = None
    share_percent: float | None = None
    context: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """One planned trial's end. `metrics` is None unless at least one training step was measured.

    `measurements` holds what the other kinds of trial measured, and what telemetry saw of any kind. `flags` are
    conditions that make the numbers doubtful, one line each: another process on the GPU, throttling, waits for a CPU.

    `written_by` is "bench" where the trial's own process wrote the record, "collect" where no process lived to write
    one (LOST, or killed) and the record says only what the ledger knows. `phases` maps import, data, load, warmup,
    measure, and what its kind of trial has besides (ceilings, exchange), to seconds. `fingerprint` is
    `bench.machine.fingerprint`'s allow-list.
    """

    trial_id: str
    trial: Trial
    status: End
    reason: str | None
    worker: str | None = None
    run_id: str | None = None
    attempt: int = 1
    written_by: str = "bench"
    started_at: str | None = None
    wall_time_sec: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    warmup: Steps = field(default_factory=Steps)
    steps: Steps = field(default_factory=Steps)
    metrics: Metrics | None = None
    measurements: list[Measurement] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    log_tail: list[str] = field(default_factory=list)

    def write(self, folder: Path) -> Path:
        """Write result.json into `folder`, atomically. Raises OSError when the folder is full or read-only."""
        return _write_sealed(folder / RESULT_FILE, "trial_result", self)

    @classmethod
    def read(cls, path: Path) -> TrialResult:
        """Read and verify result.json at `path`. Raises ResultError."""
        return _read_sealed(cls, path, "trial_result")


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One line of a run's plan. `worker` pins it to that worker (replicate); None lets any idle one take it (shard)."""

    trial_id: str
    trial: Trial
    worker: str | None = None


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
        return _write_sealed(folder / RUN_FILE, "run", self)

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """Read and verify run.json at `path`. Raises ResultError."""
        return _read_sealed(cls, path, "run")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a running trial is: replaced in progress.json as it goes, for people to watch; never a result.

    `phase` is one of a result's `phases`, or write; `step` counts optimizer steps done of `steps` in all (warm-up
    included), or measurements where there are no steps; `elapsed_sec` runs from the process's start.
    """

    phase: str
    step: int
    steps: int
    elapsed_sec: float
    samples_per_sec: float | None = None
    loss: float | None = None


def summarize(values: list[float], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Median, p10, p90 and the percentile-bootstrap 95 % interval of the median. Seeded, so it can be recomputed."""
    if not values:
        raise ValueError("no values to summarize")
    ordered = sorted(values)
    chooser = random.Random(seed)  # noqa: S311 - a bootstrap wants repeatable, not secret
    medians = sorted(quantile(sorted(chooser.choices(ordered, k=len(ordered))), 0.5) for _ in range(resamples))
    return Interval(
        median=quantile(ordered, 0.5),
        p10=quantile(ordered, 0.1),
        p90=quantile(ordered, 0.9),
        low=quantile(medians, 0.025),
        high=quantile(medians, 0.975),
        n=len(ordered),
    )


def quantile(ordered: list[float], share: float) -> float:
    """Linear-interpolation quantile (type 7) of values already in ascending order; `share` from 0 to 1."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def write_atomic(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that no reader, and no crash, ever sees part of it. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide a result on a shared volume from its own operator
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _digest(document: dict[str, Any]) -> str:
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _write_sealed(path: Path, kind: str, record: object) -> Path:
    document = {"kind": kind, "schema_version": SCHEMA_VERSION, **schema.to_json(record)}
    document["sha256"] = _digest(document)
    write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


def _read_sealed(cls: type[schema.T], path: Path, kind: str) -> schema.T:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ResultError(f"{path}: not complete JSON; the file is truncated or damaged") from None
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise ResultError(f"{path}: not a {kind} record")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ResultError(
            f"{path}: schema version {document.get('schema_version')!r}; this version reads {SCHEMA_VERSION}"
        )
    try:
        is_whole = document.pop("sha256", None) == _digest(document)
    except ValueError:  # half a character, which no text of ours holds
        is_whole = False
    if not is_whole:
        raise ResultError(f"{path}: its sha256 does not match its content; the file was changed or damaged")
    del document["kind"], document["schema_version"]
    try:
        return schema.from_json(cls, document, str(path))
    except (schema.SchemaError, TrialError) as error:
        raise ResultError(str(error)) from None
