"""Forecast of a training before it starts: steps, time, dollars and memory.

The time of a row comes from the newest trainings of the same configuration, model, workers and kind of device; else
from the steps that an earlier run measured; else it is estimated from the chip's specification. Start-up, evaluations
and scores come from the newest trainings of the model there, else from assumptions. Each has the interval of the next
value, by Student's t over the logarithms of the measured ones.

Not covered: restarts, the first scores on a kind of device, and the communication of the first training over several
workers, which later ones include.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bench.records import Trial, schema, student
from bench.records.forecast import Forecast
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.records.training import DataReport, TrainingRecord
from bench.records.units import format_gib
from remote.hosts.host_protocol import Host
from reports.read import attempts
from reports.read.worker_fingerprints import CPU, device
from reports.statistics.per_config import measure
from reports.statistics.per_process import CONFIDENCE, ProcessSteps
from reports.summary.cost import Amount, Price
from reports.training.training_facts import CHECKPOINTS, EVALUATIONS, SCORES, START, divide
from tasks.clients.workers import bench_program
from tasks.errors import RetryableError, UsageError
from tasks.fleet.pricing import worker_price
from tasks.fleet.run_store import newest_results, newest_trainings
from tasks.fleet.trial_spec import training_of
from tasks.settings.layers import Settings

COMPARED_FIELDS = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer", "layout", "model"),
    *("lora_rank", "lora_dropout", "lora_targets"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints", "held_layers", "matmul"),
)
MIN_LIMIT_SEC = 0.1  # no training has a shorter step
MIN_PART_SEC = 1e-3  # logarithms are taken
MAX_TRAININGS = 5  # the newest, which the next one is predicted from
WINDOWS = 5  # parts of a training, whose means show how much its speed changes
# Assumed spread of the logarithm between processes, for steps and for all else; it counts as ASSUMED_DF measured ones.
STEP_SPREAD, OTHER_SPREAD, ASSUMED_DF = 0.02, 0.1, 4
FORWARD_SHARE = 1 / 3  # an evaluation's share of a row's time


STARTUP = Amount(value=25.0, low=5.0, high=100.0)  # no training of the model was measured


@dataclass(frozen=True, kw_only=True)
class ProbeResult(Forecast):
    """The first worker's answer about a training, with its data report and the number of its steps."""

    data: DataReport
    steps: int

    @property
    def device(self) -> str:
        return self.gpu or CPU


@dataclass(frozen=True, kw_only=True)
class TrainingForecast:
    """A predicted training. `seconds` is the time of all steps, None if unknown; `basis` names the source of the time.

    `parts` are the times of start-up, evaluations, checkpoints and scores, by PARTS; `usd` is of all. `peak_bytes` is
    None without a GPU. `fallback` is the recipe that will be built instead of the trial's, with the reason.
    """

    steps: int
    workers: int
    seconds: Amount | None
    basis: str
    price: Price | None
    usd: Amount | None
    peak_bytes: int | None
    memory_bytes: int | None
    max_hours: float | None = None
    fallback: str | None = None
    parts: Mapping[str, Amount] = field(default_factory=dict)

    @property
    def other(self) -> Amount:
        """The time of all parts."""
        return _sum(self.parts.values())

    @property
    def total(self) -> Amount | None:
        """The time of the whole training."""
        return None if self.seconds is None else _sum([self.seconds, *self.parts.values()])

    @property
    def steps_within_limit(self) -> int | None:
        """The number of steps that fit the limit; None if all fit, or if the time is unknown."""
        if self.seconds is None or self.max_hours is None:
            return None
        left = self.max_hours * 3600.0 - self.other.value
        return None if self.seconds.value <= left else int(self.steps * max(0.0, left) / self.seconds.value)

    def record(self) -> dict[str, Any]:
        """Return the figures that a report compares with the measured ones, as plain JSON values."""
        total = self.total
        return {
            "steps": self.steps,
            "seconds": None if self.seconds is None else self.seconds.value,
            "total_sec": None if total is None else total.value,
            "total_between": None if total is None else [total.low, total.high],
            "parts_sec": {name: part.value for name, part in self.parts.items()},
            "basis": self.basis,
            "usd": None if self.usd is None else self.usd.value,
            "usd_per_gpu_hour": None if self.price is None else self.price.usd_per_gpu_hour,
            "price": None if self.price is None else self.price.description,
            "peak_bytes": self.peak_bytes,
        }


