"""Record of one running trial: phases, steps, measurements, fingerprint. Becomes its TrialResult.

Every workload writes into it during the run, so that everything measured is kept, however the trial ends. Meanwhile the
log on standard output and progress.json show it; they never disturb a measurement.
"""

import contextlib
import itertools
import json
import math
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench.records import Trial, schema
from bench.records.bootstrap import Interval, summarize
from bench.records.paths import PROGRESS_FILE
from bench.records.result import Measurement, Metrics, Steps, TrialResult
from bench.records.run import Progress
from bench.records.status import Outcome
from bench.records.units import format_gib
from bench.torch_stack import DeviceClock

LOG_EVERY_STEPS = 5
TAIL_LINES = 40
PROGRESS_INTERVAL_SEC = 0.25
PHASES = ("data", "forward", "backward", "optimizer")  # parts of a training step


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request to run a trial, with its result in `out`.

    `checkpoints` is the folder that a fine-tuning resumes from. The last four fields are labels in the result.
    """

    out: Path
    checkpoints: Path | None = None
    trial_id: str | None = None
    worker: str | None = None
    run_id: str | None = None
    attempt: int = 1


class Clock:
    """Start of the process: as wall time for people, on the monotonic clock for durations."""

    def __init__(self) -> None:
        self.started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.started = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self.started


class Log:
    """Log of lines with the seconds since the start, printed at once; the last lines go into the result."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._is_printing = True

    def __call__(self, message: str) -> None:
        line = f"[{self._clock():7.2f}s] {message}"
        self._tail.append(line)
        if self._is_printing:
            try:
                print(line, flush=True)
            except OSError:  # a full disk or a closed pipe stops the printing, not the measurement
                self._is_printing = False

    @property
    def tail(self) -> list[str]:
        return list(self._tail)


class ProgressFile:
    """Writer of progress.json, at most every 0.25 s unless the phase changed.

    The file is renamed into place, so a reader never sees a part of it. No fsync: the file is useless after a crash,
    and an fsync on a shared file system costs milliseconds. A write that fails is logged once and does not end the
    trial.
    """

    def __init__(self, folder: Path, log: Log) -> None:
        self.path, self._part = folder / PROGRESS_FILE, folder / f".{PROGRESS_FILE}.part"
        self._log, self._has_failed = log, False
        self._last: tuple[float, str] | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._last is not None and self._last[1] == progress.phase and now - self._last[0] < PROGRESS_INTERVAL_SEC:
            return
        self._last = (now, progress.phase)
        try:
            self._part.write_text(json.dumps(schema.to_json(progress)) + "\n", encoding="utf-8")
            os.replace(self._part, self.path)
        except OSError as error:
            if not self._has_failed:
                self._log(f"{self.path}: cannot be written: {error.strerror}; continuing without it")
            self._has_failed = True


