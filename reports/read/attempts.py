"""Attempts from a run's ledger: start and end by the operator's clock, and the cost of each restart.

The workers' clocks cannot be used to sum the time that a worker was held: a pod that moves continues with another
node's clock.

Not covered: a job that its host started later than the ledger says, because the host could not be reached.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.paths import LEDGER_FILE
from bench.records.status import Outcome, ReasonCode, TrialStatus
from reports import formatting

_MAX_LEDGER_BYTES = 64_000_000  # a run of 10,000 trials writes 6 MB
_MAX_LINE_BYTES = 100_000
_MAX_RESTART_COST = 1e12  # limit of step, lost_sec and usd


@dataclass(frozen=True, kw_only=True)
class AttemptSpan:
    """One attempt. `began` and `ended` are Unix times (None: still running); `reason` is why it ended early.

    `is_retried`: the run went on with another attempt, so that the workers were held until that one began, or until
    `waited_until`, when the run ended without one.
    If the attempt was a restart, `lost_sec` and `usd` are its cost since the checkpoint at `step`, or None if the cost
    was not recorded.
    """

    number: int
    worker: str
    began: float
    ended: float | None = None
    reason: str | None = None
    step: int | None = None
    lost_sec: float | None = None
    usd: float | None = None
    is_retried: bool = False
    waited_until: float | None = None


def read(run_folder: Path, trial_id: str) -> list[AttemptSpan]:
    """Read one trial's attempts in order; [] without a ledger. Skips unreadable lines. Raises OSError."""
    spans: dict[int, AttemptSpan] = {}
    for line in _read_ledger(run_folder).splitlines():
        try:
            event = schema.parse_object(line)
            if event["trial_id"] == trial_id:
                _apply_event(spans, event, datetime.fromisoformat(event["time"]).timestamp())
        except (ValueError, KeyError, TypeError, OverflowError):
            continue
    return list(spans.values())


def ledger_fault(run_folder: Path, ran: Collection[tuple[str, int]]) -> str | None:
    """Return what is wrong with a run's ledger, or None: damaged or repeated lines, no start of attempts that ran.

    `ran` are trial ids and attempts. A damaged line may be a last one that a crash cut. Raises OSError.
    """
    started: set[tuple[str, int]] = set()
    lines = _read_ledger(run_folder).splitlines()
    damaged = 0
    for line in lines:
        try:
            event = schema.parse_object(line[:_MAX_LINE_BYTES])
            if event["event"] == "started":
                started.add((event["trial_id"], event["attempt"]))
        except (ValueError, KeyError, TypeError):
            damaged += bool(line.strip())
    repeated = len(lines) - len(set(lines))
    lost = sum(attempt not in started for attempt in ran) if started else 0
    faults = [
        *([f"{damaged:,} of {formatting.count(len(lines), 'line')} cannot be read"] if damaged else []),
        *([f"{formatting.count(repeated, 'line is', 'lines are')} repeated"] if repeated else []),
        *(["is empty"] if not lines and (run_folder / LEDGER_FILE).exists() else []),
        *([f"has no start of {lost:,} of {formatting.count(len(ran), 'result')}"] if lost else []),
    ]
    return formatting.join_with_and(faults) or None


def total_sec(attempts: Sequence[AttemptSpan], now: float) -> float:
    """Sum the durations of all attempts and the waits for a restart; a running attempt counts until `now`."""
    durations = (max(0.0, (now if attempt.ended is None else attempt.ended) - attempt.began) for attempt in attempts)
    return sum(durations) + wait_sec(attempts, now)


def wait_sec(attempts: Sequence[AttemptSpan], now: float) -> float:
    """Sum the waits of attempts that were retried, for the next one or for the run's end without one."""
    begins = [*(following.began for following in attempts[1:]), now]
    retried = [each for each in zip(attempts, begins, strict=False) if each[0].is_retried]
    return sum(max(0.0, (span.waited_until or begin) - (span.ended or begin)) for span, begin in retried)


def _read_ledger(run_folder: Path) -> bytes:
    """Read the ledger's bytes; b"" if it is missing. Raises OSError."""
    try:
        return read_regular(run_folder / LEDGER_FILE, max_bytes=_MAX_LEDGER_BYTES, follow=False)
    except FileNotFoundError:
        return b""


def _apply_event(spans: dict[int, AttemptSpan], event: dict[str, object], timestamp: float) -> None:
    number, last = event.get("attempt"), max(spans, default=None)
    if event["event"] == "ended" and last is not None and spans[last].is_retried:
        spans[last] = replace(spans[last], waited_until=timestamp)
    if not isinstance(number, int):
        return
    if event["event"] == "started":
        spans[number] = AttemptSpan(number=number, worker=str(event["worker"]), began=timestamp)
    elif event["event"] in ("retried", "ended") and number in spans and spans[number].ended is None:
        reason, code = event.get("reason"), event.get("reason_code")
        known = ReasonCode(code) if isinstance(code, str) else None
        text = None if reason is None else Outcome(TrialStatus.LOST, known, str(reason)).text
        is_retried = event["event"] == "retried"
        spans[number] = replace(spans[number], ended=timestamp, reason=text, is_retried=is_retried)
    elif event["event"] == "restarted" and number in spans:
        cost = {
            name: value
            for name in ("step", "lost_sec", "usd")
            if isinstance(value := event.get(name), (int, float)) and 0 <= value < _MAX_RESTART_COST
        }
        spans[number] = replace(spans[number], **cost)  # type: ignore[arg-type] # values from JSON
