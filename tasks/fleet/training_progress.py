"""Live display of a training: one line with loss, held-out loss, speed, time left, dollars and restarts.

On a terminal the line is redrawn four times a second; elsewhere a line is printed each minute and with every new phase.
`inv monitor` builds the same line from the worker's progress and the run's ledger.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import Progress, RunRecord
from bench.records.schema import SchemaError, from_json
from remote.fleet.queue import EventType, FleetEvent
from reports import formatting
from reports.read import attempts
from reports.read.attempts import AttemptSpan
from reports.summary.cost import Price
from tasks.errors import escape_controls
from tasks.fleet.live_display import PLAIN_INTERVAL_SEC, View, number
from tasks.fleet.pricing import worker_price
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings


def progress_parts(
    progress: Progress | None,
    attempt_spans: Sequence[AttemptSpan],
    price: Price | None,
    remaining_sec: float | None = None,
) -> list[str]:
    """Return the parts of a training's progress line. Its cost so far is that of all attempts."""
    phrases = []
    if progress is not None:
        steps_text = f"{progress.phase} {progress.step:,}/{progress.steps:,}" if progress.steps else progress.phase
        phrases.append(steps_text)
        for name, value in (("loss", progress.loss), ("held-out loss", progress.validation_loss)):
            if value is not None and math.isfinite(value):
                phrases.append(f"{name} {value:.4g}")
        if progress.score is not None:
            phrases.append(f"score {progress.score}")
        if progress.useful_tokens_per_sec is not None:
            phrases.append(f"{number(progress.useful_tokens_per_sec)} tokens/s")
    if remaining_sec is not None:
        phrases.append(f"about {formatting.clock(remaining_sec)} left")
    if price is not None:
        hours = attempts.held_sec(attempt_spans, time.time()) / 3600.0
        phrases.append(f"{formatting.dollars(hours * price.usd_per_gpu_hour)} so far")
    phrases.append(formatting.count(max(0, len(attempt_spans) - 1), "restart"))
    return phrases


class StepPace:
    """Estimates a training's remaining time from the pace of the current attempt's steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attempt: int | None = None
        self._first, self._last, self._steps, self._at = 0, 0, 0, 0.0

    def update(self, attempt: int, progress: Progress) -> None:
        if attempt != self._attempt or progress.step < self._first:
            self._attempt, self._first, self._at = attempt, progress.step, self._clock()
        self._last, self._steps = progress.step, progress.steps

    @property
    def remaining_sec(self) -> float | None:
        """Estimate the remaining seconds; None before the second step and after the last."""
        done = self._last - self._first
        if done < 2 or self._steps <= self._last:
            return None
        return (self._clock() - self._at) / done * (self._steps - self._last)


class TrainingLines:
    """Progress lines of trainings, built from their workers' progress and their run folders on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._paces = settings, dict[str, StepPace]()

    def line(
        self, job: str, document: Mapping[str, Any] | None, attempt_spans: Sequence[AttemptSpan] | None = None
    ) -> str | None:
        """Return the progress line of the job in this folder; None if it is not one of our trainings.

        `attempt_spans` replaces the attempts of the ledger.
        """
        run_id = PurePosixPath(job).parent.name
        folder = self._settings.results_folder / run_id
        try:
            run, progress = RunRecord.read(folder / RUN_FILE), from_json(Progress, document)
        except (ResultError, SchemaError):
            return None
        if run.suite != TRAIN:
            return None
        pace = self._paces.setdefault(job, StepPace())
        pace.update(1, progress)
        device = run.provenance.get("inputs", {}).get("device")
        price = worker_price(self._settings, device)
        spans = attempts.read(folder, run.planned[0].trial_id) if attempt_spans is None else attempt_spans
        phrases = progress_parts(progress, spans, price, pace.remaining_sec)
        return escape_controls(f"{run_id}: {', '.join(phrases)}")


class TrainingView(View):
    """Live display of one training: pass every event to `handle`, from any thread. Use as a context manager.

    `read_attempts` returns the training's attempts so far. Without a price no cost is shown.
    """

    def __init__(
        self,
        *,
        run_id: str,
        read_attempts: Callable[[], Sequence[AttemptSpan]],
        price: Price | None,
        console: Console | None = None,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, plain, clock)
        self._run_id, self._read_attempts, self._price = run_id, read_attempts, price
        self._progress: Progress | None = None
        self.checkpoint_step: int | None = None  # the newest of all attempts
        self._pace = StepPace(clock)
        self._printed_at = -math.inf
        self._note = "starting"

    def handle(self, event: FleetEvent) -> None:
        """Process one event. Returns immediately and never raises, whatever the event holds."""
        with self._lock:
            is_printed = self._apply(event)
        if is_printed:
            text = self.line() if event.kind is EventType.PROGRESS else self._note
            self._print(self._with_time(self._escaped(text)))

    def summary(self) -> Text:
        return self._with_time(self._escaped(self.line()))

    def render(self) -> Text:
        return self._escaped(self.line())

    def line(self) -> str:
        phrases = (
            progress_parts(self._progress, self._read_attempts(), self._price, self._pace.remaining_sec)
            if self._progress is not None
            else [self._note]
        )
        return f"{self._run_id}: {', '.join(phrases)}"

    def _apply(self, event: FleetEvent) -> bool:
        """Update the state from an event. Returns True if a line must be printed."""
        match event.kind:
            case EventType.PROGRESS:
                return self._on_progress(event)
            case EventType.STARTED | EventType.ATTACHED:
                self._progress = None
                attempt_text = f" (attempt {event.attempt})" if event.attempt > 1 else ""
                text = "still running, reattached" if event.kind is EventType.ATTACHED else f"started{attempt_text}"
                self._note = f"{event.worker}: {text}"
                return self._is_plain or event.attempt > 1
            case EventType.ENDED:
                reason = "" if event.reason is None else f": {event.reason}"
                self._note = f"{event.status.value if event.status is not None else 'ended'}{reason}"
                return True
            case _:
                reason = "" if event.reason is None else f": {event.reason}"
                self._note = f"{event.worker}: {event.kind.value}{reason}"
                self._progress = None
                return True

    def _on_progress(self, event: FleetEvent) -> bool:
        progress, previous = event.progress, self._progress
        if progress is None:
            return False
        self._pace.update(event.attempt, progress)
        self._progress = progress
        if progress.checkpoint_step is not None:
            self.checkpoint_step = progress.checkpoint_step
        is_due = self._clock() - self._printed_at >= PLAIN_INTERVAL_SEC
        is_due = self._is_plain and (is_due or previous is None or previous.phase != progress.phase)
        if is_due:
            self._printed_at = self._clock()
        return is_due
