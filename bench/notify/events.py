"""A notification, and the watch that derives notifications from a run's attempts and progress.

The watch decides only what to send; `tick` must be called about once a second. Thread-safe.
"""

import datetime
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from bench.records import schema
from bench.records.run import Progress
from bench.records.status import Outcome

BUDGET_SHARE = 0.8
KIND, SCHEMA_VERSION = "notification", 1


class EventKind(Enum):
    """The kind of a notification."""

    STARTED = "started"
    RESTARTED = "restarted"
    STALLED = "stalled"
    BUDGET = "budget"  # BUDGET_SHARE of train.budget_usd is spent
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class Notification:
    """One event of a run; unknown fields are None.

    `source` is the sender: operator, or job (the first pod of a training's Job). `time` is in ISO 8601, UTC, by the
    sender's clock. `step` of `steps` are finished. Of a restart, `reason` and `reason_code` are its cause and
    `lost_sec` its cost: the time since the checkpoint that it resumes from. `usd` is the cost of that time, of any
    other event the cost of the workers since the run's first attempt.
    """

    event: EventKind
    run_id: str
    source: str
    time: str
    text: str
    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    status: str | None = None
    reason: str | None = None
    reason_code: str | None = None
    remedy: str | None = None
    lost_sec: float | None = None
    usd: float | None = None
    budget_usd: float | None = None

    def to_bytes(self) -> bytes:
        """Return the notification as one line of JSON."""
        document = {"kind": KIND, "schema_version": SCHEMA_VERSION, **schema.to_json(self)}
        return (json.dumps(document, ensure_ascii=False) + "\n").encode(errors="replace")


