"""Live display of a training: one line with loss, held-out loss, speed, time left, dollars and restarts.

On a terminal the line is redrawn, with the time in its phase; elsewhere a line is printed with every new phase and
after half a minute of silence. `inv monitor` shows the same line.
"""

import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from bench.records.run import Progress, RunRecord
from reports import formatting
from reports.read import attempts
from tasks.cli.waiting import View
from tasks.errors import escape_controls
from tasks.fleet.pricing import worker_price
from tasks.fleet.training_job import TrainingState
from tasks.settings.layers import Settings


class StepPace:
    """Estimates a training's remaining time from the pace of the current attempt's steps, by the clock of its host."""

    def __init__(self) -> None:
        self._attempt: int | None = None
        self._step, self._at, self._steps = 0, 0.0, 0
        self._paces: list[float] = []

    def update(self, attempt: int, progress: Progress) -> None:
        if attempt != self._attempt or progress.step < self._step:
            self._attempt, self._paces = attempt, []
        elif progress.step > self._step:
            self._paces.append((progress.elapsed_sec - self._at) / (progress.step - self._step))
        else:
            return
        self._step, self._at, self._steps = progress.step, progress.elapsed_sec, progress.steps

    @property
    def remaining_sec(self) -> float | None:
        """Estimate the remaining seconds; None before the third change of the step, and after the last."""
        if len(self._paces) < 2 or self._steps <= self._step:
            return None
        return statistics.median(self._paces[1:]) * (self._steps - self._step)  # the first one includes the start


class TrainingLine:
    """The progress line of one training, from its state."""

    def __init__(self, settings: Settings, run: RunRecord) -> None:
        self._run, self._pace = run, StepPace()
        self._price = worker_price(settings, run.provenance["inputs"].get("device"))

    def text(self, state: TrainingState) -> str:
        """Return the line, with the cost of all attempts so far; what a host has written in it is escaped."""
        if not state.attempts:
            return f"{self._run.run_id}: starting"
        if state.progress is not None:
            self._pace.update(state.attempts[-1].number, state.progress)
        spans = state.attempt_spans(self._run)
        parts = [] if state.progress is None else list(_describe(state.progress))
        if (remaining_sec := self._pace.remaining_sec) is not None:
            parts.append(f"about {formatting.clock(remaining_sec)} left")
        if self._price is not None:
            hours = attempts.total_sec(spans, time.time()) * self._run.planned[0].trial.world_size / 3600.0
            parts.append(f"{formatting.dollars(hours * self._price.usd_per_gpu_hour)} so far")
        parts.append(formatting.count(max(0, len(spans) - 1), "restart"))
        return escape_controls(f"{self._run.run_id}: {', '.join(parts)}")


def _describe(progress: Progress) -> Iterator[str]:
    """Yield the parts of a training's line about what its ranks do now."""
    yield f"{progress.phase} {progress.step:,}/{progress.steps:,}" if progress.steps else progress.phase
    for name, value in (("loss", progress.loss), ("held-out loss", progress.validation_loss)):
        if value is not None and math.isfinite(value):
            yield f"{name} {value:.4g}"
    if progress.score is not None:
        yield f"score {progress.score}"
    if progress.useful_tokens_per_sec is not None:
        yield f"{formatting.number(progress.useful_tokens_per_sec)} tokens/s"


class TrainingView(View):
    """Live display of one training. Use as a context manager."""

    def __init__(self, line: TrainingLine, **view: Any) -> None:
        super().__init__(**view)
        self._line, self._text, self._note, self._phase = line, "starting", "", (0, "")
        self.checkpoint_step: int | None = None  # the newest of all attempts
        self._since = self._clock()  # the start of the phase

    def update(self, state: TrainingState) -> None:
        """Show a state. A new attempt and, in a pipe, a new phase have a line of their own."""
        progress, self._note = state.progress, ""
        number = state.attempts[-1].number if state.attempts else 0
        phase = (number, "" if progress is None else progress.phase)
        with self._lock:
            self._text = self._line.text(state)
        if progress is not None and progress.checkpoint_step is not None:
            self.checkpoint_step = progress.checkpoint_step
        is_new, is_new_attempt = phase != self._phase, number > 1 and number != self._phase[0]
        if is_new:
            self._phase, self._since = phase, self._clock()
        if (self._is_plain and is_new) or is_new_attempt:
            self._print(self.summary())

    def note(self, text: str) -> None:
        """Print why the state is not known now, once until it is known again or the reason is another one."""
        if text != self._note:
            self._note = text
            self._print(self._with_time(self._escaped(text)))

    def summary(self) -> Text:
        return self._with_time(self._escaped(self._text))

    def render(self) -> Text:
        phase = f", {formatting.clock(self._clock() - self._since)} in this phase"
        return Text.assemble(self.summary(), (phase, "dim"))
