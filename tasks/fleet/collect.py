"""`inv collect`: every worker's results into the run's folder, each byte verified; it can be repeated at any time.

The ledger says which attempt of a trial counts. Its result is here already (the fleet fetches it before it writes the
trial's end); its other files (telemetry, log) are fetched now. Where the workers share a volume and the one that ran a
trial is gone, its files come through another. For a trial without a result, a record of its end is written from the
ledger, so that the folder has one record for every planned trial.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from invoke.context import Context
from rich.progress import track

from bench.records.durable import sha256_of, write_atomic
from bench.records.layout import LEDGER_FILE, PROGRESS_FILE, RESULT_FILE, SUMS_FILE, TRIALS_FOLDER
from bench.records.result import End, TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.sealed import ResultError
from remote.fleet.attempt import OUT_FOLDER
from remote.fleet.ledger import Attempt, Entry, Ledger, LedgerError
from remote.fleet.shared_volume import place_of
from remote.hosts.host import HostError, OperatorRefused, one_line
from remote.jobs.agent import Agent
from remote.jobs.incoming import ChecksumMismatch
from remote.jobs.job import LOG_FILE
from remote.jobs.transfer import pull
from reports import text
from tasks.connect.workers import workers
from tasks.errors import Refused, Resumable, SomeTrialsFailed, UsageError
from tasks.fleet.folders import open_run
from tasks.settings.load import load


@dataclass(frozen=True, kw_only=True)
class Collected:
    """One trial: how many files came, how many were here already, and what is `missing` and why."""

    trial_id: str
    came: int = 0
    already: int = 0
    byte_count: int = 0
    missing: str | None = None
    is_open: bool = False
    is_unsafe: bool = False


def collect_run(context: Context, name: str | None) -> None:
    settings = load(context)
    run, folder = open_run(settings, name)
    try:
        entries = Ledger(folder / LEDGER_FILE).entries
    except LedgerError as error:
        raise UsageError(f"{error}; `inv report` can still report the results that are here") from None
    agents = {host.name: Agent(host) for host in workers(settings)}

    def bring(planned: PlannedTrial) -> Collected:
        return _bring(run, folder, planned, entries.get(planned.trial_id), agents, settings.shared_results)

    try:
        with ThreadPoolExecutor(max_workers=min(8, len(agents))) as pool:
            done = pool.map(bring, run.planned)
            is_seen = sys.stdout.isatty()  # elsewhere the bar would leave an empty line
            collected = list(track(done, "collect", total=len(run.planned), transient=True, disable=not is_seen))
        _write_sums(folder)
    except OperatorRefused as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise Resumable(
            f"{folder}: cannot be written: {error.strerror}; check owner, permissions and free space, "
            "then `inv collect` again"
        ) from None
    _conclude(run, folder, collected)


def _bring(
    run: RunRecord,
    folder: Path,
    planned: PlannedTrial,
    entry: Entry | None,
    agents: dict[str, Agent],
    shared: str | None,
) -> Collected:
    trial_id = planned.trial_id
    if entry is None or entry.end is None:
        return Collected(trial_id=trial_id, missing="has not ended", is_open=True)
    into = folder / TRIALS_FOLDER / trial_id
    into.mkdir(parents=True, exist_ok=True)
    attempt = entry.winner
    here = Collected(trial_id=trial_id)
    if attempt is not None:
        here = _from_its_worker(trial_id, entry, attempt, agents, into)
        if here.missing is not None and not here.is_unsafe and shared is not None:
            here = _from_the_volume(run, here, entry, attempt, agents, into, shared)
    try:
        known = TrialResult.read(into / RESULT_FILE)
        has_the_end = (known.trial_id, known.status) == (trial_id, entry.end)
    except ResultError as error:
        has_the_end = False
        if (into / RESULT_FILE).exists():
            # The damaged file stays, for the report to name: writing over it would hide that something went wrong.
            return replace(here, missing=here.missing or str(error))
    if not has_the_end:
        _record_end(run, planned, entry, into)
    return here


def _from_its_worker(trial_id: str, entry: Entry, attempt: Attempt, agents: dict[str, Agent], into: Path) -> Collected:
    """The files of one attempt from the worker that ran it."""
    agent = agents.get(attempt.worker)
    if agent is None:
        return Collected(trial_id=trial_id, missing=f"{attempt.worker} is not in this fleet; see fleet.size")
    try:
        return _pull(trial_id, agent, attempt, into, without=_unwanted(entry))
    except ChecksumMismatch as error:
        return Collected(trial_id=trial_id, missing=one_line(error), is_unsafe=True)
    except OperatorRefused:
        raise  # every other worker would answer the same
    except HostError as error:
        return Collected(trial_id=trial_id, missing=one_line(error))


def _from_the_volume(
    run: RunRecord,
    before: Collected,
    entry: Entry,
    attempt: Attempt,
    agents: dict[str, Agent],
    into: Path,
    shared: str,
) -> Collected:
    """The attempt's files on the shared volume, through any worker that answers; `before` where none has them."""
    place = place_of(shared, run.run_id, before.trial_id, attempt.number)
    for agent in agents.values():
        try:
            moved = pull(agent, place, into, without=_unwanted(entry))
        except ChecksumMismatch as error:
            return replace(before, missing=one_line(error), is_unsafe=True)
        except HostError:
            continue
        if moved.came or moved.already:
            return Collected(
                trial_id=before.trial_id, came=len(moved.came), already=len(moved.already), byte_count=moved.byte_count
            )
        return before
    return before