def probe_worker(settings: Settings, host: Host, trial: Trial) -> ProbeResult:
    """Have a worker check model and data. Raises UsageError."""
    # The worker says what there is; the caller compares it with the plan.
    trial = dataclasses.replace(trial, training=dataclasses.replace(training_of(trial), input_digests={}))
    return _parse_probe(bench_program(settings).forecast(host, trial))


def _parse_probe(answer: Mapping[str, Any]) -> ProbeResult:
    try:
        return schema.from_json(ProbeResult, answer)
    except schema.SchemaError as error:
        raise RetryableError(
            f"the worker's forecast cannot be read: {error}", remedy="check that its image has this version of bench"
        ) from error


def check_limits(settings: Settings, trial: Trial, probe: ProbeResult) -> None:
    """Raise UsageError if the GPUs or their memory do not suffice."""
    ranks, gpus = trial.world_size, probe.gpus
    if settings.connector.is_local and 0 < gpus < ranks:
        raise UsageError(
            f"fleet.size: {ranks} workers on this machine, which has {gpus} GPUs", remedy=f"pass --workers {gpus}"
        )
    peak, gpu_memory = probe.peak_bytes, probe.gpu_memory_bytes
    if peak is not None and gpu_memory is not None and peak > gpu_memory:
        raise UsageError(
            f"train.micro_batch_size: {trial.micro_batch_size} x {trial.max_seq_len} tokens need about "
            f"{format_gib(peak)}, and {probe.device} has {format_gib(gpu_memory)}",
            remedy="lower it, or set train.gradient_checkpointing to true, or lower train.max_seq_len",
        )


def check_time_limit(predicted: TrainingForecast) -> None:
    """Raise UsageError if the limit ends before the first step."""
    if predicted.max_hours is None:
        return
    seconds = predicted.max_hours * 3600.0
    if seconds < MIN_LIMIT_SEC or predicted.steps_within_limit == 0:
        raise UsageError(f"train.max_hours: it ends after {seconds:.2g} s, before the first step", remedy="raise it")


def run_inputs(trial: Trial, probe: ProbeResult, predicted: TrainingForecast) -> dict[str, Any]:
    """Return the inputs and the forecast for the run's record."""
    return {
        "model": {"path": trial.model, "sha256": probe.model_sha256},
        "files": {file.path: file.sha256 for file in probe.data.files},
        "device": probe.device,
        "forecast": predicted.record(),
    }


def pin_inputs(trial: Trial, probe: ProbeResult) -> Trial:
    """Return the trial with the digests of its inputs, which every attempt compares with the files it trains on."""
    digests = {trial.model: probe.model_sha256, **{file.path: file.sha256 for file in probe.data.files}}
    return dataclasses.replace(trial, training=dataclasses.replace(training_of(trial), input_digests=digests))


def predict(settings: Settings, trial: Trial, probe: ProbeResult) -> TrainingForecast:
    """Predict steps, hours, dollars and memory, also from earlier runs. Raises UsageError for invalid prices."""
    trial = trial.with_derived(probe.derived)
    training, workers = training_of(trial), trial.world_size
    rows = max(1, math.ceil(probe.data.rows * training.epochs))
    max_rows_per_worker = math.ceil(min(training.rows_per_step, rows) / workers)
    trained = _trained_step_sec(settings, trial, probe, max_rows_per_worker)
    step, basis = trained or _step_sec(settings, trial, probe, max_rows_per_worker)
    if workers > 1 and step is not None and trained is None:
        basis += ", without communication"
    row = None if step is None else step.times(1 / max_rows_per_worker)
    price, parts = worker_price(settings, probe.device), _parts(settings, trial, probe, row)
    seconds, usd = None if step is None else step.times(probe.steps), None
    if price is not None and seconds is not None:
        usd = _sum([seconds, *parts.values()]).times(workers * price.usd_per_gpu_hour / 3600.0)
    return TrainingForecast(
        steps=probe.steps,
        workers=workers,
        seconds=seconds,
        basis=basis,
        price=price,
        usd=usd,
        peak_bytes=probe.peak_bytes,
        memory_bytes=probe.gpu_memory_bytes,
        max_hours=training.max_hours,
        fallback=None if probe.recipe == trial.recipe else probe.recipe,
        parts=parts,
    )


