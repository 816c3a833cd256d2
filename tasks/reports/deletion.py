"""`inv runs --delete` and `--keep`: delete runs that are complete and collected, and that nothing else needs.

A run's folder is first renamed into TRASH_FOLDER, so that a killed command leaves each run either whole or gone; the
next deletion removes what is left there. A run that another command reads stays. Symbolic links are not followed.
"""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.atomic_files import read_regular, sync_folder
from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.run import RunRecord
from bench.records.units import format_size
from reports import formatting
from tasks.cli.answer import Answer, plan_answer
from tasks.cli.lock import acquire_lock, own_run, release_runs
from tasks.cli.terminal import confirm
from tasks.errors import (
    ConfirmationRequired,
    TaskFailed,
    UsageError,
    escape_controls,
    file_errors,
    results_write_errors,
)
from tasks.fleet.nodes import is_giving_back
from tasks.fleet.pending_results import DISCARDED_FILE, missing_reason
from tasks.fleet.run_store import LATEST, find_run, point_latest_at, unfinished_searches
from tasks.reports.runs import RunInfo, find_runs

IN_USE = "another command is reading it"
TRASH_FOLDER = ".deleted"  # in the results folder, one level too deep to be listed as runs
_MAX_PLAN_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class DeletionPlan:
    """Runs to delete, newest first, and the reason for each other selected run that must stay, by its id."""

    delete: Sequence[RunInfo]
    kept: dict[str, str]

    @property
    def byte_count(self) -> int:
        """Bytes of the files to delete."""
        return sum(run.byte_count for run in self.delete)


def delete_runs(results_folder: Path, names: Collection[str], keep: int | None, *, dry_run: bool, yes: bool) -> Answer:
    """Delete the runs of these names, or all but the newest `keep`, after confirmation.

    Raises UsageError for an unknown run, and ConfirmationRequired, without deleting any, for a named run that must
    stay, while another command uses the results, and if the plan is not confirmed.
    """
    for name in names:
        if find_run(results_folder, name).parent != results_folder.resolve() or (results_folder / name).is_symlink():
            raise UsageError(f"run {name}: it is a link", remedy="name the run itself; `inv runs` lists them")
    release_runs()
    if dry_run:
        plan = plan_deletion(results_folder, names, keep)
        return plan_answer(_lines(plan), **_document(plan))
    with acquire_lock(results_folder, "runs --delete"):
        plan = plan_deletion(results_folder, names, keep)
        if names and plan.kept:
            name, reason = next(iter(plan.kept.items()))
            raise ConfirmationRequired(f"nothing was deleted: run {name}: {reason}")
        print(*map(escape_controls, _lines(plan)), sep="\n")
        count = formatting.count(len(plan.delete), "run")
        if plan.delete and not yes and not confirm(f"Delete {count} ({format_size(plan.byte_count)})?"):
            raise ConfirmationRequired("nothing was deleted", remedy="pass --yes to confirm")
        _delete(results_folder, [run.run_id for run in plan.delete])
        if plan.delete:
            print(f"deleted {count}, {format_size(plan.byte_count)}")
    return Answer(kind="runs.deleted", data=_document(plan))


def plan_deletion(results_folder: Path, names: Collection[str], keep: int | None) -> DeletionPlan:
    """Select the runs of these names, or all but the newest `keep`, and hold back those that must stay."""
    runs = [run for run in find_runs(results_folder) if not (results_folder / run.run_id).is_symlink()]
    selected = [run for run in runs if run.run_id in names] if keep is None else runs[keep:]
    kept = {run.run_id: reason for run in selected if (reason := _reason_to_keep(results_folder, run)) is not None}
    plans = dict(_plans(results_folder))
    while True:  # a run that stays keeps the runs that its plan names, which keep others
        deleted = [run for run in selected if run.run_id not in kept]
        labels = {f"run {run.run_id}" for run in deleted}
        staying = {label: text for label, text in plans.items() if label not in labels}
        named = {
            run.run_id: f"the plan of {label} names it{_advice(label)}"
            for run in deleted
            for label, text in staying.items()
            if _names(text, run.run_id)
        }
        if not named:
            return DeletionPlan(delete=deleted, kept=kept)
        kept |= named


