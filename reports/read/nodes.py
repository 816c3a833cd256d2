"""Nodes of a run after its end: given back or still rented, and what they have cost since."""

import dataclasses
from datetime import datetime, timezone
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.nodes import NodesRecord, NodesState
from bench.records.paths import NODES_FILE
from bench.records.run import RunRecord
from reports import formatting
from reports.read import attempts


def describe_nodes(folder: Path, run: RunRecord, now: float) -> str | None:
    """Describe the nodes of a run that gives them back; None for other runs, and before its end. Raises OSError."""
    if not (folder / NODES_FILE).exists():
        return None
    try:
        record = NodesRecord.read(folder / NODES_FILE)
    except ResultError as error:
        return f"unknown: {error}"
    if record.ended_at is None:
        record = dataclasses.replace(record, ended_at=end_of(run, folder))
    return describe(record, now)


def describe(record: NodesRecord, now: float) -> str | None:
    """Describe the nodes of a run and their cost since its end; None before its end."""
    seconds, usd = record.idle_sec(now), record.idle_usd(now)
    if seconds is None:
        return None
    cost = "" if usd is None else f", {formatting.dollars(usd)}"
    if record.state is not NodesState.DONE:
        reason = "" if record.reason is None else f"; the Job kept them: {record.reason}"
        rented = f"rented for {formatting.duration(seconds)} since the end{cost}, if they still exist"
        return f"not given back: {rented}{reason}"
    change = (
        "by train.then_command" if record.pool is None else f"{record.pool}: {record.from_size} -> {record.to_size}"
    )
    return f"given back ({change}), {formatting.duration(seconds)} after the end{cost}"


def end_of(run: RunRecord, folder: Path) -> str | None:
    """Return the time of the last end of a run whose trials have all ended, in ISO 8601; else None. Raises OSError."""
    spans = [attempts.read(folder, planned.trial_id)[-1:] for planned in run.planned]
    ends = [span.ended for last in spans for span in last]
    if not ends or None in ends:
        return None
    return datetime.fromtimestamp(max(end for end in ends if end is not None), timezone.utc).isoformat()
