"""Live display of a run: lines about what happened, and what runs now, which a terminal shows all the time.

Events come from many threads and may hold any text that a host has sent, so their text is escaped and never parsed as
markup. Elsewhere a trial's start and its phases are lines, too, and after half a minute of silence what is running.

Displayed rates are momentary; the report has the measured ones.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.text import Text

from bench.records.run import PlannedTrial, Progress
from bench.records.status import TrialStatus
from remote.fleet.events import EventType, FleetEvent
from reports import formatting
from tasks.cli.waiting import View

LINES_AROUND_WORKERS = 4  # blank line, run, "+ n more", the cursor's line
UNKNOWN, NO_LOGIN = "-", "no login"


@dataclass(kw_only=True)
class WorkerRow:
    """The state of one worker. `since` is the start of its trial on the view's clock."""

    worker: str
    trial_id: str | None = None
    attempt: int = 1
    since: float = 0.0
    phase: str = "idle"
    progress: Progress | None = None
    is_attached: bool = False  # the trial started before this view; `since` is right after its first progress report


class FleetView(View):
    """Live display of one run: pass every event to `handle`, from any thread. Use as a context manager."""

    def __init__(
        self,
        *,
        run_id: str,
        planned: Sequence[PlannedTrial],
        workers: Sequence[str],
        console: Console | None = None,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, plain, clock)
        self._run_id = run_id
        self._planned = {trial.trial_id: trial for trial in planned}
        self._rows = {worker: WorkerRow(worker=worker) for worker in workers}
        self._ends: dict[str, TrialStatus] = {}
        self._needs_login = False
        self._cancelled_running = 0

    def __enter__(self) -> Self:
        self._started = self._clock()
        if self._is_plain:
            self._print(self.summary())
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        cancelled = list(self._ends.values()).count(TrialStatus.CANCELLED)
        if cancelled:
            running = self._cancelled_running
            text = f"{formatting.count(cancelled, 'trial')} cancelled: {running} started, {cancelled - running} queued"
            self._print(self._with_time(self._escaped(text, TrialStatus.CANCELLED.tone)))
        super().__exit__(*error)

    def handle(self, event: FleetEvent) -> None:
        """Process one event. Returns immediately and never raises, whatever the event holds."""
        with self._lock:
            line = self._apply(event)
        if line is not None:
            self._print(line)

    def pulse(self) -> None:
        """Print what each busy worker does."""
        with self._lock:
            lines = [self._progress_line(row) for row in self._busy_rows()]
        for line in lines or [self.summary()]:
            self._print(line)

    def render(self) -> Group:
        """Return the run's state and what each busy worker does, cut to the console's size."""
        with self._lock:
            busy, max_rows = self._busy_rows(), max(1, self._console.height - LINES_AROUND_WORKERS)
            lines = [self.summary(), *map(self._worker_line, busy[:max_rows])]
        if len(busy) > max_rows:
            lines.append(self._escaped(f"+ {len(busy) - max_rows} more", "dim"))
        for line in lines:
            line.truncate(self._console.width, overflow="ellipsis")
        return Group("", *lines)

    def _busy_rows(self) -> list[WorkerRow]:
        return [row for row in self._rows.values() if row.trial_id is not None]

    def _worker_line(self, row: WorkerRow) -> Text:
        """Return what a busy worker does, with the time since the trial's start."""
        attempt = f" (attempt {row.attempt})" if row.attempt > 1 else ""
        elapsed = formatting.clock(self._clock() - row.since)
        return self._escaped(f"{self._name(row, row.trial_id)}{attempt}: {_progress_text(row)}, {elapsed}")

    def _apply(self, event: FleetEvent) -> Text | None:
        row = self._rows.setdefault(event.worker, WorkerRow(worker=event.worker))
        match event.kind:
            case EventType.STARTED | EventType.ATTACHED:
                self._release(row)
                row.trial_id, row.attempt, row.since = event.trial_id, event.attempt, self._clock()
                row.phase, row.progress = "starting", None
                row.is_attached = event.kind is EventType.ATTACHED
                attempt_text = f" (attempt {event.attempt})" if event.attempt > 1 else ""
                text = "still running, reattached" if event.kind is EventType.ATTACHED else f"started{attempt_text}"
                return self._event_line(row, text) if self._is_plain else None
            case EventType.PROGRESS:
                return self._on_progress(row, event.progress) if event.progress is not None else None
            case EventType.RETRYING:
                line = self._event_line(row, f"will be retried: {event.reason or 'no reason given'}", "yellow", event)
                self._release(row)
                return line
            case EventType.ENDED:
                return self._on_end(row, event)
            case EventType.WORKER_LOST:
                self._release(row)
                reason = event.reason or "no answer"
                named = reason.partition(":")[0]  # another worker if this one leads a gang, and is not lost itself
                is_leader = named != row.worker and named in self._rows
                text = f"waiting for {reason}" if is_leader else f"lost: {reason.removeprefix(f'{row.worker}: ')}"
                return self._event_line(row, text, "red", event)
            case EventType.CREDENTIALS_REJECTED:
                self._release(row)
                row.phase = NO_LOGIN
                return self._on_login_needed(row, event)
            case EventType.WORKER_BUSY:
                self._release(row)
                return self._event_line(row, f"waiting: {event.reason or 'another run'}", "yellow", event)
            case EventType.WORKER_DIAGNOSED:
                return self._event_line(row, f"still waiting: {event.reason or 'no answer'}", "yellow", event)
            case EventType.WORKER_FAULTY:
                return self._event_line(row, f"GPU fault: {event.reason}", "red", event)
            case EventType.WORKER_BACK:
                previous_phase, row.phase = row.phase, "idle"
                return (
                    self._on_login(row) if previous_phase == NO_LOGIN else self._event_line(row, "back", "green", event)
                )

    def _on_login_needed(self, row: WorkerRow, event: FleetEvent) -> Text | None:
        """Return one line for all workers together, because the cause is the operator's login."""
        was_logged_out, self._needs_login = self._needs_login, True
        text = f"no access: {event.reason}; running trials continue, and this run continues after you log in"
        return None if was_logged_out else self._event_line(row, text, "yellow", event)

    def _on_login(self, row: WorkerRow) -> Text | None:
        was_logged_out, self._needs_login = self._needs_login, False
        return self._event_line(row, "access restored: the run continues", "green") if was_logged_out else None

    def _on_progress(self, row: WorkerRow, progress: Progress) -> Text | None:
        is_new_phase = progress.phase != row.phase
        row.phase, row.progress = progress.phase, progress
        if math.isfinite(progress.elapsed_sec):  # in a resumed run a trial can be older than this view
            row.since = min(row.since, self._clock() - progress.elapsed_sec)
        return self._progress_line(row) if self._is_plain and is_new_phase else None

    def _progress_line(self, row: WorkerRow) -> Text:
        return self._event_line(row, _progress_text(row))

    def _on_end(self, row: WorkerRow, event: FleetEvent) -> Text | None:
        end = event.status
        if event.trial_id is not None and end is not None:
            self._ends[event.trial_id] = end
        if end is TrialStatus.CANCELLED:
            was_running = row.trial_id is not None and row.trial_id == event.trial_id
            self._cancelled_running += was_running
            if not event.may_still_run:
                if was_running:
                    self._release(row)
                return None  # one line at the end counts them
        label, style = (end.label, end.tone) if end is not None else ("ended", "")
        rate = row.progress.samples_per_sec if row.progress is not None else None
        parts = [label]
        if end is TrialStatus.SUCCEEDED and rate is not None:
            parts.append(f"{number(rate)} samples/s")
        if row.trial_id is not None and not (row.is_attached and row.progress is None):
            parts.append(f"in {formatting.clock(self._clock() - row.since)}")
        if event.reason and end is not TrialStatus.SUCCEEDED:
            parts.append(event.reason)
        line = self._event_line(row, ", ".join(parts), style, event)
        self._release(row)
        return line

    def _release(self, row: WorkerRow) -> None:
        row.trial_id, row.progress, row.phase = None, None, "idle"

    def summary(self) -> Text:
        ends = list(self._ends.values())
        cancelled = ends.count(TrialStatus.CANCELLED)
        failed = len(ends) - ends.count(TrialStatus.SUCCEEDED) - cancelled
        parts = [self._run_id, f"{len(ends)}/{len(self._planned)} trials ended"]
        parts += [f"{count} {label}" for count, label in ((failed, "failed"), (cancelled, "cancelled")) if count]
        parts.append(formatting.clock(self._clock() - self._started))
        return self._escaped((" · " if self._is_unicode() else " | ").join(parts), "bold red" if failed else "bold")

    def _name(self, row: WorkerRow, trial_id: str | None) -> str:
        """Return worker and trial, whose id contains the worker's name, too."""
        if trial_id is None:
            return row.worker
        planned = self._planned.get(trial_id)
        short = trial_id if planned is None else trial_id.replace(f".{planned.worker}", "", 1)
        return f"{row.worker} {short}"

    def _event_line(self, row: WorkerRow, text: str, style: str = "", event: FleetEvent | None = None) -> Text:
        trial_id = row.trial_id or (event.trial_id if event is not None else None)
        return self._with_time(self._escaped(f"{self._name(row, trial_id)}: "), self._escaped(text, style))

    def _is_unicode(self) -> bool:
        return self._console.encoding.startswith("utf")


def _progress_text(row: WorkerRow) -> str:
    text, progress = row.phase, row.progress
    if progress is not None:
        text += f" {progress.step}/{progress.steps}" if progress.step > 0 else ""
        text += f", {number(progress.samples_per_sec)} samples/s" if progress.samples_per_sec is not None else ""
    return text


def number(value: float | None) -> str:
    """Format a rate with three significant digits, or a dash if it is unknown."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
