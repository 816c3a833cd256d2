"""The ledger of a run: every planned trial reaches exactly one end, and it stays on disk.

`ledger.jsonl` is append-only; each line is written whole and fsynced before the fleet acts on it. A crash can tear the
last line at most; such a tail is ignored, and dropped by the next append. Everything else that does not fit (a second
end, a trial that was not planned, a damaged line) is an error.

    planned   trial_id                                     once each, before anything starts
    started   trial_id attempt worker folder               written before the job is, so that a resume finds it
    retried   trial_id attempt reason                      this attempt came to nothing; another will be made
    ended     trial_id attempt end reason                  the end; attempt is null where none ran
    restarted trial_id attempt step lost_sec workers usd   this attempt of a training goes on from `step`: what it cost
    reopened  trial_id changed                             a resumed run tries again what was LOST, PREEMPTED or
                                                           CANCELLED, or failed, with what is `changed` in its plan
"""

import datetime
import errno
import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bench.records.atomic_files import read_regular
from bench.records.result import TrialStatus
from remote.jobs.host_agent.util import sync_folder

MOST_BYTES = 256 << 20  # of a ledger; a thousand trials take a hundredth of it


class LedgerError(Exception):
    """The ledger cannot be read or written, or an event does not fit the ones before it."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a trial: the job's folder on a worker. `reason` is set once it came to nothing."""

    number: int
    worker: str
    folder: str
    reason: str | None = None


@dataclass(kw_only=True)
class Entry:
    """One planned trial. `winner` is the attempt whose outcome became the end, if any ran.

    `spent` counts the attempts made before the trial was last reopened; `restarts` has the attempts of a training that
    went on from a checkpoint.
    """

    attempts: list[Attempt] = field(default_factory=list)
    end: TrialStatus | None = None
    reason: str | None = None
    winner: Attempt | None = None
    spent: int = 0
    restarts: set[int] = field(default_factory=set)

    def attempt(self, number: int) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.number == number), None)


