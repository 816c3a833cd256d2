"""`inv collect`: every worker's results into the run's folder, each byte verified; it can be repeated at any time.

The ledger says which attempt of a trial counts. Its result is here already (the fleet fetches it before it writes the
trial's end); its other files (telemetry, log) are fetched now. Where the workers share a volume and the one that ran a
trial is gone, its files come through another. For a trial without a result, a record of its end is written from the
ledger, so that the folder has one record for every planned trial.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from invoke.context import Context
from rich.progress import track

from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import (
    ADAPTER_FOLDER,
    LEDGER_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    SUMS_FILE,
    TRIALS_FOLDER,
)
from bench.records.result import TrialResult, TrialStatus
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.fetch_result import OUT_FOLDER
from remote.fleet.ledger import Attempt, Entry, Ledger, LedgerError
from remote.fleet.shared_volume import place_of
from remote.hosts.host import Host, HostError, PermissionDenied, one_line
from remote.jobs.agent import Agent
from remote.jobs.download import ChecksumMismatch
from remote.jobs.job import LOG_FILE
from remote.jobs.transfer import Moved, pull
from reports import formatting
from tasks.clients.workers import workers
from tasks.errors import ConfirmationRequired, RetryableError, SomeTrialsFailed, UsageError
from tasks.fleet.install_adapter import install
from tasks.fleet.k8s_training.sync_ledger import sync_ledger
from tasks.fleet.k8s_training.volume_reader import is_ordered, open_reader_pod
from tasks.fleet.pending_results import incomplete_runs
from tasks.fleet.run_store import TRAIN, open_run, resume_command
from tasks.settings.load import Settings, load

SUMMED = (TRIALS_FOLDER, ADAPTER_FOLDER)


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

    def with_files(self, *moves: Moved) -> Self | None:
        """The trial with these files; None where there are none."""
        came, already = sum(len(move.came) for move in moves), sum(len(move.already) for move in moves)
        size = sum(move.byte_count for move in moves)
        return replace(self, came=came, already=already, byte_count=size, missing=None) if came or already else None


def collect_runs(context: Context, name: str | None, *, every: bool) -> None:
    settings = load(context)
    if every and name is not None:
        raise UsageError("collect: --run and --all exclude each other; give one of them")
    if every:
        _collect_all(settings)
        return
    run, folder = open_run(settings, name)
    collect_run(settings, run, folder, workers(settings))


def _collect_all(settings: Settings) -> None:
    """Every run that is not whole here, oldest first; one that cannot be had keeps none of the others back."""
    names, hosts, failed = incomplete_runs(settings.results_folder), workers(settings), []
    for name in names:
        try:
            run, folder = open_run(settings, name)
        except UsageError as error:
            print(f"left out: {error}")
            continue
        try:
            collect_run(settings, run, folder, hosts)
        except (ConfirmationRequired, RetryableError, SomeTrialsFailed) as error:
            failed.append(error)
    if failed:
        worst = max(failed, key=lambda error: error.exit_code)
        verb = "is" if len(failed) == 1 else "are"
        raise type(worst)(
            f"{len(failed)} of {formatting.count(len(names), 'run')} {verb} still not whole here: {worst}"
        )
    print("every run is here")


def collect_run(
    settings: Settings, run: RunRecord, folder: Path, hosts: Sequence[Host], *, may_be_open: bool = False
) -> None:
    """Everything of one run that is on these workers; of a training by itself, what is on its volume.

    Where it `may_be_open`, a training that has not ended is no error. Raises Refused, Resumable, SomeTrialsFailed and
    UsageError.
    """
    try:
        if not is_ordered(run):
            _bring_home(settings, run, folder, hosts)
            return
        with open_reader_pod(settings, run) as host:
            ledger = Ledger(folder / LEDGER_FILE)
            sync_ledger(run, folder, ledger, host)
            if may_be_open and ledger.open_trials():
                return
            _bring_home(settings, run, folder, [host])
    except LedgerError as error:
        raise UsageError(f"{error}; `inv report` can still report the results that are here") from None
    except PermissionDenied as error:
        raise UsageError(str(error)) from None
    except HostError as error:
        raise RetryableError(f"{one_line(error)}; then type the same again") from None


def _bring_home(settings: Settings, run: RunRecord, folder: Path, hosts: Sequence[Host]) -> None:
    agents = [Agent(host) for host in hosts]
    entries, by_name = Ledger(folder / LEDGER_FILE).entries, {agent.host.name: agent for agent in agents}
    shared = run.provenance["inputs"]["job"]["shared"] if is_ordered(run) else settings.shared_results
    collection = _Collection(run=run, folder=folder, entries=entries, agents=by_name, shared=shared)
    try:
        with ThreadPoolExecutor(max_workers=min(8, len(agents))) as pool:
            done = pool.map(collection.collect, run.planned)
            is_seen = sys.stdout.isatty()  # elsewhere the bar would leave an empty line
            collected = list(track(done, "collect", total=len(run.planned), transient=True, disable=not is_seen))
        brought = install(run, folder) if run.suite == TRAIN else None
        _write_sums(folder)
    except OSError as error:
        raise RetryableError(
            f"{folder}: cannot be written: {error.strerror}; check owner, permissions and free space, "
            "then `inv collect` again"
        ) from None
    if brought is not None:
        print(brought)
    _conclude(run, folder, collected)


@dataclass(frozen=True, kw_only=True)
class _Collection:
    """A run that is collected: its ledger's entries by trial id, its workers' agents by name, their shared folder."""

    run: RunRecord
    folder: Path
    entries: Mapping[str, Entry]
    agents: Mapping[str, Agent]
    shared: str | None

    def collect(self, planned: PlannedTrial) -> Collected:
        """Fetch one trial's files, and write the record of its end where it left no result."""
        here, entry = Collected(trial_id=planned.trial_id), self.entries.get(planned.trial_id)
        if entry is None or entry.end is None:
            return replace(here, missing="has not ended", is_open=True)
        into = self.folder / TRIALS_FOLDER / planned.trial_id
        into.mkdir(parents=True, exist_ok=True)
        if entry.winner is not None:
            # The fleet could not trust a result of a LOST trial; it stays on its worker.
            without = {PROGRESS_FILE, RESULT_FILE} if entry.end is TrialStatus.LOST else {PROGRESS_FILE}
            here = self._from_its_worker(here, entry.winner, into, without)
            if here.missing is not None and not here.is_unsafe and self.shared is not None:
                here = self._from_the_volume(here, entry.winner, into, without)
        try:
            known = TrialResult.read(into / RESULT_FILE)
            has_the_end = (known.trial_id, known.status) == (planned.trial_id, entry.end)
        except ResultError as error:
            has_the_end = False
            if (into / RESULT_FILE).exists():
                # The damaged file stays, for the report to name: writing over it would hide that something went wrong.
                return replace(here, missing=here.missing or str(error))
        if not has_the_end:
            _record_end(self.run, planned, entry, into)
        return here

    def _from_its_worker(self, here: Collected, attempt: Attempt, into: Path, without: Collection[str]) -> Collected:
        """The files of one attempt, its log and its output folder, from the worker that ran it."""
        agent = self.agents.get(attempt.worker)
        if agent is None:
            return replace(here, missing=f"{attempt.worker} is not in this fleet; see fleet.size")
        try:
            log = pull(agent, attempt.folder, into, only=(LOG_FILE,))
            rest = pull(agent, f"{attempt.folder}/{OUT_FOLDER}", into, without=without)
        except ChecksumMismatch as error:
            return replace(here, missing=one_line(error), is_unsafe=True)
        except PermissionDenied:
            raise  # every other worker would answer the same
        except HostError as error:
            return replace(here, missing=one_line(error))
        missing = f"{agent.host.name} no longer has its files"
        return here.with_files(log, rest) or replace(here, missing=missing)

    def _from_the_volume(self, here: Collected, attempt: Attempt, into: Path, without: Collection[str]) -> Collected:
        """The attempt's files on the shared volume, through the first worker that answers; `here` if there are none."""
        place = place_of(str(self.shared), self.run.run_id, here.trial_id, attempt.number)
        for agent in self.agents.values():
            try:
                moved = pull(agent, place, into, without=without)
            except ChecksumMismatch as error:
                return replace(here, missing=one_line(error), is_unsafe=True)
            except HostError:
                continue
            return here.with_files(moved) or here
        return here


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
        for path in sorted(
            [*folder.glob("*.json*"), *(path for name in SUMMED for path in folder.glob(f"{name}/**/*"))]
        ):
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
        raise ConfirmationRequired(f"run {run.run_id}: a file's checksum was wrong twice; check that worker's disk")
    if any(not one.is_open for one in missing):
        raise RetryableError(
            f"run {run.run_id}: some files could not be fetched; `inv collect --run={run.run_id}` tries again"
        )
    if missing:
        advice = f"`{resume_command(run.run_id)}` goes on with them"
        raise SomeTrialsFailed(
            f"run {run.run_id}: {formatting.count(len(missing), 'trial has', 'trials have')} not ended; {advice}"
        )
