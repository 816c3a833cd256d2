"""Runs whose results still lie in the pods: what must not be thrown away unasked."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remote.kubeconfig import Target


def uncollected(results_folder: Path, target: Target, since: str) -> list[str]:
    """One line for each run over this namespace's pods, planned since then, that is not wholly here.

    `since` is when the pods' Job was made (RFC 3339): what ran in earlier pods cannot be had any more.
    Not covered: runs that another operator's machine planned.
    """
    from bench.result import RUN_FILE, ResultError, RunRecord

    found = []
    for path in sorted(results_folder.glob(f"*/{RUN_FILE}")):
        if path.parent.is_symlink():
            continue  # latest
        try:
            run = RunRecord.read(path)
        except ResultError as error:
            found.append(f"{path.parent.name}: cannot be read, so whether it was collected is not known: {error}")
            continue
        # By address, not by context: a context can be renamed while the pods are the same.
        cluster = run.provenance.get("cluster") or {}
        is_here = (cluster.get("server"), cluster.get("namespace")) == (target.server, target.namespace)
        if run.fleet_kind != "pods" or not is_here or _moment(run.created_at) < _moment(since):
            continue
        missing = _missing(path.parent, [planned.trial_id for planned in run.planned])
        if missing:
            found.append(f"run {run.run_id}: {missing}; `inv collect --run={run.run_id}` brings it")
    return found


def _missing(folder: Path, trial_ids: list[str]) -> str | None:
    from bench.result import SUMS_FILE
    from remote.ledger import LEDGER_FILE, Ledger, LedgerError

    try:
        ledger = Ledger(folder / LEDGER_FILE)
    except LedgerError as error:
        return str(error)
    running = [trial_id for trial_id in trial_ids if ledger.is_open(trial_id)]
    if running:
        return f"{len(running)} of {len(trial_ids)} trials have not ended"
    try:
        sums = (folder / SUMS_FILE).read_text(encoding="utf-8")
    except OSError:
        return "it was never collected"
    absent = [trial_id for trial_id in trial_ids if f"  trials/{trial_id}/" not in sums]
    return f"{len(absent)} of {len(trial_ids)} trials were not collected" if absent else None


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)
