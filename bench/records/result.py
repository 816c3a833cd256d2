"""One trial's end and everything measured in it: result.json. Standard library alone (Python 3.10 to 3.13)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from bench.records.interval import Interval
from bench.records.layout import RESULT_FILE
from bench.records.sealed import read_sealed, write_sealed
from bench.records.trial import Trial


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
        return write_sealed(folder / RESULT_FILE, "trial_result", self)

    @classmethod
    def read(cls, path: Path) -> TrialResult:
        """Read and verify result.json at `path`. Raises ResultError."""
        return read_sealed(cls, path, "trial_result")
