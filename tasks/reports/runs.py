"""`inv runs`: the runs in results/, the newest first: what each measured, how far it came, what its report says."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from invoke.context import Context

from bench.records import schema
from bench.records.atomic_files import read_regular, regular_size
from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, REPORT_FOLDER, RUN_FILE
from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from remote.fleet.ledger import Ledger, LedgerError
from tasks.errors import one_line
from tasks.fleet.run_store import LATEST
from tasks.settings.load import load

SUMMARY_FILE = "summary.json"
_MOST_BYTES = 100_000_000  # the summary of 10,000 trials takes 20 MB


@dataclass(frozen=True, kw_only=True)
class KnownRun:
    """One run's folder. `ends` counts how its trials ended; None fields could not be read, and `state` says why.

    `state` is "complete", "unfinished" or "damaged: ..."; `headline` is what its report recommends, None without one.
    """

    run_id: str
    state: str
    created_at: str | None = None
    suite: str | None = None
    profile: str | None = None
    workers: int | None = None
    planned: int | None = None
    ends: dict[str, int] | None = None
    headline: str | None = None


def list_runs(context: Context, *, as_json: bool) -> None:
    settings = load(context)
    found = runs(settings.results_folder)
    if as_json:
        print(json.dumps({"kind": "runs", "schema_version": 1, "runs": [asdict(one) for one in found]}, indent=1))
        return
    if not found:
        print(f"{settings.results_folder}: there is no run yet; type `inv bench --quick` to make one")
        return
    heads = ("run", "suite", "workers", "trials", "state")
    rows = [heads, *(_row(one) for one in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells, headline in zip(rows, (None, *(one.headline for one in found)), strict=True):
        # A table of rich's would cut ids to a narrow terminal. What a folder says is kept to its line.
        print(one_line("  ".join(map(str.ljust, cells, widths)).rstrip()))
        if headline is not None:
            print(f"  {one_line(headline)}")


def _row(one: KnownRun) -> tuple[str, str, str, str, str]:
    workers = "-" if one.workers is None else str(one.workers)
    return one.run_id, one.suite or "-", workers, _trials(one), one.state


def runs(results_folder: Path) -> list[KnownRun]:
    """Every run's folder, the newest first."""
    folders = [path.parent for path in results_folder.glob(f"*/{RUN_FILE}") if path.parent.name != LATEST]
    found = [_known(folder) for folder in folders]
    return sorted(found, key=lambda one: (one.created_at or "", one.run_id), reverse=True)


def _known(folder: Path) -> KnownRun:
    try:
        record = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        return KnownRun(run_id=folder.name, state=f"damaged: {str(error).removeprefix(f'{folder}/')}")
    planned = len(record.planned)
    state, ends = "unfinished", None
    try:
        ends = _ends(folder / LEDGER_FILE)
    except (LedgerError, OSError, RecursionError) as error:
        state = f"damaged: {LEDGER_FILE}: {getattr(error, 'strerror', None) or error}"
    if ends is not None and sum(ends.values()) >= planned:
        state = "complete"
    return KnownRun(
        run_id=folder.name,
        state=state,
        created_at=record.created_at,
        suite=record.suite,
        profile=record.profile,
        workers=len(record.workers),
        planned=planned,
        ends=ends,
        headline=_headline(folder / REPORT_FOLDER / SUMMARY_FILE),
    )


def _ends(ledger: Path) -> dict[str, int]:
    """How many trials reached each end. Raises LedgerError and OSError."""
    regular_size(ledger, follow=False)  # a pipe would never be read to its end
    entries = Ledger(ledger).entries.values()
    found = Counter(entry.end for entry in entries if entry.end is not None)
    return {end.value: found[end] for end in TrialStatus if found[end]}


def _headline(summary: Path) -> str | None:
    try:
        document: Any = schema.parse(read_regular(summary, most_bytes=_MOST_BYTES, follow=False))
    except (OSError, ValueError):
        return None
    said = document.get("recommendation") if isinstance(document, dict) else None
    return said if isinstance(said, str) else None


def _trials(one: KnownRun) -> str:
    if one.ends is None:
        return "-" if one.planned is None else f"{one.planned} planned"
    words = ", ".join(f"{amount} {end}" for end, amount in one.ends.items() if end != TrialStatus.SUCCEEDED.value)
    return f"{one.ends.get(TrialStatus.SUCCEEDED.value, 0)} of {one.planned} succeeded" + (
        f" ({words})" if words else ""
    )