def _unwanted(entry: Entry) -> set[str]:
    # The fleet could not trust a result of a LOST trial; it stays on its worker.
    return {PROGRESS_FILE, RESULT_FILE} if entry.end is End.LOST else {PROGRESS_FILE}


def _pull(trial_id: str, agent: Agent, attempt: Attempt, into: Path, *, without: Collection[str]) -> Collected:
    """The files of one attempt: its log, and what lies in its output folder."""
    log = pull(agent, attempt.folder, into, only=(LOG_FILE,))
    rest = pull(agent, f"{attempt.folder}/{OUT_FOLDER}", into, without=without)
    came, already = (*log.came, *rest.came), (*log.already, *rest.already)
    missing = None if came or already else f"{agent.host.name} no longer has its files"
    return Collected(
        trial_id=trial_id,
        came=len(came),
        already=len(already),
        byte_count=log.byte_count + rest.byte_count,
        missing=missing,
    )


def _record_end(run: RunRecord, planned: PlannedTrial, entry: Entry, into: Path) -> None:
    """Write the end of a trial that left no result, in the place of one."""
    attempt = entry.winner
    log = into / LOG_FILE
    if entry.end is not None:
        TrialResult(
            trial_id=planned.trial_id,
            trial=planned.trial,
            status=entry.end,
            reason=entry.reason,
            worker=planned.worker if attempt is None else attempt.worker,
            run_id=run.run_id,
            attempt=1 if attempt is None else attempt.number,
            written_by="collect",
            log_tail=log.read_text(errors="replace").splitlines()[-20:] if log.exists() else [],
        ).write(into)


def _write_sums(folder: Path) -> None:
    """SHA256SUMS over everything the run is made of; `sha256sum --check` verifies a copied folder."""

    def lines() -> Iterable[str]:
        for path in sorted([*folder.glob("*.json*"), *folder.glob("trials/**/*")]):
            if path.is_file() and not path.name.endswith(".part"):
                yield f"{sha256_of(path)}  {path.relative_to(folder)}\n"

    write_atomic(folder / SUMS_FILE, "".join(lines()).encode())


def _conclude(run: RunRecord, folder: Path, collected: list[Collected]) -> None:
    came, already = sum(one.came for one in collected), sum(one.already for one in collected)
    size = sum(one.byte_count for one in collected)
    print(f"run {run.run_id}: {came} files came ({size / 1e3:.1f} kB), {already} were here already, in {folder}")
    missing = [one for one in collected if one.missing is not None]
    for one in missing:
        print(f"missing: {one.trial_id}: {one.missing}")
    if any(one.is_unsafe for one in missing):
        raise Refused(f"run {run.run_id}: a file's checksum was wrong twice; check that worker's disk")
    if any(not one.is_open for one in missing):
        raise Resumable(
            f"run {run.run_id}: some files could not be fetched; `inv collect --run={run.run_id}` tries again"
        )
    if missing:
        advice = f"`inv bench --resume={run.run_id}` goes on with them"
        raise SomeTrialsFailed(
            f"run {run.run_id}: {text.count(len(missing), 'trial has', 'trials have')} not ended; {advice}"
        )
