"""What is shown while a fleet trains: one line with loss, held-out loss, speed, time left, dollars and restarts.

On a terminal the line is renewed four times a second; elsewhere one is printed a minute, and with every new phase.
`inv monitor` shows the same line from the worker's progress and the run's ledger.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import Progress, RunRecord
from bench.records.schema import SchemaError, from_json
from remote.fleet.events import EventType, FleetEvent
from reports import formatting
from reports.read import attempts
from reports.read.attempts import AttemptSpan
from reports.summary.cost import Price
from tasks.errors import one_line
from tasks.fleet.live_display import PLAIN_SIGN_OF_LIFE_SEC, View, dollars, duration, number
from tasks.fleet.pricing import price_of
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings


@dataclass(frozen=True, kw_only=True)
class TrainingSpend:
    """What a training has taken so far, over all its attempts: US dollars (None: no price is known) and restarts."""

    usd: float | None
    restarts: int


def spent(folder: Path, trial_id: str, price: Price | None) -> TrainingSpend:
    """What the training in this run's folder has taken so far, by its ledger."""
    return spent_by(attempts.read(folder, trial_id), price)


def spent_by(held: Sequence[AttemptSpan], price: Price | None) -> TrainingSpend:
    """What a training has taken so far, by its attempts."""
    usd = None if price is None else attempts.worker_sec(held, time.time()) / 3600.0 * price.usd_per_gpu_hour
    return TrainingSpend(usd=usd, restarts=max(0, len(held) - 1))


def parts(progress: Progress | None, spent: TrainingSpend, left_sec: float | None = None) -> list[str]:
    """A training's state, one phrase each."""
    found = []
    if progress is not None:
        done = f"{progress.phase} {progress.step:,}/{progress.steps:,}" if progress.steps else progress.phase
        found.append(done)
        for name, value in (("loss", progress.loss), ("held-out loss", progress.validation_loss)):
            if value is not None and math.isfinite(value):
                found.append(f"{name} {value:.4g}")
        if progress.useful_tokens_per_sec is not None:
            found.append(f"{number(progress.useful_tokens_per_sec)} tokens/s")
    if left_sec is not None:
        found.append(f"about {duration(left_sec)} left")
    if spent.usd is not None:
        found.append(f"{dollars(spent.usd)} so far")
    found.append(formatting.count(spent.restarts, "restart"))
    return found


class StepPace:
    """How long a training still takes, from the steps that were seen in its present attempt."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._attempt: int | None = None
        self._first, self._last, self._steps, self._at = 0, 0, 0, 0.0

    def take(self, attempt: int, progress: Progress) -> None:
        if attempt != self._attempt or progress.step < self._first:
            self._attempt, self._first, self._at = attempt, progress.step, self._clock()
        self._last, self._steps = progress.step, progress.steps

    @property
    def left_sec(self) -> float | None:
        """None before two steps were seen, and after the last."""
        done = self._last - self._first
        if done < 2 or self._steps <= self._last:
            return None
        return (self._clock() - self._at) / done * (self._steps - self._last)


class Trainings:
    """The lines of trainings that are followed by their workers' progress alone; each has its folder here."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._paces = settings, dict[str, StepPace]()

    def line(
        self, job: str, document: Mapping[str, Any] | None, held: Sequence[AttemptSpan] | None = None
    ) -> str | None:
        """Of the job at this folder on its worker; None where it is no training, or another operator's. Its attempts
        are `held`, where they are known better than by the ledger.
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
        pace.take(1, progress)
        device = run.provenance.get("inputs", {}).get("device")
        price = price_of(self._settings, [device] if device else [])
        known = attempts.read(folder, run.planned[0].trial_id) if held is None else held
        words = parts(progress, spent_by(known, price), pace.left_sec)
        return one_line(f"{run_id}: {', '.join(words)}")


class TrainingView(View):
    """Shows one training; use as a context manager and hand every event to `handle`, from any thread.

    `spent` is asked for what the training has taken so far.
    """

    def __init__(
        self,
        *,
        run_id: str,
        spent: Callable[[], TrainingSpend],
        console: Console | None = None,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, plain, clock)
        self._run_id, self._spent = run_id, spent
        self._progress: Progress | None = None
        self._pace = StepPace(clock)
        self._spoke_at = -math.inf
        self._note = "starting"

    def handle(self, event: FleetEvent) -> None:
        """Take one event. Returns at once and raises nothing, whatever the event holds."""
        with self._lock:
            is_said = self._take(event)
        if is_said:
            self.note(self.line() if event.happening is EventType.PROGRESS else self._note)

    def note(self, words: str) -> None:
        self._say(self._stamped(self._text(words)))

    def summary(self) -> Text:
        return self._stamped(self._text(self.line()))

    def render(self) -> Text:
        return self._text(self.line())

    def line(self) -> str:
        words = (
            parts(self._progress, self._spent(), self._pace.left_sec) if self._progress is not None else [self._note]
        )
        return f"{self._run_id}: {', '.join(words)}"

    def _take(self, event: FleetEvent) -> bool:
        """Whether something is to be said now."""
        match event.happening:
            case EventType.PROGRESS:
                return self._advance(event)
            case EventType.STARTED | EventType.ATTACHED:
                self._progress = None
                again = f" again (attempt {event.attempt})" if event.attempt > 1 else ""
                words = "still there, followed again" if event.happening is EventType.ATTACHED else f"started{again}"
                self._note = f"{event.worker}: {words}"
                return self._is_plain or event.attempt > 1
            case EventType.ENDED:
                reason = "" if event.reason is None else f": {event.reason}"
                self._note = f"{event.end.value if event.end is not None else 'ended'}{reason}"
                return True
            case _:
                reason = "" if event.reason is None else f": {event.reason}"
                self._note = f"{event.worker}: {event.happening.value}{reason}"
                self._progress = None
                return True

    def _advance(self, event: FleetEvent) -> bool:
        now, before = event.progress, self._progress
        if now is None:
            return False
        self._pace.take(event.attempt, now)
        self._progress = now
        is_due = self._clock() - self._spoke_at >= PLAIN_SIGN_OF_LIFE_SEC
        is_due = self._is_plain and (is_due or before is None or before.phase != now.phase)
        if is_due:
            self._spoke_at = self._clock()
        return is_due
