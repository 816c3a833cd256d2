"""Attempts as a run's ledger has them: when each was started and ended, by the operator's clock, and what each restart
cost.

A worker's own clock will not do to add up the time it was held: a pod that moves goes on with another node's clock.

Not covered: a job that its host could only start later than the ledger says (the host could not be reached).
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.paths import LEDGER_FILE

# (trial_id, attempt) -> seconds since 1970
Starts = Mapping[tuple[str, int], float]

_MOST_BYTES = 64_000_000  # a run of 10,000 trials writes 6 MB
_MOST_LINE_BYTES = 100_000
_MOST = 1e12  # of what a restart cost, steps included


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """One attempt: when it began and ended (seconds since 1970; None: it goes on), and why it came to nothing.

    `lost_sec` and `usd` are what its own restart cost, from the checkpoint at `step`; None where it was none or nobody
    watched.
    """

    number: int
    worker: str
    began: float
    ended: float | None = None
    reason: str | None = None
    step: int | None = None
    lost_sec: float | None = None
    usd: float | None = None
    workers: int = 1


def read(run_folder: Path, trial_id: str) -> list[AttemptSpan]:
    """One trial's attempts in order; none without a ledger. A line that cannot be read is left out. Raises OSError."""
    found: dict[int, AttemptSpan] = {}
    for line in _ledger(run_folder).splitlines():
        try:
            event = json.loads(line)
            if event["trial_id"] == trial_id:
                _take(found, event, datetime.fromisoformat(event["time"]).timestamp())
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return list(found.values())


def starts(run_folder: Path) -> Starts:
    """When each trial's attempts were started; none where there is no ledger. Raises OSError.

    A line that is none (a crash tears the last one) leaves its attempt out: who asks for it goes by another clock.
    """
    found = {}
    for line in io.BytesIO(_ledger(run_folder)):
        # Of ten thousand trials most lines say something else.
        if b'"started"' not in line or len(line) > _MOST_LINE_BYTES:
            continue
        try:
            event = schema.parse(line)
            if event["event"] == "started":
                found[event["trial_id"], event["attempt"]] = datetime.fromisoformat(event["time"]).timestamp()
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return found


def took_sec(attempts: Sequence[AttemptSpan], now: float) -> float:
    """The time of all attempts, one that goes on counted until `now`."""
    return sum(_sec(attempt, now) for attempt in attempts)


def worker_sec(attempts: Sequence[AttemptSpan], now: float) -> float:
    """The same, summed over each attempt's workers: what is paid for."""
    return sum(attempt.workers * _sec(attempt, now) for attempt in attempts)


def _sec(one: AttemptSpan, now: float) -> float:
    return max(0.0, (now if one.ended is None else one.ended) - one.began)


def _ledger(run_folder: Path) -> bytes:
    """Empty where there is none. Raises OSError."""
    try:
        return read_regular(run_folder / LEDGER_FILE, most_bytes=_MOST_BYTES, follow=False)
    except FileNotFoundError:
        return b""


def _take(found: dict[int, AttemptSpan], event: dict[str, object], at: float) -> None:
    number = event.get("attempt")
    if not isinstance(number, int):
        return
    if event["event"] == "started":
        worker, workers = str(event["worker"]), event.get("workers")
        found[number] = AttemptSpan(
            number=number, worker=worker, began=at, workers=workers if isinstance(workers, int) else 1
        )
    elif event["event"] in ("retried", "ended") and number in found and found[number].ended is None:
        reason = event.get("reason")
        found[number] = replace(found[number], ended=at, reason=None if reason is None else str(reason))
    elif event["event"] == "restarted" and number in found:
        cost = {name: event.get(name) for name in ("step", "lost_sec", "usd")}
        known = {name: value for name, value in cost.items() if isinstance(value, (int, float)) and 0 <= value < _MOST}
        found[number] = replace(found[number], **known)  # type: ignore[arg-type] # JSON's values
