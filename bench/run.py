"""One trial, from its file to its result: check, import, read data, load, warm up, measure, write.

A process runs one trial and exits. Whatever ends it short of SIGKILL leaves a verified result.json with the end's own
name and every step measured until then; bad input is refused before anything is written.
"""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from bench import data, ends, environment, qlora, stack
from bench.ends import Stopped, Stops
from bench.inputs import InputError, Inputs, check_trial
from bench.result import (
    EXIT_NOT_WRITTEN,
    RESULT_FILE,
    End,
    Metrics,
    Progress,
    ResultError,
    Steps,
    TrialResult,
    summarize,
)
from bench.trial import Trial, TrialError
from bench.watch import Log, ProgressFile

LOG_EVERY_STEPS = 5
TRACEBACK_LINES = 12
# Enough for any result; found missing before the work rather than after it.
PROBE_BYTES = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to run and where its result goes. The last four are labels for the record."""

    trial_file: Path
    out: Path
    trial_id: str | None = None
    worker: str | None = None
    run_id: str | None = None
    attempt: int = 1


def run(request: Request) -> int:
    """Run the trial; returns the process's exit code (see `bench.ends`). Never raises for what a trial can do."""
    stops, clock = Stops(), Clock()
    stops.install()
    record: Record | None = None
    try:
        trial = Trial.read(request.trial_file)
        stops.set_deadline(trial.deadline_sec)
        refuse_finished(request.out)
        inputs = check_trial(trial)
        prepare_folder(request.out)
        record = Record(request, trial, clock)
        end, reason = _attempt(record, inputs, stops)
    except (TrialError, InputError) as error:
        print(error, file=sys.stderr)
        return ends.EXIT_BAD_INPUT
    except Stopped as stopped:
        if record is None:
            print(f"{request.trial_file}: {stopped.reason}, before it began", file=sys.stderr)
            return ends.EXIT_CODES.get(stopped.end, 1)
        end, reason = stopped.end, stopped.reason
    try:
        record.write(end, reason)
    except OSError as error:
        print(f"{request.out / RESULT_FILE}: the result cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_NOT_WRITTEN
    return ends.EXIT_CODES.get(end, 1)


def refuse_finished(out: Path) -> None:
    """Raises InputError if `out` holds a finished trial. A damaged result is none, and will be replaced."""
    with contextlib.suppress(ResultError):
        finished = TrialResult.read(out / RESULT_FILE)
        raise InputError(
            f"{out / RESULT_FILE}: holds the finished result of {finished.trial_id!r}, which is never overwritten; "
            "name another --out, or remove it"
        )


def prepare_folder(out: Path) -> None:
    """Make sure a result can be written before any work is done for it. Raises InputError."""
    probe = out / f".{RESULT_FILE}.probe"
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{out}: results cannot be written there: {error.strerror}; name another --out") from None


class Clock:
    """When the process began its work: by the wall for people, by a clock that never jumps for durations."""

    def __init__(self) -> None:
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._started = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._started


class Record:
    """What is known so far of one running trial; becomes its TrialResult."""

    def __init__(self, request: Request, trial: Trial, clock: Clock) -> None:
        self.request, self.trial, self.clock = request, trial, clock
        self.phase = "import"
        self.phases: dict[str, float] = {}
        self.warmup, self.steps = Steps(), Steps()
        self.load_time_sec = 0.0
        self.peak_vram_bytes: int | None = None
        self.fingerprint: dict[str, Any] = {}
        self.log = Log(clock.elapsed)
        self._progress = ProgressFile(request.out, self.log)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Name the phase for people, and keep its seconds however it ends."""
        self.phase = phase
        self.show()
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[phase] = time.monotonic() - start

    def show(self) -> None:
        """Replace progress.json."""
        done = self.steps if self.steps.step_time_sec else self.warmup
        spent = sum(done.step_time_sec)
        self._progress(
            Progress(
                phase=self.phase,
                step=len(self.warmup.step_time_sec) + len(self.steps.step_time_sec),
                steps=self.trial.warmup_steps + self.trial.measured_steps,
                elapsed_sec=round(self.clock.elapsed(), 3),
                samples_per_sec=sum(done.samples) / spent if spent else None,
                loss=done.loss[-1] if done.loss else None,
            )
        )

    def write(self, end: End, reason: str | None) -> None:
        """Write the result and the summary line. Raises OSError."""
        trial_id = self.request.trial_id or self.trial.trial_id
        self.phase = "write"
        self.show()
        metrics = self._metrics()
        self.log(summary_line(self.trial, trial_id, end, reason, metrics, self.clock.elapsed()))
        TrialResult(
            trial_id=trial_id,
            trial=self.trial,
            status=end,
            reason=reason,
            worker=self.request.worker,
            run_id=self.request.run_id,
            attempt=self.request.attempt,
            started_at=self.clock.started_at,
            wall_time_sec=self.clock.elapsed(),
            phases=self.phases,
            warmup=self.warmup,
            steps=self.steps,
            metrics=metrics,
            fingerprint=self.fingerprint,
            log_tail=self.log.tail,
        ).write(self.request.out)

    def _metrics(self) -> Metrics | None:
        steps = self.steps
        if not steps.step_time_sec:
            return None
        times, count = summarize(steps.step_time_sec), len(steps.step_time_sec)
        tokens, useful = sum(steps.tokens), sum(steps.useful_tokens)
        return Metrics(
            step_time_sec=times,
            samples_per_sec=sum(steps.samples) / count / times.median,
            tokens_per_sec=tokens / count / times.median,
            useful_tokens_per_sec=useful / count / times.median,
            padding_percent=100.0 * (tokens - useful) / tokens,
            first_loss=steps.loss[0],
            last_loss=steps.loss[-1],
            peak_vram_bytes=self.peak_vram_bytes,
            peak_rss_bytes=peak_rss_bytes(),
            load_time_sec=self.load_time_sec,
        )


class NotFinite(ArithmeticError):
    """The loss is no longer a number, and every later step would be worthless."""


def _attempt(record: Record, inputs: Inputs, stops: Stops) -> tuple[End, str | None]:
    """Do the work; the end it came to. InputError passes through: it is found before the first step, or never."""
    try:
        _measure(record, inputs, stops)
        stops.close()
    except InputError:
        raise
    except (Exception, Stopped) as error:  # noqa: BLE001 - whatever a stack of a million lines raises is this trial's end
        stops.close()
        end, reason = ends.end_of(error)
        if not isinstance(error, Stopped):
            for line in "".join(traceback.format_exception(error)).rstrip().splitlines()[-TRACEBACK_LINES:]:
                record.log(line)
        done = len(record.warmup.step_time_sec) + len(record.steps.step_time_sec)
        planned = record.trial.warmup_steps + record.trial.measured_steps
        return end, f"{reason} (in {record.phase}, {done} of {planned} steps done)"
    return End.SUCCEEDED, None


def _measure(record: Record, inputs: Inputs, stops: Stops) -> None:
    trial, log = record.trial, record.log
    model_facts, data_facts, conversations = inputs
    log(f"{trial.name} [{trial.profile}]: {trial.reason}")
    record.fingerprint.update(environment.host_facts())
    record.fingerprint.update(environment.input_facts(trial, model_facts, data_facts))
    with record.timed("import"):
        modules = stack.load()
        placement = qlora.place(modules)
    stops.check()
    record.fingerprint.update(environment.device_facts(modules.torch))
    record.fingerprint["compute_dtype"] = str(placement.compute_dtype).removeprefix("torch.")
    processor = record.fingerprint["gpu_name"] or record.fingerprint["cpu_model"]
    log(f"device {placement.device} in {record.fingerprint['compute_dtype']}: {processor}")
    try:
        with record.timed("data"):
            tokenizer = data.load_tokenizer(modules, trial.model)
            rows = data.make_rows(trial, conversations, tokenizer)
        left_out = f", {data_facts.skipped} chats without a pair left out" if data_facts.skipped else ""
        log(f"data of {data_facts.samples:,} samples{left_out}; {len(rows):,} rows tokenized, layout {trial.layout}")
        with record.timed("load"):
            step = _load(record, modules, placement, stops)
        batches = data.make_batches(modules, trial, rows, tokenizer, pin_memory=placement.is_cuda)
        with contextlib.closing(batches):
            with record.timed("warmup"):
                for _ in range(trial.warmup_steps):
                    _one_step(record, step, batches, record.warmup, stops)
            with record.timed("measure"):
                for _ in range(trial.measured_steps):
                    _one_step(record, step, batches, record.steps, stops)
    finally:
        if placement.is_cuda:
            record.peak_vram_bytes = modules.torch.cuda.max_memory_allocated()
            record.fingerprint["peak_vram_reserved_bytes"] = modules.torch.cuda.max_memory_reserved()


def _load(record: Record, modules: stack.Stack, placement: qlora.Placement, stops: Stops) -> qlora.TrainingStep:
    trial, start = record.trial, time.monotonic()
    base = qlora.load_base(modules, trial, placement)
    if placement.is_cuda:
        modules.torch.cuda.synchronize()
    record.load_time_sec = time.monotonic() - start
    stops.check()
    model = qlora.add_adapters(modules, trial, base)
    optimizer, what = qlora.make_optimizer(modules, trial, model, placement)
    record.fingerprint["optimizer"] = what
    trained, _ = model.get_nb_trainable_parameters()
    record.fingerprint["trained_parameters"] = trained
    record.log(
        f"loaded {record.fingerprint['model_parameters']:,} parameters as {trial.base_precision} in "
        f"{record.load_time_sec:.2f} s; training {trained:,} with {what}"
    )
    return qlora.TrainingStep(modules, model, optimizer, placement)


def _one_step(
    record: Record, step: qlora.TrainingStep, batches: Iterator[data.Batch], steps: Steps, stops: Stops
) -> None:
    accumulation = record.trial.gradient_accumulation_steps
    used: list[data.Batch] = []

    def drawn() -> Iterator[data.Batch]:
        for batch in islice(batches, accumulation):
            used.append(batch)
            yield batch

    step.wait()
    start = time.perf_counter()
    total = step(drawn(), accumulation)
    step.wait()
    seconds = time.perf_counter() - start
    # Everything below is outside the timed region.
    stops.check()
    loss = float(total)
    steps.step_time_sec.append(seconds)
    steps.loss.append(loss if math.isfinite(loss) else None)
    steps.samples.append(round(sum(batch.samples for batch in used), 6))
    steps.tokens.append(sum(batch.tokens for batch in used))
    steps.useful_tokens.append(sum(batch.useful_tokens for batch in used))
    record.show()
    done = len(steps.step_time_sec)
    planned = record.trial.measured_steps if steps is record.steps else record.trial.warmup_steps
    if done % LOG_EVERY_STEPS == 0 or done == planned:
        group = steps.step_time_sec[-LOG_EVERY_STEPS:]
        record.log(f"{record.phase} {done}/{planned}: {sum(group) / len(group):.3f} s/step, loss {loss:.4f}")
    if not math.isfinite(loss):
        raise NotFinite(f"the loss is {loss} at {record.phase} step {done}; try a lower learning_rate")


def peak_rss_bytes() -> int:
    """This process's own high-water mark of resident memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def summary_line(
    trial: Trial, trial_id: str, end: End, reason: str | None, metrics: Metrics | None, elapsed: float
) -> str:
    """The one line that says how the trial went, with its profile so that no tiny number passes for a GPU's."""
    line = f"{end.value} {trial_id} [{trial.profile}]"
    if reason is not None:
        line += f": {reason}"
    if metrics is not None:
        times = metrics.step_time_sec
        peak, kind = (
            (metrics.peak_rss_bytes, "RSS") if metrics.peak_vram_bytes is None else (metrics.peak_vram_bytes, "VRAM")
        )
        line += (
            f": {metrics.samples_per_sec:.2f} samples/s, "
            f"{times.median:.4f} s/step [{times.low:.4f}, {times.high:.4f}], "
            f"{metrics.tokens_per_sec:.0f} tokens/s ({metrics.useful_tokens_per_sec:.0f} useful), "
            f"loss {_number(metrics.first_loss)} -> {_number(metrics.last_loss)}, peak {kind} {peak / 2**30:.2f} GiB"
        )
    return f"{line}, {elapsed:.1f} s in all"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
