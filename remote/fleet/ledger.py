"""The ledger of a run: every planned trial has exactly one end, stored durably.

`ledger.jsonl` is append-only; each line is written at once and fsynced before the fleet acts on it. A crash can
truncate only the last line; a truncated line is ignored, and removed by the next append. Everything else that is
inconsistent (a second end, a trial that was not planned, a damaged line) is an error.

    planned   trial_id                                     once for each trial, before anything starts
    started   trial_id attempt worker folder               written before the job starts, so that a resume finds it
    retried   trial_id attempt reason reason_code          the attempt has no result; another one follows
    ended     trial_id attempt end reason reason_code      the trial's status; attempt is null if none ran
              remedy
    restarted trial_id attempt step lost_sec workers usd   the attempt resumed a training from `step`, at this cost
    reopened  trial_id                                     a resumed run tries a trial again that did not succeed

Every line also has `time`, and the `version` of the software that wrote it.
"""

import datetime
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.checksummed import ResultError, refuse_other_version
from bench.records.status import Failure, Outcome, ReasonCode, TrialStatus
from bench.records.version import VERSION
from remote.agent.shared.files import sync_folder

_logger = logging.getLogger(__name__)

MAX_LEDGER_BYTES = 256 << 20  # a thousand trials take a hundredth of it


class LedgerError(Failure):
    """A ledger that cannot be read or written, or an event inconsistent with earlier ones."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of a trial: the job's folder on a worker.

    `reason` is set once it has ended without a result, or with one that no longer counts, as the trial was reopened.
    """

    number: int
    worker: str
    folder: str
    reason: str | None = None
    reason_code: ReasonCode | None = None

    @property
    def has_failed(self) -> bool:
        """True if its result ended the trial, which was reopened since: that result does not end it again."""
        return self.reason_code is not None and self.reason_code.status.is_failure


@dataclass(kw_only=True)
class Entry:
    """One planned trial. `outcome` is None until it ends; `winner` is the attempt that ended it, if any ran.

    `attempts_before_reopening` counts the attempts before the trial was last reopened. `restarted_attempts` are the
    attempts of a training that resumed from a checkpoint.
    """

    attempts: list[Attempt] = field(default_factory=list)
    outcome: Outcome | None = None
    winner: Attempt | None = None
    attempts_before_reopening: int = 0
    restarted_attempts: set[int] = field(default_factory=set)

    @property
    def status(self) -> TrialStatus | None:
        return None if self.outcome is None else self.outcome.status

    @property
    def reason(self) -> str | None:
        """Reason and remedy of the end in one line, for people."""
        return None if self.outcome is None else self.outcome.text

    def find_attempt(self, number: int) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.number == number), None)