def time_text() -> str:
    """Return the current time for a notification."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class _Loss:
    """A lost attempt whose successor has not finished a step: cause, newest checkpoint, and when that was reported."""

    cause: Outcome | None
    checkpoint_step: int
    checkpoint_at: float | None


class RunWatch:
    """Derives notifications from a run's attempts and progress, and passes each to `send`.

    `usd_per_sec` is the price of all workers together, `spent_usd` returns their cost so far; both may be unknown.
    """

    def __init__(
        self,
        *,
        run_id: str,
        source: str,
        send: Callable[[Notification], object],
        stalled_sec: float,
        budget_usd: float | None = None,
        usd_per_sec: float | None = None,
        spent_usd: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_id, self._source, self._send, self._clock = run_id, source, send, clock
        self._stalled_sec, self._budget_usd = stalled_sec, budget_usd
        self._usd_per_sec, self._spent_usd = usd_per_sec, spent_usd
        self._lock = threading.Lock()
        self._attempt: int | None = None
        self._progress: Progress | None = None
        self._changed_at: float | None = None  # None: nothing runs
        self._checkpoint_step = 0
        self._checkpoint_at: float | None = None
        self._loss: _Loss | None = None
        self._first_step = 0  # from which the attempt resumed, as far as it is known
        self._is_stalled, self._is_budget_sent = False, False

    def on_attempt(self, attempt: int) -> None:
        """Process the start of an attempt: of the run, or after a loss."""
        with self._lock:
            is_first, self._attempt = self._attempt is None and self._loss is None, attempt
            self._first_step = 0
            self._touch()
            if is_first:
                self._emit(EventKind.STARTED, "started")

    def on_loss(self, cause: Outcome | None) -> None:
        """Process the loss of an attempt; the restart is sent once its successor has finished a new step."""
        with self._lock:
            self._send_restart(None)  # the previous loss, whose successor made no step
            self._loss = _Loss(cause=cause, checkpoint_step=self._checkpoint_step, checkpoint_at=self._checkpoint_at)
            self._progress = None

    def on_progress(self, attempt: int, progress: Progress) -> None:
        """Process the progress of an attempt, also of one that started before this process."""
        with self._lock:
            previous, self._progress, self._attempt = self._progress, progress, attempt
            if previous is None or (previous.phase, previous.step) != (progress.phase, progress.step):
                self._touch()
            if progress.checkpoint_step is not None and progress.checkpoint_step != self._checkpoint_step:
                self._checkpoint_step, self._checkpoint_at = progress.checkpoint_step, self._clock()
            if progress.loss is None:  # before the attempt's own first step
                self._first_step = progress.step
            elif self._loss is not None and progress.step > self._loss.checkpoint_step:
                at = self._loss.checkpoint_at
                self._send_restart(None if at is None else self._clock() - at)

    def on_end(self, outcome: Outcome, usd: float | None = None) -> None:
        """Process the end of the run. `usd` is its cost if another one than `spent_usd()`."""
        with self._lock:
            self._send_restart(None)
            self._changed_at = None
            text = outcome.status.value if outcome.text is None else f"{outcome.status.value}: {outcome.text}"
            self._emit(EventKind.ENDED, text, outcome=outcome, usd=usd)

    def close(self) -> None:
        """Stop watching: the run goes on without this process, or has ended."""
        with self._lock:
            self._changed_at = None

    def tick(self) -> None:
        """Send that the run has stalled, or that most of its budget is spent; each once."""
        with self._lock:
            if self._changed_at is None:
                return
            silent_sec = self._clock() - self._changed_at
            if silent_sec > self._stalled_sec and not self._is_stalled:
                self._is_stalled = True
                self._emit(EventKind.STALLED, f"no step has finished for {silent_sec / 60:.0f} min")
            spent = self._spent_usd() if self._budget_usd is not None and not self._is_budget_sent else None
            if spent is not None and self._budget_usd is not None and spent >= BUDGET_SHARE * self._budget_usd:
                self._is_budget_sent = True
                share = spent / self._budget_usd
                self._emit(EventKind.BUDGET, f"{share:.0%} of the budget of ${self._budget_usd:,.2f} is spent")

    def _touch(self) -> None:
        self._changed_at, self._is_stalled = self._clock(), False

    def _send_restart(self, lost_sec: float | None) -> None:
        if self._loss is None:
            return
        loss, self._loss = self._loss, None
        lost_sec = None if lost_sec is None else round(lost_sec, 1)
        usd = None if lost_sec is None or self._usd_per_sec is None else round(lost_sec * self._usd_per_sec, 4)
        resumed = self._first_step or loss.checkpoint_step
        step = f"resumed from step {resumed:,}" if resumed else "started again"
        cost = "" if lost_sec is None else f"; {lost_sec:.0f} s lost" + ("" if usd is None else f" (${usd:,.2f})")
        cause = "" if loss.cause is None or loss.cause.text is None else f" after: {loss.cause.text}"
        text = f"{step}{cause}{cost}"
        self._emit(EventKind.RESTARTED, text, outcome=loss.cause, lost_sec=lost_sec, usd=usd, is_cost_of_run=False)

    def _emit(
        self,
        event: EventKind,
        text: str,
        *,
        outcome: Outcome | None = None,
        lost_sec: float | None = None,
        usd: float | None = None,
        is_cost_of_run: bool = True,
    ) -> None:
        if usd is None and is_cost_of_run:
            usd = self._spent_usd()
        progress = self._progress
        self._send(
            Notification(
                event=event,
                run_id=self._run_id,
                source=self._source,
                time=time_text(),
                text=f"run {self._run_id}: {text}",
                attempt=self._attempt,
                step=None if progress is None else progress.step,
                steps=None if progress is None else progress.steps,
                status=None if outcome is None else outcome.status.value,
                reason=None if outcome is None else outcome.reason,
                reason_code=None if outcome is None or outcome.reason_code is None else outcome.reason_code.value,
                remedy=None if outcome is None else outcome.remedy,
                lost_sec=lost_sec,
                usd=None if usd is None else round(usd, 4),
                budget_usd=self._budget_usd,
            )
        )
