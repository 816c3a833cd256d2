"""One trial's end and everything measured in it: result.json."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from bench.records.bootstrap import Interval
from bench.records.checksummed import Checksummed
from bench.records.paths import RESULT_FILE
from bench.records.trial import Trial


class TrialStatus(str, Enum):
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
        """True where a resumed run tries the trial again: it was stopped or lost before it could show a result."""
        return self in (TrialStatus.PREEMPTED, TrialStatus.LOST, TrialStatus.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One entry per optimizer step, in order, in lists of equal length.

    `samples` is a whole number where samples are padded and may be a fraction where they are packed.
    """

    step_time_sec: list[float] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    useful_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Summary of the measured steps. Rates are per device: mean amount per step over the median step time.

    `tokens_per_sec` counts every token position computed, `useful_tokens_per_sec` leaves padding out.
    `peak_vram_bytes` is None where there is no GPU; `peak_rss_bytes` is the process's own high-water mark.
    `load_time_sec` is for the base weights from disk to the device, quantized; without adapters and optimizer.
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
    """One measured quantity other than a training step: a bandwidth, a load time, a decoding rate.

    `name` ends in its unit (`matmul_tflops`, `decode_tokens_per_sec`); `context` says what was measured
    (`{"dtype": "bf16", "size": 8192}`); `value` is None where it could not be measured, and `note` then says why.
    `share_percent` is `value` over the chip's published figure, None where that is unknown.
    """

    name: str
    value: float | None
    interval: Interval | None = None
    share_percent: float | None = None
    context: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrialResult(Checksummed):
    """One planned trial's end. `metrics` is None unless at least one training step was measured.

    `measurements` holds what the other kinds of trial measured, and the telemetry of any kind. `flags` are conditions
    that make the numbers doubtful, one line each: another process on the GPU, throttling, CPU contention.

    `written_by` is "bench" where the trial's own process wrote the record. It is "collect" where that process was lost
    or killed; the record then holds only what the ledger knows. `phases` maps import, data, load, warmup, measure and
    the phases of some kinds (ceilings, exchange) to seconds. `fingerprint` is `bench.machine.fingerprint`'s
    allow-list.
    """

    FILE, KIND = RESULT_FILE, "trial_result"

    trial_id: str
    trial: Trial
    status: TrialStatus
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
