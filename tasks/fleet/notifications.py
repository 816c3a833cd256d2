"""Notifications of a run that this machine follows (`notify.command`, `notify.url`).

A failed notification is a line in the run's log and on the terminal; it never fails the run.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.notify.events import EventKind, Notification, RunWatch, time_text
from bench.notify.sender import Deliver, Sender
from bench.records.run import RunRecord
from bench.records.status import Outcome
from remote.fleet.ledger import Ledger
from remote.fleet.queue import EventType, FleetEvent
from reports.read import attempts
from reports.summary.cost import Price
from tasks.clients.notify import receivers
from tasks.errors import escape_controls
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings

SOURCE = "operator"
_logger = logging.getLogger(__name__)
_STARTS = {EventType.STARTED, EventType.ATTACHED}


class RunNotifications:
    """Passes a run's events to its watch: every event of a training; of other runs starts and ends."""

    def __init__(self, watch: RunWatch, ledger: Ledger, *, is_training: bool) -> None:
        self._watch, self._ledger, self._is_training = watch, ledger, is_training
        self._has_started = False

    def handle(self, event: FleetEvent) -> None:
        """Process one event of the fleet."""
        if event.kind is EventType.STARTED and (self._is_training or not self._has_started):
            self._watch.on_attempt(event.attempt)
        elif event.kind is EventType.PROGRESS and event.progress is not None:
            self._watch.on_progress(event.attempt, event.progress)
        elif event.kind is EventType.RETRYING and self._is_training:
            self._watch.on_loss(self._cause(event))
        self._has_started = self._has_started or event.kind in _STARTS

    def end(self, outcome: Outcome) -> None:
        """Process the end of the run."""
        self._watch.on_end(outcome)

    def _cause(self, event: FleetEvent) -> Outcome | None:
        entry = self._ledger.entries.get(event.trial_id or "")
        attempt = None if entry is None else entry.find_attempt(event.attempt)
        if attempt is None or attempt.reason_code is None:
            return None
        return Outcome.of(attempt.reason_code, attempt.reason or attempt.reason_code.label)


@contextlib.contextmanager
def notify(
    settings: Settings,
    run: RunRecord,
    folder: Path,
    ledger: Ledger,
    *,
    price: Price | None = None,
    budget_usd: float | None = None,
    is_on: bool = True,
) -> Iterator[RunNotifications]:
    """Yield what sends the notifications of this run; on exit, wait for those that are queued. Raises UsageError."""
    deliveries: Mapping[str, Deliver] = receivers(settings) if is_on else {}
    usd_per_sec = None if price is None else len(run.workers) * price.usd_per_gpu_hour / 3600.0
    is_training = run.suite == TRAIN
    with _open_sender(deliveries) as sender:
        watch = RunWatch(
            run_id=run.run_id,
            source=SOURCE,
            send=sender.send,
            stalled_sec=settings.notify.stalled_sec,
            budget_usd=budget_usd,
            usd_per_sec=usd_per_sec,
            spent_usd=_spent_usd(run, folder, price) if is_training else lambda: None,
        )
        sender.tick = watch.tick
        try:
            yield RunNotifications(watch, ledger, is_training=is_training)
        finally:
            watch.close()


def notify_once(settings: Settings, run: RunRecord, event: EventKind, text: str) -> None:
    """Send one notification about a run that has ended, and wait for its delivery. Raises UsageError."""
    with _open_sender(receivers(settings)) as sender:
        note = f"run {run.run_id}: {text}"
        sender.send(Notification(event=event, run_id=run.run_id, source=SOURCE, time=time_text(), text=note))


@contextlib.contextmanager
def _open_sender(deliveries: Mapping[str, Deliver]) -> Iterator[Sender]:
    """Yield a sender; on exit, wait for what is queued, and print one line if something was not sent."""
    failures: list[str] = []

    def log(line: str) -> None:
        _logger.warning("%s", line)
        failures.append(line)

    try:
        with Sender(deliveries, log) as sender:
            yield sender
    finally:
        if failures:
            more = f" ({len(failures)} in all, see operator.log)" if len(failures) > 1 else ""
            print(f"! {escape_controls(failures[-1])}{more}", flush=True)


def _spent_usd(run: RunRecord, folder: Path, price: Price | None) -> Callable[[], float | None]:
    """Return a function for what the workers have cost so far, also while they waited for a restart."""

    def spent() -> float | None:
        if price is None:
            return None
        try:
            spans = attempts.read(folder, run.planned[0].trial_id)
        except OSError:
            return None  # the ledger's own writer reports it
        return attempts.held_sec(spans, time.time()) * price.usd_per_gpu_hour / 3600.0

    return spent
