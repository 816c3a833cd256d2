"""Live display of a run: lines about what happened, and what runs now, which a terminal shows all the time.

Events come from many threads and may hold any text that a host has sent, so their text is escaped and never parsed as
markup. Elsewhere a trial's start and its phases are lines, too, and after half a minute of silence what is running.

Displayed rates are momentary; the report has the measured ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rich.console import Group
from rich.text import Text

from bench.records.run import PlannedTrial, Progress
from bench.records.status import TrialStatus
from remote.fleet.events import EventType, FleetEvent
from reports import formatting
from tasks.cli.waiting import View

LINES_AROUND_WORKERS = 4  # blank line, run, "+ n more", the cursor's line
# Of an event about a worker: the text before its reason, its style, and whether the worker leaves its trial.
WORKER_EVENTS = {
    EventType.RETRYING: ("will be retried", "yellow", True),
    EventType.WORKER_BUSY: ("waiting", "yellow", True),
    EventType.WORKER_DIAGNOSED: ("still waiting", "yellow", False),
    EventType.WORKER_FAULTY: ("GPU fault", "red", False),
}


@dataclass(kw_only=True)
class WorkerRow:
    """The state of one worker. `since` is the start of its trial on the view's clock; None if it is unknown."""

    worker: str
    trial_id: str | None = None
    attempt: int = 1
    since: float | None = None
    progress: Progress | None = None
    has_login: bool = True

    @property
    def text(self) -> str:
        """Describe the work of a busy worker."""
        progress = self.progress
        if progress is None:
            return "starting"
        step = f" {progress.step}/{progress.steps}" if progress.step > 0 else ""
        rate = (
            f", {formatting.number(progress.samples_per_sec)} samples/s" if progress.samples_per_sec is not None else ""
        )
        return f"{progress.phase}{step}{rate}"


class FleetView(View):
    """Live display of one run: pass every event to `handle`, from any thread. Use as a context manager."""

    def __init__(self, *, run_id: str, planned: Sequence[PlannedTrial], workers: Sequence[str], **view: Any) -> None:
        super().__init__(**view)
        self._run_id = run_id
        self._planned = {trial.trial_id: trial for trial in planned}
        self._rows = {worker: WorkerRow(worker=worker) for worker in workers}
        self._ends: dict[str, TrialStatus] = {}

    def __enter__(self) -> Self:
        self._started = self._clock()
        if self._is_plain:
            self._print(self.summary())
        return super().__enter__()

    def handle(self, event: FleetEvent) -> None:
        """Process one event. Returns immediately and never raises, whatever the event holds."""
        with self._lock:
            line = self._apply(event)
        if line is not None:
            self._print(line)

    def pulse(self) -> None:
        """Print what each busy worker does."""
        with self._lock:
            lines = [self._event_line(row, row.text) for row in self._busy_rows()]
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
        elapsed = "" if row.since is None else f", {formatting.clock(self._clock() - row.since)}"
        return self._escaped(f"{self._name(row, row.trial_id)}{attempt}: {row.text}{elapsed}")

    def _apply(self, event: FleetEvent) -> Text | None:
        row = self._rows.setdefault(event.worker, WorkerRow(worker=event.worker))
        match event.kind:
            case EventType.STARTED | EventType.ATTACHED:
                is_new = event.kind is EventType.STARTED
                row.trial_id, row.attempt, row.progress = event.trial_id, event.attempt, None
                row.since = self._clock() if is_new else None
                attempt_text = f" (attempt {event.attempt})" if event.attempt > 1 else ""
                text = f"started{attempt_text}" if is_new else "still running, reattached"
                return self._event_line(row, text) if self._is_plain else None
            case EventType.PROGRESS:
                return self._on_progress(row, event.progress) if event.progress is not None else None
            case EventType.ENDED:
                return self._on_end(row, event)
            case EventType.WORKER_LOST:
                row.trial_id = None
                reason = event.reason or "no answer"
                named = reason.partition(":")[0]  # another worker if this one leads a gang, and is not lost itself
                is_leader = named != row.worker and named in self._rows
                text = f"waiting for {reason}" if is_leader else f"lost: {reason.removeprefix(f'{row.worker}: ')}"
                return self._event_line(row, text, "red", event)
            case EventType.CREDENTIALS_REJECTED:  # one line for all workers: the cause is the operator's login
                is_first = self._has_login()
                row.trial_id, row.has_login = None, False
                text = f"no access: {event.reason}; running trials continue, and this run continues after you log in"
                return self._event_line(row, text, "yellow", event) if is_first else None
            case EventType.WORKER_BACK:
                had_login, row.has_login = row.has_login, True
                text = "back" if had_login else "access restored: the run continues"
                return self._event_line(row, text, "green", event) if had_login or self._has_login() else None
            case _:
                label, style, leaves = WORKER_EVENTS[event.kind]
                line = self._event_line(row, f"{label}: {event.reason or 'no reason given'}", style, event)
                row.trial_id = None if leaves else row.trial_id
                return line

    def _has_login(self) -> bool:
        return all(row.has_login for row in self._rows.values())

    def _on_progress(self, row: WorkerRow, progress: Progress) -> Text | None:
        is_new_phase = row.progress is None or progress.phase != row.progress.phase
        row.progress = progress
        if math.isfinite(progress.elapsed_sec):  # in a resumed run a trial can be older than this view
            began = self._clock() - progress.elapsed_sec
            row.since = began if row.since is None else min(row.since, began)
        return self._event_line(row, row.text) if self._is_plain and is_new_phase else None

    def _on_end(self, row: WorkerRow, event: FleetEvent) -> Text | None:
        end = event.status
        if event.trial_id is not None and end is not None:
            self._ends[event.trial_id] = end
        if end is TrialStatus.CANCELLED and not event.may_still_run:  # the run's line counts them
            row.trial_id = None if row.trial_id == event.trial_id else row.trial_id
            return None
        parts, style = ([end.label], end.tone) if end is not None else (["ended"], "")
        rate = row.progress.samples_per_sec if row.progress is not None and row.trial_id is not None else None
        if end is TrialStatus.SUCCEEDED and rate is not None:
            parts.append(f"{formatting.number(rate)} samples/s")
        if row.trial_id is not None and row.since is not None:
            parts.append(f"in {formatting.clock(self._clock() - row.since)}")
        if event.reason and end is not TrialStatus.SUCCEEDED:
            parts.append(event.reason)
        line = self._event_line(row, ", ".join(parts), style, event)
        row.trial_id = None
        return line

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