class Record:
    """Record of one running trial; becomes its TrialResult."""

    def __init__(self, request: Request, trial: Trial, clock: Clock) -> None:
        self.request, self.trial, self.clock = request, trial, clock
        self.phase = "import"
        # Some workloads count measurements instead; the steps of a fine-tuning are known once its data is read.
        self.steps_planned = 0 if trial.workload.has_training else trial.warmup_steps + trial.measured_steps
        self.phases: dict[str, float] = {}
        self.warmup, self.steps = Steps(), Steps()
        self.measurements: list[Measurement] = []
        self.observed: list[Measurement] = []  # telemetry, not counted as steps
        self.flags: list[str] = []
        self.gpu_fault: Outcome | None = None  # the outcome of a trial on a GPU that showed a fault
        self.on_phase: Callable[[str], None] | None = None  # called with each new phase, and with "" between phases
        self.on_finish: Callable[[Outcome], None] | None = None  # called before the result is written
        self.earlier_steps = 0  # steps of a fine-tuning's earlier attempts
        self.extra_progress: dict[str, Any] = {}  # further fields of Progress
        self.load_time_sec = 0.0
        self.peak_vram_bytes: int | None = None
        self.peak_rss_bytes: int | None = None  # set by distributed trials: the ranks' peak; else this process's peak
        self.fingerprint: dict[str, Any] = {}
        self.log = Log(clock.elapsed)
        self._progress = ProgressFile(request.out, self.log)

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Publish the phase and record its seconds, however it ends."""
        self.phase = phase
        self._set_phase(phase)
        self.publish_progress()
        start = time.monotonic()
        try:
            yield
        finally:
            self.phases[phase] = time.monotonic() - start
            self._set_phase("")

    def _set_phase(self, phase: str) -> None:
        if self.on_phase is not None:
            self.on_phase(phase)

    def apply_report(self, line: Mapping[str, Any]) -> None:
        """Apply one report line of rank 0, in the format common to all distributed workloads."""
        if "phase_sec" in line:
            self.phases[line["phase"]] = line["phase_sec"]
            self._set_phase("")
        elif "phase" in line:
            self.phase = line["phase"]
            self.publish_progress()
            self._set_phase(self.phase)
        elif "activity" in line:
            self.phase = line["activity"]
            self.publish_progress()
        self.fingerprint.update(line.get("fingerprint", {}))
        self.load_time_sec = line.get("load_time_sec", self.load_time_sec)
        if "peaks" in line:
            self.peak_vram_bytes, self.peak_rss_bytes = line["peaks"]["vram_bytes"], line["peaks"]["rss_bytes"]
        if "flag" in line:
            self.flags.append(line["flag"])
        if "log" in line:
            self.log(line["log"])

    def add(
        self,
        name: str,
        value: float | Interval | None,
        *,
        share_percent: float | None = None,
        note: str | None = None,
        **context: Any,
    ) -> None:
        """Add one measurement, log it, and count it as a step of the progress. `context` describes what was measured.

        The value of an interval is its median.
        """
        interval, value = (value, value.median) if isinstance(value, Interval) else (None, value)
        self.measurements.append(
            Measurement(
                name=name, value=value, interval=interval, share_percent=share_percent, context=context, note=note
            )
        )
        details = ", ".join(f"{key} {item}" for key, item in context.items())
        share = "" if share_percent is None else f", {share_percent:.0f} % of the chip's"
        number = "none" if value is None else f"{value:.4g}"
        self.log(f"{name} ({details}): {number}{share}" + (f": {note}" if note else ""))
        self.publish_progress()

    def add_step(self, steps: Steps, *, seconds: float, loss: float, samples: float, tokens: int, useful: int) -> None:
        """Add one step to `steps`, which is `self.warmup` or `self.steps`; log every fifth and the last."""
        steps.step_time_sec.append(seconds)
        steps.loss.append(loss if math.isfinite(loss) else None)
        steps.samples.append(round(samples, 6))
        steps.tokens.append(tokens)
        steps.useful_tokens.append(useful)
        self.publish_progress()
        done = len(steps.step_time_sec)
        planned = self.trial.measured_steps if steps is self.steps else self.trial.warmup_steps
        if self.trial.workload.has_training:
            done, planned = self.steps_done, self.steps_planned
        if done % LOG_EVERY_STEPS == 0 or done == planned:
            times = steps.step_time_sec[-LOG_EVERY_STEPS:]
            self.log(f"{self.phase} {done}/{planned}: {sum(times) / len(times):.3f} s/step, loss {loss:.4f}")

    @property
    def steps_done(self) -> int:
        """Number of steps of a training trial, of measurements for any other kind."""
        done = self.earlier_steps + len(self.warmup.step_time_sec) + len(self.steps.step_time_sec)
        return done or len(self.measurements)

    def publish_progress(self) -> None:
        """Replace progress.json."""
        steps = self.steps if self.steps.step_time_sec else self.warmup
        seconds = sum(steps.step_time_sec)
        self._progress(
            Progress(
                phase=self.phase,
                step=self.steps_done,
                steps=self.steps_planned,
                elapsed_sec=round(self.clock.elapsed(), 3),
                samples_per_sec=sum(steps.samples) / seconds if seconds else None,
                loss=steps.loss[-1] if steps.loss else None,
                **self.extra_progress,
            )
        )

    def write(self, outcome: Outcome) -> None:
        """Write the result and the summary line. Raises OSError."""
        if self.on_finish is not None:
            self.on_finish(outcome)
        trial_id = self.request.trial_id or self.trial.trial_id
        self.phase = "write"
        self.publish_progress()
        metrics = self._metrics()
        self.log(summary_line(self.trial, trial_id, outcome, metrics, self.clock.elapsed()))
        TrialResult(
            trial_id=trial_id,
            trial=self.trial,
            status=outcome.status,
            reason=outcome.reason,
            reason_code=outcome.reason_code,
            remedy=outcome.remedy,
            worker=self.request.worker,
            run_id=self.request.run_id,
            attempt=self.request.attempt,
            started_at=self.clock.started_at,
            wall_time_sec=self.clock.elapsed(),
            phases=self.phases,
            warmup=self.warmup,
            steps=self.steps,
            metrics=metrics,
            measurements=[*self.measurements, *self.observed],
            flags=self.flags,
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
            peak_rss_bytes=self.peak_rss_bytes or peak_rss_bytes(),
            load_time_sec=self.load_time_sec,
        )


def peak_rss_bytes() -> int:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def peak_text(vram_bytes: int | None, rss_bytes: int) -> str:
    """Name the peak memory: that of the GPU, or without one that of the process."""
    return f"peak RSS {format_gib(rss_bytes, 2)}" if vram_bytes is None else f"peak VRAM {format_gib(vram_bytes, 2)}"


def summary_line(trial: Trial, trial_id: str, outcome: Outcome, metrics: Metrics | None, elapsed: float) -> str:
    """Summarize a trial in one line, with its profile, so that numbers of profile tiny are not taken for a GPU's."""
    parts = [f"{outcome.status.value} {trial_id} [{trial.profile}]", *([outcome.text] if outcome.text else [])]
    if metrics is not None:
        times, peak = metrics.step_time_sec, peak_text(metrics.peak_vram_bytes, metrics.peak_rss_bytes)
        parts.append(
            f"{times.median:.4f} s/step [{times.low:.4f}, {times.high:.4f}], {metrics.tokens_per_sec:.0f} tokens/s "
            f"({metrics.useful_tokens_per_sec:.0f} useful), {peak}"
        )
    return f"{': '.join(parts)}, {elapsed:.1f} s in all"


class PhaseClock:
    """Timer of a training step's phases: call `begin()`, then `end(phase)` after each phase, then `read()`.

    Timestamps are the device's, which cost the host a few microseconds and are read after the step. A step begins with
    an idle device, so `data` is the wait for the loader and the copy to the device. With several micro-batches per
    step, a wait that overlaps a computation counts as that computation.
    """

    def __init__(self, torch: Any, *, is_cuda: bool) -> None:
        self._clock = DeviceClock(torch, is_cuda=is_cuda)
        self._stamps: list[tuple[str, Any]] = []

    def begin(self) -> None:
        """Begin a step; drop earlier timestamps."""
        self._stamps = [("", self._clock.stamp())]

    def end(self, phase: str) -> None:
        """Assign the time since the last timestamp to `phase`."""
        self._stamps.append((phase, self._clock.stamp()))

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase in the step."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for (_, before), (phase, after) in itertools.pairwise(self._stamps):
            seconds[phase] += self._clock.seconds(before, after)
        return seconds