class Ledger:
    """The append-only record of one run. Safe to use from several threads; one process at a time holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self._lock = threading.RLock()
        self._torn_at: int | None = None
        self._load()

    @classmethod
    def create(cls, path: Path, trial_ids: Iterable[str]) -> Self:
        """Start the ledger of a new run, or take up one that a crash left with part of its plan written."""
        ledger = cls(path)
        for trial_id in trial_ids:
            if trial_id not in ledger.entries:
                ledger._append("planned", trial_id)
        return ledger

    # `at`: seconds since 1970 of an event that is learned of later; None: now.

    def started(
        self, trial_id: str, attempt: int, worker: str, folder: str, workers: int = 1, *, at: float | None = None
    ) -> None:
        """`workers` is how many run this attempt together."""
        more = {"workers": workers} if workers > 1 else {}
        self._append("started", trial_id, at, attempt=attempt, worker=worker, folder=folder, **more)

    def retried(self, trial_id: str, attempt: int, reason: str, *, at: float | None = None) -> None:
        self._append("retried", trial_id, at, attempt=attempt, reason=reason)

    def ended(
        self,
        trial_id: str,
        end: TrialStatus,
        reason: str | None,
        attempt: int | None = None,
        *,
        at: float | None = None,
    ) -> bool:
        """Write the trial's end; False (and nothing written) when it has one already: the first end stands.

        `attempt` is the one whose outcome this is; None where none ran.
        """
        with self._lock:
            if self._entry(trial_id).end is not None:
                return False
            self._append("ended", trial_id, at, attempt=attempt, end=end.value, reason=reason)
            return True

    def restarted(self, trial_id: str, attempt: int, **cost: float | None) -> None:
        """An attempt of a training has taken its first step: `step`, `lost_sec`, `workers` and `usd`, None: unknown."""
        self._append("restarted", trial_id, attempt=attempt, **cost)

    def has_restarted(self, trial_id: str, attempt: int) -> bool:
        with self._lock:
            return attempt in self._entry(trial_id).restarts

    def reopened(self, trial_id: str, changed: Sequence[str] = ()) -> None:
        """`changed`: in words, what is another now than in the plan that ended."""
        more = {"changed": list(changed)} if changed else {}
        self._append("reopened", trial_id, None, **more)

    def open_trials(self) -> list[str]:
        """The planned trials without an end, in plan order."""
        with self._lock:
            return [trial_id for trial_id, entry in self.entries.items() if entry.end is None]

    def is_open(self, trial_id: str) -> bool:
        with self._lock:
            return self._entry(trial_id).end is None

    def needs_work(self, trial_id: str) -> bool:
        """Whether a resumed run has something to do: no end yet, not even planned, or an end worth another try."""
        with self._lock:
            entry = self.entries.get(trial_id)
            return entry is None or entry.end is None or entry.end.is_resumable

    def _load(self) -> None:
        try:
            content = read_regular(self.path, most_bytes=MOST_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read: {error.strerror}") from None
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                event = json.loads(line)
                _check_types(event)
                self._check(event)
                self._take(event)
            except (ValueError, KeyError, TypeError, RecursionError, LedgerError) as error:
                raise LedgerError(f"{self.path}: line {number}: {error}; the ledger is damaged") from None
        # The tail of a write that a crash cut short was never acted on. The next append removes it, not this: reading
        # the ledger of a run that goes on must not change it.
        self._torn_at = whole if whole < len(content) else None

    def _append(self, event: str, trial_id: str, at: float | None = None, **more: Any) -> None:
        document = {"event": event, "trial_id": trial_id, **more}
        with self._lock:
            self._check(document)
            moment = datetime.datetime.fromtimestamp(time.time() if at is None else at, datetime.timezone.utc)
            stamp = moment.isoformat(timespec="milliseconds")
            self._write((json.dumps({"time": stamp, **document}, ensure_ascii=False) + "\n").encode())
            self._take(document)

    def _write(self, line: bytes) -> None:
        try:
            # A ledger that was moved or deleted during a run is not started again with its next line.
            create = 0 if self.entries else os.O_CREAT
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | create, 0o644)
            try:
                if self._torn_at is not None:
                    os.ftruncate(handle, self._torn_at)
                    self._torn_at = None
                size = os.fstat(handle).st_size
                try:
                    if os.write(handle, line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(handle)  # where a network file system says that it is full
                    if create:
                        sync_folder(self.path.parent)
                except OSError:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _entry(self, trial_id: str) -> Entry:
        if trial_id not in self.entries:
            raise LedgerError(f"trial {trial_id!r} was never planned")
        return self.entries[trial_id]

    def _check(self, event: dict[str, Any]) -> None:
        """Raise LedgerError where `event` does not fit the ones before it."""
        kind, trial_id, number = event["event"], event["trial_id"], event.get("attempt")
        if kind == "planned":
            if trial_id in self.entries:
                raise LedgerError(f"trial {trial_id!r} is planned twice")
            return
        entry = self._entry(trial_id)
        if kind not in ("started", "retried", "restarted", "ended", "reopened"):
            raise LedgerError(f"unknown event {kind!r}")
        if kind == "reopened":
            is_changed = bool(event.get("changed")) and entry.end is not TrialStatus.SUCCEEDED
            if entry.end is None or not (entry.end.is_resumable or is_changed):
                raise LedgerError(f"trial {trial_id!r} cannot be reopened: its end is {entry.end}")
        elif entry.end is not None:
            raise LedgerError(f"trial {trial_id!r} has ended as {entry.end.value}; {kind} comes too late")
        known = number is not None and entry.attempt(number) is not None
        if kind == "started" and known:
            raise LedgerError(f"trial {trial_id!r}: attempt {number} is started twice")
        if kind in ("retried", "restarted", "ended") and number is not None and not known:
            raise LedgerError(f"trial {trial_id!r}: attempt {number} was never started")

    def _take(self, event: dict[str, Any]) -> None:
        """Take in an event that fits."""
        kind, number, entry = event["event"], event.get("attempt"), self.entries.setdefault(event["trial_id"], Entry())
        if kind == "started":
            entry.attempts.append(Attempt(number=event["attempt"], worker=event["worker"], folder=event["folder"]))
        elif kind == "retried":
            reason = event["reason"]
            entry.attempts = [
                replace(attempt, reason=reason) if attempt.number == number else attempt for attempt in entry.attempts
            ]
        elif kind == "restarted":
            entry.restarts.add(event["attempt"])
        elif kind == "ended":
            entry.end, entry.reason = TrialStatus(event["end"]), event["reason"]
            entry.winner = None if number is None else entry.attempt(number)
        elif kind == "reopened":
            entry.end = entry.reason = entry.winner = None
            entry.spent = len(entry.attempts)


_TEXTS = ("event", "trial_id", "worker", "folder")


def _check_types(event: Any) -> None:
    """Of a line as it was read: whoever uses an entry later need not doubt what is in it."""
    if not isinstance(event, dict):
        raise TypeError("not an object")
    for name in {*_TEXTS, "reason", "attempt"} & event.keys():
        kind: type | tuple[type, ...] = int if name == "attempt" else str
        is_absent = event[name] is None and name not in _TEXTS
        if not is_absent and (not isinstance(event[name], kind) or isinstance(event[name], bool)):
            raise TypeError(f"{name} is of the wrong type")