def _trained_step_sec(settings: Settings, trial: Trial, probe: ProbeResult, rows: int) -> tuple[Amount, str] | None:
    """Predict a step of `rows` rows from trainings of this configuration, and name the source; None without any."""
    row_sec, counts, run_ids = [], [], []
    for trained, _, record in _trainings(settings, trial, probe):
        steps = record.steps.step_time_sec
        if not steps or any(getattr(trained, name) != getattr(trial, name) for name in COMPARED_FIELDS):
            continue
        size = math.ceil(len(steps) / WINDOWS)
        windows = [statistics.fmean(steps[first : first + size]) for first in range(0, len(steps), size)]
        row_sec += [sec * trial.world_size / training_of(trained).rows_per_step for sec in windows]
        counts.append(len(steps))
        run_ids.append(record.run_id)
    if not row_sec:
        return None
    basis = f"from {sum(counts)} steps trained on {probe.device} (run {run_ids[0]})"
    return _next_value(row_sec, STEP_SPREAD).times(rows), basis


def _trainings(
    settings: Settings, trial: Trial, probe: ProbeResult
) -> Iterator[tuple[Trial, TrialResult, TrainingRecord]]:
    """Yield the newest trainings of this model on as many workers with this kind of device."""
    alike = (
        (result.trial.with_derived(record.derived), result, record)
        for result, record in newest_trainings(settings.results_folder)
        if result.trial.world_size == trial.world_size
        and device(result.fingerprint) == probe.device
        and result.fingerprint.get("model_sha256") == probe.model_sha256
    )
    return islice(alike, MAX_TRAININGS)


def _parts(settings: Settings, trial: Trial, probe: ProbeResult, row: Amount | None) -> dict[str, Amount]:
    """Predict the time without the steps by PARTS: start and end of the processes, evaluations, checkpoints, scores.

    What is not known is left out. `row` is the time of a row, if it is known.
    """
    training, held_out = training_of(trial), probe.data.validation_examples
    between = (probe.steps - 1) // training.evaluate_every if training.evaluate_every else 0
    evaluations = 2 + between if held_out else 0
    starts, rehearsals, examples, saves, answers = (list[float]() for _ in range(5))
    for _, result, record in _trainings(settings, trial, probe):
        total = _total_sec(settings, result, record)
        if record.time is None or record.restarts or total is None:
            continue
        spent, evaluated = divide(record, total), sum(evaluation.rows for evaluation in record.evaluations)
        rehearsals.append(max(MIN_PART_SEC, result.phases.get("rehearse", 0.0)))
        starts.append(max(MIN_PART_SEC, spent[START] - rehearsals[-1]))
        saves.append(max(MIN_PART_SEC, spent[CHECKPOINTS]))
        examples += [spent[EVALUATIONS] / evaluated] if evaluated else []
        answers += [spent[SCORES] / len(record.score.places)] if record.score and record.score.places else []
    parts = {START: STARTUP}
    if starts:
        # The longest rehearsal may have compiled kernels, which later ones need not do.
        *others, longest = sorted(rehearsals)
        rehearsal = _next_value(others, OTHER_SPREAD) if others else Amount(value=longest, low=0.0, high=longest)
        parts = {START: _sum([_next_value(starts, OTHER_SPREAD), rehearsal])}
    if evaluations and (examples or row is not None):
        tokens = probe.data.tokens / max(1, probe.data.examples)
        share = FORWARD_SHARE * tokens / (trial.micro_batch_size * trial.max_seq_len)
        example = _next_value(examples, OTHER_SPREAD) if examples or row is None else row.times(share)
        parts[EVALUATIONS] = example.times(evaluations * held_out)
    if saves:
        parts[CHECKPOINTS] = _next_value(saves, OTHER_SPREAD)
    if answers and training.score and held_out:
        parts[SCORES] = _next_value(answers, OTHER_SPREAD).times(min(training.score_rows, held_out))
    return parts


