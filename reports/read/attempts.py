"""The attempts of one trial as the ledger has them, with times by the operator's clock and what each restart cost."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bench.records.durable import read_regular
from bench.records.layout import LEDGER_FILE
from reports.read import starts


@dataclass(frozen=True, kw_only=True)
class Held:
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


def read(run_folder: Path, trial_id: str) -> list[Held]:
    """The attempts in order; none without a ledger. A line that cannot be read is left out. Raises OSError."""
    try:
        lines = read_regular(run_folder / LEDGER_FILE, most_bytes=starts.MOST_BYTES, follow=False).splitlines()
    except FileNotFoundError:
        return []
    found: dict[int, Held] = {}
    for line in lines:
        try:
            event = json.loads(line)
            if event["trial_id"] == trial_id:
                _take(found, event, datetime.fromisoformat(event["time"]).timestamp())
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return list(found.values())


def took_sec(attempts: Sequence[Held], now: float) -> float:
    """The time of all attempts, one that goes on counted until `now`."""
    return sum(_sec(one, now) for one in attempts)


def worker_sec(attempts: Sequence[Held], now: float) -> float:
    """The same, summed over each attempt's workers: what is paid for."""
    return sum(one.workers * _sec(one, now) for one in attempts)


def _sec(one: Held, now: float) -> float:
    return max(0.0, (now if one.ended is None else one.ended) - one.began)


def _take(found: dict[int, Held], event: dict[str, object], at: float) -> None:
    number = event.get("attempt")
    if not isinstance(number, int):
        return
    if event["event"] == "started":
        worker, workers = str(event["worker"]), event.get("workers")
        found[number] = Held(number=number, worker=worker, began=at, workers=workers if isinstance(workers, int) else 1)
    elif event["event"] in ("retried", "ended") and number in found and found[number].ended is None:
        reason = event.get("reason")
        found[number] = replace(found[number], ended=at, reason=None if reason is None else str(reason))
    elif event["event"] == "restarted" and number in found:
        cost = {name: event.get(name) for name in ("step", "lost_sec", "usd")}
        found[number] = replace(found[number], **cost)  # type: ignore[arg-type] # JSON's values
