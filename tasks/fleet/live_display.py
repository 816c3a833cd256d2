"""What is shown while a fleet works: a live table on a terminal, plain lines elsewhere.

Events may come from many threads and hold any text a host has sent, so every word is escaped and no markup is read from
them. The table is drawn at most four times a second. Plain lines are few: a trial's start, its phases, its end, and one
sign of life a minute.

Rates on screen are those of the moment; the report has the measured ones.
"""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial, Progress
from remote.fleet.events import EventType, FleetEvent
from tasks.errors import one_line

FRAMES_PER_SEC = 4
PLAIN_SIGN_OF_LIFE_SEC = 60.0
BAR_WIDTH = 8
LINES_AROUND_TABLE = 6  # a blank one, run, cost, column titles, "and n more", the cursor's own
UNKNOWN, SHUT_OUT = "-", "shut out"
ENDED_AS: dict[TrialStatus, tuple[str, str]] = {
    TrialStatus.SUCCEEDED: ("done", "green"),
    TrialStatus.CANCELLED: ("cancelled", "yellow"),
}


@dataclass(kw_only=True)
class WorkerRow:
    """What one worker is doing. `since` is when its trial started, on the view's clock."""

    worker: str
    trial_id: str | None = None
    attempt: int = 1
    since: float = 0.0
    phase: str = "idle"
    progress: Progress | None = None
    spoke_at: float = 0.0
    began_unseen: bool = False  # attached: `since` is right only once the trial has reported