def _advice(label: str) -> str:
    kind, name = label.split(" ", 1)
    return f"; `inv tune --resume={name}` finishes the search" if kind == "search" else ""


def _reason_to_keep(results_folder: Path, info: RunInfo) -> str | None:
    """Return why a run must stay, whatever names it: unfinished, uncollected, another user's, nodes kept."""
    folder = results_folder / info.run_id
    if info.state.startswith("damaged"):
        return f"{info.state}; remove the folder yourself if you do not need it"
    try:
        if folder.lstat().st_uid != os.geteuid():
            return "it belongs to another user"
        run = RunRecord.read(folder / RUN_FILE)
        # A run that the operator discarded has nothing to collect, but may still be resumed.
        is_discarded = (folder / DISCARDED_FILE).exists() and info.state != "unfinished"
        if not is_discarded and (reason := missing_reason(folder, run)) is not None:
            return reason
        if is_giving_back(folder, run, time.time()):
            return f"its nodes are not given back; `inv collect --run={info.run_id}` does that"
        with own_run(folder) as is_free:
            return None if is_free else IN_USE
    except (OSError, ResultError, TaskFailed) as error:
        return str(error)


def _plans(results_folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the plans of runs and unfinished searches: a name and the text, which names the runs that it needs.

    Raises UsageError for a plan that cannot be read, as it may name any run.
    """
    runs = [("run", path) for path in results_folder.glob(f"*/{RUN_FILE}")]
    searches = [("search", path) for path in unfinished_searches(results_folder)]
    for kind, path in (*runs, *searches):
        folder = path.parent
        if folder.is_symlink() and folder.resolve().parent == results_folder.resolve():
            continue  # `latest`, or another name of a run
        with file_errors(path, "it may name other runs; move its folder away"):
            text = read_regular(path, max_bytes=_MAX_PLAN_BYTES, follow=False).decode(errors="replace")
        yield f"{kind} {folder.name}", text


def _names(plan: str, run_id: str) -> bool:
    """Check whether the text of a plan has this id, also in a path; a damaged plan has a text, too."""
    written = json.dumps(run_id)[1:-1]
    return re.search(rf"(?<![\w.-]){re.escape(written)}(?![\w-])", plan) is not None


def _lines(plan: DeletionPlan) -> list[str]:
    kept = [f"keep    {name}: {reason}" for name, reason in plan.kept.items()]
    deleted = [f"delete  {run.run_id}  {format_size(run.byte_count)}" for run in plan.delete]
    return [*kept, *(deleted or ["no run to delete"])]


def _document(plan: DeletionPlan) -> dict[str, Any]:
    deleted = [{"run": run.run_id, "bytes": run.byte_count} for run in plan.delete]
    return {"delete": deleted, "keep": [{"run": name, "reason": reason} for name, reason in plan.kept.items()]}


def _delete(results_folder: Path, names: Sequence[str]) -> None:
    """Delete these runs, and what a killed deletion left. `latest` then is the newest run that stays."""
    trash = results_folder / TRASH_FOLDER
    with results_write_errors(results_folder), contextlib.ExitStack() as owned:
        for name in names:
            if not owned.enter_context(own_run(results_folder / name)):
                raise ConfirmationRequired(f"nothing was deleted: run {name}: {IN_USE}")
        if os.path.lexists(trash):
            shutil.rmtree(trash)
        trash.mkdir(mode=0o700)
        for name in names:
            (results_folder / name).rename(trash / name)
        sync_folder(results_folder)
        latest = results_folder / LATEST
        if latest.is_symlink() and not latest.exists():
            remaining = find_runs(results_folder)
            if remaining:
                point_latest_at(results_folder / remaining[0].run_id)
            else:
                latest.unlink()
        shutil.rmtree(trash)
