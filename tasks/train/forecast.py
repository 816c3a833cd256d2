"""What a training will take, before it starts: steps, hours, dollars, memory, and the share of communication.

Hours come from measured steps where an earlier run in the results folder trained the same configuration of this model
on the same kind of device, with the interval of these measurements; else from the chip's figures, as an estimate. The
exchange of gradients is predicted from the bandwidth that an earlier distributed trial measured.

Not covered: start-up (loading, reading the data), evaluations, answers, restarts; a training's own report has them.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bench.records import Trial, schema
from bench.records.result import TrialResult, TrialStatus
from bench.records.training import LIMITS, Forecast
from bench.records.training_data import DataReport
from remote.hosts.host import Host
from reports.read.fingerprint import CPU, device
from reports.statistics.per_config import measure
from reports.statistics.per_process import ProcessSteps
from reports.summary.cost import Amount, Price
from tasks.clients.workers import forecasts
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.fleet.pricing import price_of
from tasks.fleet.run_store import newest_results
from tasks.settings.load import Settings
from tasks.train.trial_spec import limits_of

SAME = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer", "layout", "model"),
    *("lora_rank", "lora_dropout", "lora_targets"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints", "held_layers", "products"),
)
BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What the workers said of the training: the first one's forecast, and its data report."""

    forecast: Forecast
    data: DataReport

    @property
    def device(self) -> str:
        return self.forecast.gpu or CPU


@dataclass(frozen=True, kw_only=True)
class TrainingForecast:
    """A training before it starts. `seconds` are of its steps, None where nothing is known; `basis` says from what.

    `peak_bytes` is None without a GPU. `exchange_sec` is a step's exchange of gradients, None with one worker or where
    no bandwidth was measured. `max_hours` is what the setting `stops_by` leaves it.
    """

    steps: int
    workers: int
    seconds: Amount | None
    basis: str
    price: Price | None
    usd: Amount | None
    peak_bytes: int | None
    memory_bytes: int | None
    step_sec: float | None
    exchange_sec: float | None
    max_hours: float | None = None
    stops_by: str = LIMITS[0]

    @property
    def steps_left(self) -> int | None:
        """How many of the steps the limit leaves time for; None where it leaves all, or where nothing is known."""
        if self.seconds is None or self.max_hours is None or self.seconds.value <= self.max_hours * 3600.0:
            return None
        return int(self.steps * self.max_hours * 3600.0 / self.seconds.value)

    @property
    def share_percent(self) -> float | None:
        """Communication's share of a step, without overlap."""
        if self.step_sec is None or self.exchange_sec is None:
            return None
        return 100.0 * self.exchange_sec / (self.step_sec + self.exchange_sec)

    def record(self) -> dict[str, Any]:
        """The figures that a report compares with what came, as plain JSON values."""
        ends = None if self.seconds is None else [self.seconds.low, self.seconds.high]
        return {
            "steps": self.steps,
            "seconds": None if self.seconds is None else self.seconds.value,
            "seconds_between": ends,
            "basis": self.basis,
            "usd": None if self.usd is None else self.usd.value,
            "usd_per_gpu_hour": None if self.price is None else self.price.usd_per_gpu_hour,
            "price": None if self.price is None else self.price.words,
            "peak_bytes": self.peak_bytes,
            "communication_percent": self.share_percent,
        }


def ask(settings: Settings, hosts: Sequence[Host], trial: Trial) -> ProbeResult:
    """Have the workers look at model and data. Raises UsageError with the first complaint, Refused where they differ.

    Workers on this machine have the same files, so one of them is asked.
    """
    asked = hosts[:1] if settings.fleet.kind == "local" else hosts
    first, *others = [_read(answer) for answer in forecasts(settings, asked, trial)]
    for host, other in zip(asked[1:], others, strict=True):
        if other.forecast.model_sha256 != first.forecast.model_sha256:
            what = f"models at {trial.model}"
        elif [file.sha256 for file in other.data.files] != [file.sha256 for file in first.data.files]:
            what = "data files"
        else:
            continue
        raise ConfirmationRequired(
            f"{host.name} and {asked[0].name} have different {what}; make them the same, then type the same again"
        )
    return first


def _read(answer: Mapping[str, Any]) -> ProbeResult:
    try:
        found = schema.from_json(Forecast, answer)
    except schema.SchemaError as error:
        raise RetryableError(f"the worker's answer cannot be read: {error}; is its bench of another version?") from None
    if found.data is None:
        raise RetryableError("the worker's answer says nothing of the data; is its bench of another version?")
    return ProbeResult(forecast=found, data=found.data)


def check_limits(settings: Settings, trial: Trial, seen: ProbeResult) -> None:
    """Raises UsageError for what the workers' answer shows to be impossible."""
    count = trial.world_size
    gpus = seen.forecast.gpus
    if settings.fleet.kind == "local" and 0 < gpus < count:
        raise UsageError(f"fleet.size: {count} workers on this machine, which has {gpus} GPUs; type --workers {gpus}")
    peak, memory = seen.forecast.peak_bytes, seen.forecast.gpu_memory_bytes
    if peak is not None and memory is not None and peak > memory:
        raise UsageError(
            f"train.micro_batch_size: {trial.micro_batch_size} x {trial.max_seq_len} tokens need about "
            f"{peak / 2**30:.1f} GiB, and {seen.device} has {memory / 2**30:.1f}; lower it, or set "
            "train.gradient_checkpointing to true, or lower train.max_seq_len"
        )


