"""Status and measurements of one trial: result.json."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bench.records.bootstrap import Interval
from bench.records.checksummed import Checksummed
from bench.records.paths import RESULT_FILE
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Optimizer steps in order, in lists of equal length."""

    step_time_sec: list[float] = field(default_factory=list)
    loss: list[float | None] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    useful_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Summary of the measured steps. Rates are per device: mean amount per step over the median step time.

    `tokens_per_sec` counts every computed token position, `useful_tokens_per_sec` excludes padding.
    `peak_vram_bytes` is None without a GPU; `peak_rss_bytes` is the process's high-water mark.
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

    `name` ends in its unit (`matmul_tflops`, `decode_tokens_per_sec`); `context` holds the conditions
    (`{"dtype": "bf16", "size": 8192}`); `value` is None if it could not be measured, with the reason in `note`.
    `share_percent` is `value` in percent of the chip's published figure, None if that is unknown.
    """

    name: str
    value: float | None
    interval: Interval | None = None
    share_percent: float | None = None
    context: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrialResult(Checksummed):
    """Result of one planned trial. `metrics` is None unless at least one training step was measured.

    `measurements` has those of the other kinds of trial, and the telemetry of any kind. `flags` are conditions that
    make the numbers doubtful, one line each: another process on the GPU, throttling.

    `written_by` is "bench" if the trial's process wrote the record. It is "collect" if that process was lost or killed;
    the record then has only the facts of the ledger. `phases` maps import, data, load, warmup, measure and the phases
    of some kinds (ceilings, exchange) to seconds. `fingerprint` has the facts of `bench.machine.fingerprint`.
    """

    FILE, KIND = RESULT_FILE, "trial_result"

    trial_id: str
    trial: Trial
    status: TrialStatus
    reason: str | None
    reason_code: ReasonCode | None = None
    remedy: str | None = None
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

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.status, self.reason_code, self.reason, self.remedy)

    @property
    def steps_began_at(self) -> float:
        """The start of its measured steps, in seconds since 1970 by its worker's clock; 0 if that is unknown."""
        try:
            started = 0.0 if self.started_at is None else datetime.fromisoformat(self.started_at).timestamp()
        except (ValueError, OverflowError):
            return 0.0
        return started + sum(seconds for phase, seconds in self.phases.items() if phase != "measure")