def _total_sec(settings: Settings, result: TrialResult, record: TrainingRecord) -> float | None:
    """Return the time of a training by the operator's ledger, or of its process; None if neither is known."""
    spans = attempts.read(settings.results_folder / str(record.run_id), result.trial_id)
    return attempts.total_sec(spans, 0.0) or result.wall_time_sec  # 0.0: an attempt that has not ended counts nothing


def _next_value(values: Sequence[float], spread: float) -> Amount:
    """Return the median of positive values with the interval of the next one.

    The standard deviation of their logarithms is that of the values and of ASSUMED_DF more with `spread`.
    """
    logs, n = [math.log(value) for value in values], len(values)
    mean, df = statistics.fmean(logs), ASSUMED_DF + n - 1
    variance = (ASSUMED_DF * spread**2 + math.fsum((log - mean) ** 2 for log in logs)) / df
    factor = math.exp(student.quantile(CONFIDENCE, df) * math.sqrt(variance * (1 + 1 / n)))
    middle = statistics.median(values)
    return Amount(value=middle, low=middle / factor, high=middle * factor)


def _step_sec(settings: Settings, trial: Trial, probe: ProbeResult, rows: int) -> tuple[Amount | None, str]:
    """Predict the seconds of a step of `rows` packed rows on one worker, without communication; and name the source."""
    results = newest_results(settings.results_folder)
    comparable = [result for result in results if _is_comparable(result, trial, probe)]
    if comparable:
        measured = measure([ProcessSteps.from_result(result) for result in comparable])
        rate, samples = (
            measured.elapsed_samples_per_sec,
            measured.steady_samples_per_sec.value * measured.step_time_sec.value,
        )
        # Use the mean step, slow ones included, because hours are their sum. A measured step has one row and one
        # optimizer step; here `rows` rows share one optimizer step.
        low, high = (None if end is None else samples / end for end in (rate.high, rate.low))
        row = Amount(value=samples / rate.value, low=low, high=high)
        seconds = (1 - rows) * _optimizer_sec(comparable)
        step = _sum([row.times(rows), Amount(value=seconds, low=seconds, high=seconds)])
        return step, f"from {rate.n} steps measured on {probe.device} (run {comparable[0].run_id})"
    for chip in probe.chips:
        if chip.name == probe.device:
            basis = f"estimated from the figures of {probe.device}; no run here measured this configuration"
            row = Amount(value=chip.row_sec, low=chip.row_sec_low, high=chip.row_sec_high)
            return row.times(rows), basis
    return None, f"no run here measured this configuration on {probe.device}"


def measured_step(settings: Settings, trial: Trial, probe: ProbeResult, gpu: str, rows: int) -> Amount | None:
    """Return the seconds of a step of `rows` rows on this kind of GPU, if an earlier run here measured them."""
    return _step_sec(settings, trial, dataclasses.replace(probe, gpu=gpu, chips=[]), rows)[0]


def _optimizer_sec(results: Sequence[TrialResult]) -> float:
    """Return the median seconds of an optimizer step over the trials; 0 if no trial measured it."""
    measurements = (each for result in results for each in result.measurements if each.name == "step_optimizer_sec")
    return statistics.median([each.value for each in measurements if each.value is not None] or [0.0])


def _is_comparable(result: TrialResult, trial: Trial, probe: ProbeResult) -> bool:
    """Check whether a result measured this configuration and model on this kind of device, with one row a step."""
    other, facts = result.trial, result.fingerprint
    return (
        result.status is TrialStatus.SUCCEEDED
        and result.metrics is not None
        and other.workload.is_compared
        and other.gradient_accumulation_steps == 1
        and all(getattr(other, name) == getattr(trial, name) for name in COMPARED_FIELDS)
        and device(facts) == probe.device
        and facts.get("model_sha256") == probe.model_sha256
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    """Add independent amounts: the distances of the ends from the values add as the sides of a right angle do."""
    known = list(amounts)
    value = math.fsum(amount.value for amount in known)
    lows = [amount.value - amount.low for amount in known if amount.low is not None]
    highs = [amount.high - amount.value for amount in known if amount.high is not None]
    return Amount(
        value=value,
        low=value - math.hypot(*lows) if len(lows) == len(known) else None,
        high=value + math.hypot(*highs) if len(highs) == len(known) else None,
    )