class View:
    """What is drawn again and again on a terminal, and said in plain lines elsewhere; a context manager.

    `plain` forces plain lines. A subclass has `render`, what is drawn, and `last`, what is said at the end.
    """

    def __init__(self, console: Console | None, plain: bool, clock: Callable[[], float]) -> None:
        self._console = console if console is not None else Console(file=sys.stdout, highlight=False)
        self._is_plain = plain or not self._console.is_terminal or os.environ.get("TERM") == "dumb"
        self._clock, self._started = clock, clock()
        # Never held while printing: Live's thread holds Live's lock while it waits for this one.
        self._lock = threading.Lock()
        self._live: Live | None = None

    def render(self) -> RenderableType:
        raise NotImplementedError

    def summary(self) -> Text:
        raise NotImplementedError

    def __enter__(self) -> Self:
        if not self._is_plain:
            self._live = Live(
                get_renderable=self.render,
                console=self._console,
                refresh_per_second=FRAMES_PER_SEC,
                transient=True,  # the lines that were said stay on screen
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        self._say(self.summary())

    def _stamped(self, *words: Text | str) -> Text:
        return Text.assemble((f"[{duration(self._clock() - self._started)}]", "dim"), " ", *words)

    def _text(self, words: str, style: str = "") -> Text:
        encoding = self._console.encoding
        return Text(one_line(words).encode(encoding, "backslashreplace").decode(encoding), style=style)

    def _say(self, line: Text) -> None:
        try:
            # No wrapping: a pipe has no width, and a line cut at 80 columns would be lost to the log's reader.
            self._console.print(line, soft_wrap=True)
        except (OSError, SystemExit):
            # The reader is gone (`inv bench | head`); rich turns a broken pipe into SystemExit. The run goes on.
            self._console.quiet = True


class LiveView(View):
    """Shows one run; use as a context manager and hand every event to `handle`, from any thread.

    `expected_sec` maps a trial id to the seconds that its attempt should take, None where unknown.
    `price_usd_per_gpu_hour` is None where no price is set, and then no cost is shown.
    """

    def __init__(
        self,
        *,
        run_id: str,
        planned: Sequence[PlannedTrial],
        workers: Sequence[str],
        expected_sec: Mapping[str, float | None],
        price_usd_per_gpu_hour: float | None,
        console: Console | None = None,
        plain: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(console, plain, clock)
        self._run_id = run_id
        self._planned = {trial.trial_id: trial for trial in planned}
        self._expected_sec = dict(expected_sec)
        self._price = price_usd_per_gpu_hour
        self._rows = {worker: WorkerRow(worker=worker) for worker in workers}
        self._ends: dict[str, TrialStatus] = {}
        self._busy_sec = 0.0
        self._is_shut_out = False

    def __enter__(self) -> Self:
        self._started = self._clock()
        if self._is_plain:
            self._say(self.summary())
        return super().__enter__()

    def handle(self, event: FleetEvent) -> None:
        """Take one event. Returns at once and raises nothing, whatever the event holds."""
        with self._lock:
            line = self._take(event)
        if line is not None:
            self._say(line)

    def render(self) -> Group:
        """The header and the table, as they are now, cut to the console's height."""
        with self._lock:
            return Group("", self.summary(), self._table())

    def _take(self, event: FleetEvent) -> Text | None:
        row = self._rows.setdefault(event.worker, WorkerRow(worker=event.worker))
        match event.happening:
            case EventType.STARTED | EventType.ATTACHED:
                self._release(row)
                row.trial_id, row.attempt, row.since = event.trial_id, event.attempt, self._clock()
                row.phase, row.progress, row.spoke_at = "starting", None, self._clock()
                row.began_unseen = event.happening is EventType.ATTACHED
                again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
                words = "still there, followed again" if event.happening is EventType.ATTACHED else f"started{again}"
                return self._line(row, words) if self._is_plain else None
            case EventType.PROGRESS:
                return self._advance(row, event.progress) if event.progress is not None else None
            case EventType.RETRYING:
                line = self._line(row, f"will be tried again: {event.reason or 'no reason given'}", "yellow", event)
                self._release(row)
                return line
            case EventType.ENDED:
                return self._end(row, event)
            case EventType.WORKER_LOST:
                self._release(row)
                row.phase = "lost"
                return self._line(row, self._loss(row, event.reason or "no sign of life"), "red", event)
            case EventType.SHUT_OUT:
                self._release(row)
                row.phase = SHUT_OUT
                return self._shut_out(row, event)
            case EventType.WORKER_BUSY:
                self._release(row)
                row.phase = "waiting"
                return self._line(row, f"waits for its turn: {event.reason or 'another run'}", "yellow", event)
            case EventType.WORKER_BACK:
                was, row.phase = row.phase, "idle"
                return self._let_in(row) if was == SHUT_OUT else self._line(row, "back", "green", event)

    def _loss(self, row: WorkerRow, reason: str) -> str:
        """What is wrong with a worker; of a gang, the one that leads is told which other it waits for."""
        about, _, rest = reason.partition(": ")
        if about != row.worker and about in self._rows:
            return f"waits for {reason}"
        return f"lost: {rest if about == row.worker else reason}"

    def _shut_out(self, row: WorkerRow, event: FleetEvent) -> Text | None:
        """One line, however many workers: none of them has anything to do with it."""
        was, self._is_shut_out = self._is_shut_out, True
        words = f"cannot be asked: {event.reason}; what runs goes on, and so does this run once you are let in"
        return None if was else self._line(row, words, "yellow", event)

    def _let_in(self, row: WorkerRow) -> Text | None:
        was, self._is_shut_out = self._is_shut_out, False
        return self._line(row, "can be asked again: the run goes on", "green") if was else None

    def _advance(self, row: WorkerRow, progress: Progress) -> Text | None:
        is_new_phase = progress.phase != row.phase
        row.phase, row.progress = progress.phase, progress
        if math.isfinite(progress.elapsed_sec):  # a resumed run meets trials that began before it did
            row.since = min(row.since, self._clock() - progress.elapsed_sec)
        is_quiet = self._clock() - row.spoke_at < PLAIN_SIGN_OF_LIFE_SEC
        if not self._is_plain or (is_quiet and not is_new_phase):
            return None
        row.spoke_at = self._clock()
        rate = f", {number(progress.samples_per_sec)} samples/s" if progress.samples_per_sec is not None else ""
        steps = f" {progress.step}/{progress.steps}" if progress.step > 0 else ""
        return self._line(row, f"{progress.phase}{steps}{rate}")

    def _end(self, row: WorkerRow, event: FleetEvent) -> Text:
        end = event.end
        if event.trial_id is not None and end is not None:
            self._ends[event.trial_id] = end
        word, style = ENDED_AS.get(end, (end.value, "red")) if end is not None else ("ended", "")
        rate = row.progress.samples_per_sec if row.progress is not None else None
        parts = [word]
        if end is TrialStatus.SUCCEEDED and rate is not None:
            parts.append(f"{number(rate)} samples/s")
        if row.trial_id is not None and not (row.began_unseen and row.progress is None):
            parts.append(f"in {duration(self._clock() - row.since)}")
        if event.reason and end is not TrialStatus.SUCCEEDED:
            parts.append(event.reason.removeprefix(f"{word} "))  # of "cancelled by the operator"
        line = self._line(row, ", ".join(parts), style, event)
        self._release(row)
        return line

    def _release(self, row: WorkerRow) -> None:
        if row.trial_id is not None:
            self._busy_sec += max(0.0, self._clock() - row.since)
        row.trial_id, row.progress, row.phase = None, None, "idle"

    def summary(self) -> Text:
        ends = list(self._ends.values())
        cancelled = ends.count(TrialStatus.CANCELLED)
        failed = len(ends) - ends.count(TrialStatus.SUCCEEDED) - cancelled
        parts = [self._run_id, f"{len(ends)}/{len(self._planned)} trials ended"]
        parts += [f"{count} {word}" for count, word in ((failed, "failed"), (cancelled, "cancelled")) if count]
        parts.append(duration(self._clock() - self._started))
        remaining = self._remaining_sec()
        if remaining is not None and len(ends) < len(self._planned):
            parts.append(f"about {duration(remaining)} left")
        header = self._text((" · " if self._speaks_unicode() else " | ").join(parts), "bold red" if failed else "bold")
        if self._price is not None:
            cost = f"cost so far {dollars(self._cost_usd())}, at {dollars(self._price)} per GPU hour"
            header = Text("\n").join([header, self._text(cost)])
        return header

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("worker", no_wrap=True, overflow="ellipsis", max_width=14)
        table.add_column("trial", no_wrap=True, overflow="ellipsis", ratio=1, min_width=8)
        table.add_column("phase", no_wrap=True, width=8)
        table.add_column("step", no_wrap=True, width=BAR_WIDTH + 8)
        for title in ("samples/s", "elapsed", "left"):
            table.add_column(title, no_wrap=True, justify="right")
        if self._price is not None:
            table.add_column("cost", no_wrap=True, justify="right")
        room = max(1, self._console.height - LINES_AROUND_TABLE)
        rows = list(self._rows.values())
        if len(rows) > room:  # show what moves; where all have room, each keeps its place
            rows.sort(key=lambda row: row.trial_id is None)
        for row in rows[:room]:
            style = "red" if row.phase == "lost" else "dim" if row.trial_id is None else ""
            table.add_row(*(self._text(cell, style) for cell in self._cells(row)))
        if len(rows) > room:
            busy = sum(row.trial_id is not None for row in rows[room:])
            table.add_row(self._text(f"+ {len(rows) - room} more", "dim"), self._text(f"{busy} busy", "dim"))
        return table

    def _cells(self, row: WorkerRow) -> list[str]:
        cells = [row.worker, UNKNOWN, row.phase, "", UNKNOWN, UNKNOWN, UNKNOWN]
        if row.trial_id is None:
            return [*cells, UNKNOWN] if self._price is not None else cells
        elapsed = self._clock() - row.since
        expected = self._expected_sec.get(row.trial_id)
        cells[1] = self._name(row.trial_id) + (f" (attempt {row.attempt})" if row.attempt > 1 else "")
        if row.progress is not None:
            cells[3] = self._bar(row.progress.step, row.progress.steps)
            cells[4] = number(row.progress.samples_per_sec)
        cells[5] = duration(elapsed)
        if expected is not None:
            # Later than expected, say by how much: a zero that stays would look like a view that hangs.
            cells[6] = duration(expected - elapsed) if elapsed <= expected else f"+{duration(elapsed - expected)}"
        return [*cells, dollars(elapsed / 3600 * self._price)] if self._price is not None else cells

    def _bar(self, step: int, steps: int) -> str:
        full, empty = ("━", "╌") if self._speaks_unicode() else ("#", ".")
        done = round(BAR_WIDTH * max(0, min(step, steps)) / steps) if steps > 0 else 0
        return f"{full * done}{empty * (BAR_WIDTH - done)} {step}/{steps}"

    def _remaining_sec(self) -> float | None:
        """How long the run still takes if every trial takes its expected time; None where one of these is unknown."""
        of_worker = dict.fromkeys(self._rows, 0.0)
        anywhere = 0.0
        running = {row.trial_id: row for row in self._rows.values() if row.trial_id is not None}
        for trial_id, trial in self._planned.items():
            expected = self._expected_sec.get(trial_id)
            if trial_id in self._ends:
                continue
            if expected is None:
                return None
            row = running.get(trial_id)
            if row is not None:
                of_worker[row.worker] += max(0.0, expected - (self._clock() - row.since))
            elif trial.worker is not None:
                of_worker[trial.worker] = of_worker.get(trial.worker, 0.0) + expected
            else:
                anywhere += expected
        if not of_worker:
            return None
        return max(max(of_worker.values()), (sum(of_worker.values()) + anywhere) / len(of_worker))

    def _cost_usd(self) -> float:
        running = sum(self._clock() - row.since for row in self._rows.values() if row.trial_id is not None)
        return (self._busy_sec + running) / 3600 * (self._price or 0.0)

    def _name(self, trial_id: str) -> str:
        # With --spread replicate an id contains its worker's name, which the row has already.
        planned = self._planned.get(trial_id)
        if planned is None or planned.worker is None:
            return trial_id
        return trial_id.replace(f".{planned.worker}", "", 1)

    def _line(self, row: WorkerRow, words: str, style: str = "", event: FleetEvent | None = None) -> Text:
        trial_id = row.trial_id or (event.trial_id if event is not None else None)
        name = f" {self._name(trial_id)}" if trial_id is not None else ""
        return self._stamped(self._text(f"{row.worker}{name}: "), self._text(words, style))

    def _speaks_unicode(self) -> bool:
        return self._console.encoding.startswith("utf")


def duration(seconds: float) -> str:
    """Seconds as 0:42, 12:05 or 3:07:09."""
    whole = max(0, round(seconds)) if math.isfinite(seconds) else 0
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def number(value: float | None) -> str:
    """A rate with three significant digits, or a dash where it is not known."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def dollars(value: float) -> str:
    """US dollars; small amounts keep four decimals, because a trial costs cents."""
    return f"${value:.2f}" if value >= 1 else f"${value:.4f}"