def inputs(trial: Trial, seen: ProbeResult, predicted: TrainingForecast) -> dict[str, Any]:
    """What the run's record says of what it trains on, and of what was foreseen."""
    return {
        "model": {"path": trial.model, "sha256": seen.forecast.model_sha256},
        "files": {file.path: file.sha256 for file in seen.data.files},
        "device": seen.device,
        "foreseen": predicted.record(),
    }


def cap_steps(settings: Settings, trial: Trial, device: str) -> Trial:
    """The trial with the hours that train.max_hours and train.budget_usd allow in all; `device` may be unknown, "".
    Raises UsageError.
    """
    at = price_of(settings, [device] if device else [])
    hours, name = limits_of(settings).hours(None if at is None else at.usd_per_gpu_hour, trial.world_size)
    if trial.training is None:
        return trial
    return dataclasses.replace(trial, training=dataclasses.replace(trial.training, max_hours=hours, limited_by=name))


def predict(settings: Settings, trial: Trial, seen: ProbeResult) -> TrainingForecast:
    """Steps, hours, dollars and memory. Reads earlier runs. Raises UsageError for prices that cannot be used."""
    if trial.training is None:
        raise ValueError("only a training has a forecast")
    spec, workers = trial.training, trial.world_size
    rows = math.ceil(seen.data.rows * spec.epochs)
    steps = math.ceil(rows / spec.rows_per_step)
    if spec.max_steps is not None and spec.max_steps < steps:
        steps = spec.max_steps
        rows = steps * spec.rows_per_step
    turns = math.ceil(min(spec.rows_per_step, max(1, rows)) / workers)  # rows of the busiest worker in a step
    step, basis = _step_sec(settings, trial, seen, turns)
    exchange = _exchange_sec(settings, seen, workers, BYTES[spec.gradients])
    seconds = None if step is None else _plus(step, exchange or 0.0).times(steps)
    price = price_of(settings, [seen.device])
    usd = None if price is None or seconds is None else seconds.times(workers * price.usd_per_gpu_hour / 3600.0)
    return TrainingForecast(
        steps=steps,
        workers=workers,
        seconds=seconds,
        basis=basis,
        price=price,
        usd=usd,
        peak_bytes=seen.forecast.peak_bytes,
        memory_bytes=seen.forecast.gpu_memory_bytes,
        step_sec=None if step is None else step.value,
        exchange_sec=exchange,
        max_hours=spec.max_hours,
        stops_by=spec.limited_by,
    )


def _step_sec(settings: Settings, trial: Trial, seen: ProbeResult, turns: int) -> tuple[Amount | None, str]:
    """Seconds of a step of `turns` packed rows on one worker, without the exchange, and from what that is known."""
    results = chain.from_iterable(newest_results(settings.results_folder))
    alike = [result for result in results if _is_alike(result, trial, seen)]
    if alike:
        found = measure([ProcessSteps.of(one) for one in alike])
        rate, samples = found.elapsed_samples_per_sec, found.samples_per_sec.value * found.step_time_sec.value
        # The mean step, slow ones included, since hours are their sum. Each measured step held one row and one
        # optimizer step; here `turns` rows share one.
        low, high = (None if end is None else samples / end for end in (rate.high, rate.low))
        row = Amount(value=samples / rate.value, low=low, high=high)
        step = _plus(row.times(turns), (1 - turns) * _optimizer_sec(alike))
        return step, f"from {rate.n} steps measured on {seen.device} (run {alike[0].run_id})"
    if seen.forecast.row_sec is not None:
        row = Amount(value=seen.forecast.row_sec, low=None, high=None)
        return row.times(turns), f"estimated from the figures of {seen.device}; no run here measured this configuration"
    return None, f"no run here measured this configuration on {seen.device}"


def _optimizer_sec(results: Sequence[TrialResult]) -> float:
    """Seconds of an optimizer step, the median over the trials; 0 where none measured it."""
    found = [
        measurement.value
        for result in results
        for measurement in result.measurements
        if measurement.name == "step_optimizer_sec"
    ]
    return statistics.median([value for value in found if value is not None] or [0.0])


def _is_alike(result: TrialResult, trial: Trial, seen: ProbeResult) -> bool:
    """Whether a result measured rows of this configuration, one a step, with this model on this kind of device."""
    other, facts = result.trial, result.fingerprint
    return (
        result.status is TrialStatus.SUCCEEDED
        and result.metrics is not None
        and other.kind == "training"
        and other.gradient_accumulation_steps == 1
        and all(getattr(other, name) == getattr(trial, name) for name in SAME)
        and device(facts) == seen.device
        and facts.get("model_sha256") == seen.forecast.model_sha256
    )


def _exchange_sec(settings: Settings, seen: ProbeResult, workers: int, bytes_each: int) -> float | None:
    """How long a step's exchange of gradients takes without overlap, by the bandwidth last measured between workers."""
    if workers == 1:
        return None
    for result in chain.from_iterable(newest_results(settings.results_folder)):
        if (
            result.trial.kind != "distributed"
            or result.status is not TrialStatus.SUCCEEDED
            or result.trial.world_size == 1
        ):
            continue
        rates = [
            measurement.value
            for measurement in result.measurements
            if measurement.name == "all_reduce_bus_gb_per_sec" and measurement.value
        ]
        if rates and device(result.fingerprint) == seen.device:
            sent = 2.0 * (workers - 1) / workers * seen.forecast.adapter_weights * bytes_each
            return sent / (max(rates) * 1e9)
    return None


def _plus(amount: Amount, seconds: float) -> Amount:
    low, high = (None if end is None else end + seconds for end in (amount.low, amount.high))
    return Amount(value=amount.value + seconds, low=low, high=high)