class Ledger:
    """The append-only log of one run. Safe to use from several threads of one process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, Entry] = {}
        self._lock = threading.RLock()
        self._torn_offset: int | None = None
        self._load()

    @classmethod
    def create(cls, path: Path, trial_ids: Iterable[str]) -> Self:
        """Create the ledger of a new run, or complete one that a crash left with only part of its plan."""
        ledger = cls(path)
        for trial_id in trial_ids:
            if trial_id not in ledger.entries:
                ledger._append("planned", trial_id)
        return ledger

    # `at` is the Unix time of an event that is recorded later than it happened; None: now.

    def record_start(self, trial_id: str, attempt: int, worker: str, folder: str, *, at: float | None = None) -> None:
        """Record the start of an attempt."""
        self._append("started", trial_id, at, attempt=attempt, worker=worker, folder=folder)

    def record_retry(self, trial_id: str, attempt: int, outcome: Outcome, *, at: float | None = None) -> None:
        """Record that an attempt ended without a result, and that another one follows."""
        fields = {"reason": outcome.reason or outcome.status.value, "reason_code": outcome.reason_code}
        self._append("retried", trial_id, at, attempt=attempt, **fields)

    def record_end(
        self,
        trial_id: str,
        outcome: Outcome,
        attempt: int | None = None,
        *,
        at: float | None = None,
    ) -> bool:
        """Record the trial's end. Returns False and writes nothing if the trial has ended: the first end counts.

        `attempt` is the attempt that ended the trial; None if none ran.
        """
        with self._lock:
            if self._entry(trial_id).status is not None:
                return False
            cause = {"reason": outcome.reason, "reason_code": outcome.reason_code, "remedy": outcome.remedy}
            self._append("ended", trial_id, at, attempt=attempt, end=outcome.status.value, **cause)
            return True

    def record_restart(self, trial_id: str, attempt: int, **cost: float | None) -> None:
        """Record a resumed training's first step. `cost` has `step`, `lost_sec` and `usd`; None: unknown."""
        self._append("restarted", trial_id, attempt=attempt, **cost)

    def reopen(self, trial_id: str) -> None:
        """Reopen a trial that has ended without success."""
        self._append("reopened", trial_id)

    def open_trials(self) -> list[str]:
        """List the planned trials that have not ended, in plan order."""
        with self._lock:
            return [trial_id for trial_id, entry in self.entries.items() if entry.status is None]

    def is_open(self, trial_id: str) -> bool:
        with self._lock:
            return self._entry(trial_id).status is None

    def running_workers(self) -> set[str]:
        """Return the workers with an attempt of which no end is known, at a trial that has not ended."""
        with self._lock:
            open_entries = [entry for entry in self.entries.values() if entry.status is None]
            return {each.worker for entry in open_entries for each in entry.attempts if each.reason is None}

    def _load(self) -> None:
        try:
            content = read_regular(self.path, max_bytes=MAX_LEDGER_BYTES)
        except FileNotFoundError:
            return
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be read: {error.strerror}") from error
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                event = schema.parse_object(line)
                if number == 1:
                    refuse_other_version(str(self.path), event.get("version"))
                _check_types(event)
                self._validate(event)
                self._apply(event)
            except ResultError as error:
                raise LedgerError.from_error(error) from error
            except (ValueError, KeyError, TypeError, LedgerError) as error:
                raise LedgerError(
                    f"{self.path}: line {number} is damaged: {error}", remedy="restore the file"
                ) from error
        # The fleet never acted on a line that a crash truncated. The next append removes it; reading must not, because
        # the run may be in progress.
        self._torn_offset = whole if whole < len(content) else None

    def _append(self, event: str, trial_id: str, at: float | None = None, **fields: Any) -> None:
        document = {"event": event, "trial_id": trial_id, **fields}
        with self._lock:
            self._validate(document)
            utc = datetime.datetime.fromtimestamp(time.time() if at is None else at, datetime.timezone.utc)
            timestamp = utc.isoformat(timespec="milliseconds")
            line = json.dumps(schema.to_json({"time": timestamp, "version": VERSION, **document}), ensure_ascii=False)
            self._write(f"{line}\n".encode())
            self._apply(document)
        _logger.info("%s", json.dumps(document, ensure_ascii=False, default=str))

    def _write(self, line: bytes) -> None:
        try:
            # Do not create a new ledger if it was moved or deleted during the run.
            create = 0 if self.entries else os.O_CREAT
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | create, 0o644)
            try:
                if self._torn_offset is not None:
                    os.ftruncate(handle, self._torn_offset)
                    self._torn_offset = None
                size = os.fstat(handle).st_size
                try:
                    if os.write(handle, line) != len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(handle)  # a full network file system reports its error here
                    if create:
                        sync_folder(self.path.parent)
                except OSError:
                    os.ftruncate(handle, size)
                    raise
            finally:
                os.close(handle)
        except OSError as error:
            raise LedgerError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _entry(self, trial_id: str) -> Entry:
        if trial_id not in self.entries:
            raise LedgerError(f"trial {trial_id!r} was never planned")
        return self.entries[trial_id]

    def _validate(self, event: dict[str, Any]) -> None:
        """Raise LedgerError if `event` is inconsistent with the earlier ones."""
        kind, trial_id, number = event["event"], event["trial_id"], event.get("attempt")
        if kind == "planned":
            if trial_id in self.entries:
                raise LedgerError(f"trial {trial_id!r} is planned twice")
            return
        entry = self._entry(trial_id)
        if kind not in ("started", "retried", "restarted", "ended", "reopened"):
            raise LedgerError(f"unknown event {kind!r}")
        if kind == "reopened":
            if entry.status in (None, TrialStatus.SUCCEEDED):
                raise LedgerError(f"trial {trial_id!r} cannot be reopened: its status is {entry.status}")
        elif entry.status is not None:
            raise LedgerError(f"trial {trial_id!r} has already ended as {entry.status.value}: {kind!r} is not allowed")
        is_known = number is not None and entry.find_attempt(number) is not None
        if kind == "started" and is_known:
            raise LedgerError(f"trial {trial_id!r}: attempt {number} is started twice")
        if kind in ("retried", "restarted", "ended") and number is not None and not is_known:
            raise LedgerError(f"trial {trial_id!r}: attempt {number} was never started")

    def _apply(self, event: dict[str, Any]) -> None:
        """Apply a validated event to the entries."""
        kind, number, entry = event["event"], event.get("attempt"), self.entries.setdefault(event["trial_id"], Entry())
        if kind == "started":
            entry.attempts.append(Attempt(number=event["attempt"], worker=event["worker"], folder=event["folder"]))
        elif kind == "retried":
            ended = {"reason": event["reason"], "reason_code": _read_code(event)}
            entry.attempts = [
                replace(attempt, **ended) if attempt.number == number else attempt for attempt in entry.attempts
            ]
        elif kind == "restarted":
            entry.restarted_attempts.add(event["attempt"])
        elif kind == "ended":
            code = _read_code(event)
            entry.outcome = Outcome(TrialStatus(event["end"]), code, event["reason"], event.get("remedy"))
            entry.winner = None if number is None else entry.find_attempt(number)
        elif kind == "reopened":
            if entry.winner is not None and entry.outcome is not None and entry.outcome.is_final:
                reason, code = entry.outcome.text or entry.outcome.status.value, entry.outcome.cause
                closed = replace(entry.winner, reason=reason, reason_code=code)
                entry.attempts = [closed if each.number == closed.number else each for each in entry.attempts]
            entry.outcome = entry.winner = None
            entry.attempts_before_reopening = len(entry.attempts)


def _read_code(event: Mapping[str, Any]) -> ReasonCode | None:
    code = event.get("reason_code")
    return None if code is None else ReasonCode(code)


_STRING_FIELDS = ("event", "trial_id", "worker", "folder")


def _check_types(event: Any) -> None:
    """Validate one ledger line, so that callers can trust the entry. Raises TypeError."""
    if not isinstance(event, dict):
        raise TypeError("not an object")
    for name in {*_STRING_FIELDS, "reason", "reason_code", "remedy", "attempt"} & event.keys():
        expected_type = int if name == "attempt" else str
        is_absent = event[name] is None and name not in _STRING_FIELDS
        if not is_absent and (not isinstance(event[name], expected_type) or isinstance(event[name], bool)):
            raise TypeError(f"{name} has the wrong type")
