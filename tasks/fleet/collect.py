"""`inv collect`: fetch every worker's results into the run's folder, with checksums; safe to repeat at any time.

The ledger says which attempt of a trial counts. The fleet has already fetched that attempt's result, before it wrote
the trial's end; its other files (telemetry, log) are fetched here. If the worker is gone and the workers share a
volume, another worker sends the files. For a trial without a result, a record of its end is written from the ledger,
so that the folder has one record for every planned trial.

A training's adapter and record are also copied to results/RUN/adapter/ and training.json; peft loads the adapter's
folder as it is. It gets its final name only when it is complete and the weights match the record's sha256.
"""

import contextlib
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from invoke.context import Context

from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import (
    ADAPTER_FOLDER,
    LEDGER_FILE,
    PROGRESS_FILE,
    RESULT_FILE,
    SUMS_FILE,
    TRAINING_FILE,
    TRIALS_FOLDER,
)
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import TrialStatus
from bench.records.sums_file import find_changed, read_sums
from bench.records.training import TrainingRecord
from bench.records.units import format_size
from remote.fleet.ledger import Attempt, Entry, Ledger, LedgerError
from remote.fleet.outcome import OUT_FOLDER, shared_output_folder
from remote.hosts.host_protocol import Host, HostError, PermissionDenied, collapse_whitespace
from remote.jobs.job import LOG_FILE, Agent
from remote.jobs.transfer import ChecksumMismatch, TransferResult, pull
from reports import formatting
from reports.training import sentences
from tasks.cli.command_result import CommandResult, plan_result
from tasks.cli.waiting import Wait
from tasks.clients.workers import run_hosts
from tasks.errors import ConfirmationRequired, RetryableError, SomeTrialsFailed, UsageError
from tasks.fleet.pending_results import missing_reason
from tasks.fleet.run_store import TRAIN, count_statuses, format_statuses, open_run, resume_command
from tasks.fleet.training_job import TrainingJob, open_job, release_pod, sync_ledger
from tasks.settings.layers import Settings, load
from tasks.settings.sources import display_path

CHECKSUMMED_FOLDERS = (TRIALS_FOLDER, ADAPTER_FOLDER)


@dataclass(frozen=True, kw_only=True)
class CollectedTrial:
    """The outcome of one trial's collection: moved and earlier files, and why files are missing."""

    trial_id: str
    moves: Sequence[TransferResult] = ()
    missing_reason: str | None = None
    is_open: bool = False
    is_corrupt: bool = False


def run_collect(context: Context, name: str | None, *, dry_run: bool = False) -> CommandResult | None:
    """Collect the run of this name, or the newest one."""
    settings = load(context)
    run, folder = open_run(settings, name)
    if dry_run:
        return _plan(run, folder)
    collect_run(settings, run, folder)
    return None


def _plan(run: RunRecord, folder: Path) -> CommandResult:
    """Return what the run still lacks here, and how its trials ended; no worker is asked."""
    missing, ends = missing_reason(folder, run), None
    with contextlib.suppress(LedgerError, OSError):  # then `missing` is the reason
        ends = count_statuses(Ledger(folder / LEDGER_FILE).entries.values())
    text = missing or f"collected, {format_statuses(ends or {}, len(run.planned))}"
    return plan_result(
        [f"run {run.run_id}: {text}"], run=run.run_id, missing=missing, ends=ends, planned=len(run.planned)
    )


def collect_run(settings: Settings, run: RunRecord, folder: Path, *, may_be_open: bool = False) -> None:
    """Collect one run from its workers; a training is first imported from where it runs.

    With `may_be_open`, a training that has not ended is not an error. Raises ConfirmationRequired, RetryableError,
    SomeTrialsFailed and UsageError.
    """
    try:
        if run.suite != TRAIN:
            _fetch_results(run, folder, run_hosts(settings, run), settings.shared_results)
            return
        collect = partial(_collect_training, run, folder, may_be_open=may_be_open)
        with open_job(settings, run) as job:
            try:
                collect(job)
            except HostError:  # a pod ends with its training; then another one reads the volume
                collect(job)
    except LedgerError as error:
        raise UsageError.from_error(error, remedy="`inv report` still reports the results collected so far") from error
    except PermissionDenied as error:
        raise UsageError.from_error(error) from error
    except HostError as error:
        raise RetryableError(
            f"{collapse_whitespace(error)}", remedy=f"rerun `inv collect --run={run.run_id}`"
        ) from error


def _collect_training(run: RunRecord, folder: Path, job: TrainingJob, *, may_be_open: bool) -> None:
    lost, ledger = job.end(), Ledger(folder / LEDGER_FILE)
    with job.reader() as host:
        sync_ledger(run, folder, ledger, host, lost)
        if not (may_be_open and ledger.open_trials()):
            _fetch_results(run, folder, [host], run.provenance["inputs"]["job"]["shared"])
            release_pod(run, host)


def _fetch_results(run: RunRecord, folder: Path, hosts: Sequence[Host], shared: str | None) -> None:
    agents = [Agent(host) for host in hosts]
    entries, agents_by_name = Ledger(folder / LEDGER_FILE).entries, {agent.host.name: agent for agent in agents}
    collection = _RunCollector(run=run, folder=folder, entries=entries, agents=agents_by_name, shared=shared)
    try:
        with ThreadPoolExecutor(max_workers=min(8, len(agents))) as pool:
            collected: list[CollectedTrial] = []
            with Wait(f"run {run.run_id}: collecting") as line:
                for trial in pool.map(collection.collect_trial, run.planned):
                    collected.append(trial)
                    share = 100 * len(collected) // len(run.planned)
                    line.set_text(f"run {run.run_id}: collecting, {share} %")
        adapter_message = install(run, folder) if run.suite == TRAIN else None
        _write_checksums(folder)
    except OSError as error:
        raise RetryableError(
            f"{folder}: cannot be written: {error.strerror}",
            remedy="check owner, permissions and free space, then rerun `inv collect`",
        ) from error
    if adapter_message is not None:
        print(adapter_message)
    _report_outcome(run, folder, entries, collected)


@dataclass(frozen=True, kw_only=True)
class _RunCollector:
    """Fetches a run's files: ledger entries by trial id, the workers' agents by name, and their shared folder.

    A training's files are in the shared folder only.
    """

    run: RunRecord
    folder: Path
    entries: Mapping[str, Entry]
    agents: Mapping[str, Agent]
    shared: str | None

    def collect_trial(self, planned: PlannedTrial) -> CollectedTrial:
        """Fetch one trial's files; write a record of its end if it left no result."""
        trial_id, entry = planned.trial_id, self.entries.get(planned.trial_id)
        if entry is None or entry.status is None:
            return CollectedTrial(trial_id=trial_id, missing_reason="has not ended", is_open=True)
        target = self.folder / TRIALS_FOLDER / trial_id
        target.mkdir(parents=True, exist_ok=True)
        collected = CollectedTrial(trial_id=trial_id)
        if entry.winner is not None:
            # The result of a LOST trial is not trusted; it stays on its worker.
            excluded = {PROGRESS_FILE, RESULT_FILE} if entry.status is TrialStatus.LOST else {PROGRESS_FILE}
            collected = self._fetch(trial_id, entry.winner, target, excluded)
        try:
            result = TrialResult.read(target / RESULT_FILE)
            is_recorded = (result.trial_id, result.status) == (trial_id, entry.status)
        except ResultError as error:
            is_recorded = False
            if (target / RESULT_FILE).exists():
                # Keep the damaged file: the report names it, and overwriting it would hide the fault.
                return replace(collected, missing_reason=collected.missing_reason or str(error))
        if not is_recorded:
            _write_end_record(self.run, planned, entry, target)
        return collected

    def _fetch(self, trial_id: str, attempt: Attempt, target: Path, excluded: Collection[str]) -> CollectedTrial:
        """Fetch an attempt's files from the worker that ran it, else from the volume through any worker that answers.

        Raises PermissionDenied, and HostError if a training's only reader does not answer.
        """
        is_training, reasons = self.run.suite == TRAIN, list[str]()
        sources = list[tuple[Agent, dict[str, tuple[str, ...] | None]]]()
        if is_training:
            reasons.append("its folder is gone")
        elif attempt.worker in self.agents:
            own: dict[str, tuple[str, ...] | None] = {
                attempt.folder: (LOG_FILE,),
                f"{attempt.folder}/{OUT_FOLDER}": None,
            }
            sources.append((self.agents[attempt.worker], own))
        else:
            reasons.append(f"{attempt.worker} is not in this fleet; see fleet.size")
        if self.shared is not None:
            folder = shared_output_folder(self.shared, self.run.run_id, trial_id, attempt.number)
            sources += [(agent, {folder: None}) for agent in self.agents.values()]
        for agent, folders in sources:
            try:
                moves = [pull(agent, root, target, only=only, exclude=excluded) for root, only in folders.items()]
            except ChecksumMismatch as error:
                return CollectedTrial(trial_id=trial_id, missing_reason=collapse_whitespace(error), is_corrupt=True)
            except HostError as error:
                if is_training or isinstance(error, PermissionDenied):  # the other workers would deny access, too
                    raise
                reasons.append(collapse_whitespace(error))
                continue
            if any(move.transferred or move.already_present for move in moves):
                return CollectedTrial(trial_id=trial_id, moves=moves)
            reasons.append(f"{agent.host.name} no longer has its files")
        present = verified_files(self.folder, trial_id)  # collected before its worker was removed
        moves = [TransferResult(already_present=present)]
        return CollectedTrial(trial_id=trial_id, moves=moves, missing_reason=None if present else reasons[0])


def verified_files(folder: Path, trial_id: str) -> tuple[str, ...]:
    """Return a trial's files that SHA256SUMS lists; none if one is missing or changed, or the run went on.

    The ledger's own line in SHA256SUMS shows that nothing ended since the files were listed.
    """
    try:
        digests = read_sums(folder)
        names = tuple(path for path in digests if path.startswith(f"{TRIALS_FOLDER}/{trial_id}/"))
        changed = find_changed(folder, {name: digests[name] for name in (LEDGER_FILE, *names)})
    except (OSError, ValueError, KeyError):
        return ()
    return names if changed is None else ()


def _write_end_record(run: RunRecord, planned: PlannedTrial, entry: Entry, target: Path) -> None:
    """Write a result file with the end of a trial that left no result."""
    attempt, log = entry.winner, target / LOG_FILE
    if entry.outcome is not None:
        TrialResult(
            trial_id=planned.trial_id,
            trial=planned.trial,
            status=entry.outcome.status,
            reason=entry.outcome.reason,
            reason_code=entry.outcome.reason_code,
            remedy=entry.outcome.remedy,
            worker=planned.worker if attempt is None else attempt.worker,
            run_id=run.run_id,
            attempt=1 if attempt is None else attempt.number,
            written_by="collect",
            log_tail=log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:] if log.exists() else [],
        ).write(target)


def _write_checksums(folder: Path) -> None:
    """Write SHA256SUMS over all files of the run, so that `sha256sum --check` verifies a copied folder.

    The bench writes no file whose name is not printable; a line break in a name could add a line for another file.
    """

    def lines() -> Iterable[str]:
        for path in sorted(
            [*folder.glob("*.json*"), *(path for name in CHECKSUMMED_FOLDERS for path in folder.glob(f"{name}/**/*"))]
        ):
            name = str(path.relative_to(folder))
            if not name.endswith(".part") and name.isprintable() and path.is_file():
                yield f"{sha256_of(path)}  {name}\n"

    write_atomic(folder / SUMS_FILE, "".join(lines()).encode())


def _report_outcome(
    run: RunRecord, folder: Path, entries: Mapping[str, Entry], collected: list[CollectedTrial]
) -> None:
    moves = [move for trial in collected for move in trial.moves]
    present = sum(len(move.already_present) for move in moves)
    files = formatting.count(sum(len(move.transferred) for move in moves), "file")
    size = format_size(sum(move.byte_count for move in moves))
    print(f"run {run.run_id}: fetched {files} ({size}), {present} already present, in {display_path(folder)}")
    missing = [trial for trial in collected if trial.missing_reason is not None]
    for trial in missing:
        print(f"missing: {trial.trial_id}: {trial.missing_reason}")
    if any(trial.is_corrupt for trial in missing):
        raise ConfirmationRequired(
            f"run {run.run_id}: a file's checksum was wrong twice", remedy="check that worker's disk"
        )
    if any(not trial.is_open for trial in missing):
        raise RetryableError(
            f"run {run.run_id}: some files could not be fetched", remedy=f"retry with `inv collect --run={run.run_id}`"
        )
    if missing:
        advice = f"`{resume_command(run.run_id)}` resumes it"
        raise SomeTrialsFailed(
            f"run {run.run_id}: {formatting.count(len(missing), 'trial has', 'trials have')} not ended", remedy=advice
        )
    ends = count_statuses(entries.values())
    if ends.keys() != {TrialStatus.SUCCEEDED.value}:
        advice = f"`{resume_command(run.run_id)}` tries what did not succeed again"
        for end in (entry.outcome for entry in entries.values() if run.suite == TRAIN):
            if end is not None and end.text:
                print(f"{end.status.value}: {end.text}")
        print(f"run {run.run_id}: {format_statuses(ends, len(run.planned))}; {advice}")


WEIGHTS_FILE = "adapter_model.safetensors"


def install(run: RunRecord, folder: Path) -> str | None:
    """Copy both into the run's folder. Returns what to print; None if the run has no training record.

    Raises ConfirmationRequired, RetryableError and OSError.
    """
    (planned,) = run.planned[:1]
    trial = folder / TRIALS_FOLDER / planned.trial_id
    if not (trial / TRAINING_FILE).exists():
        return None
    try:
        record = TrainingRecord.read(trial / TRAINING_FILE)
    except ResultError as error:
        remedy = f"remove it, then rerun `inv collect --run={run.run_id}`"
        raise ConfirmationRequired.from_error(error, remedy=remedy) from error
    write_atomic(folder / TRAINING_FILE, (trial / TRAINING_FILE).read_bytes())
    source, target = trial / ADAPTER_FOLDER, folder / ADAPTER_FOLDER
    if record.adapter_sha256 is None:
        return f"{folder / TRAINING_FILE}: {record.steps_done:,} of {record.steps_planned:,} steps, no adapter"
    if not (source / WEIGHTS_FILE).is_file():
        raise RetryableError(
            f"{source / WEIGHTS_FILE}: missing, although the training wrote it",
            remedy=f"rerun `inv collect --run={run.run_id}` while its worker or the volume has it",
        )
    if sha256_of(source / WEIGHTS_FILE) != record.adapter_sha256:
        raise ConfirmationRequired(
            f"{source / WEIGHTS_FILE}: its sha256 is not the one in {TRAINING_FILE}", remedy="do not use it"
        )
    partial = folder / f".{ADAPTER_FOLDER}.part"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    name, sha256 = f"the adapter of step {record.adapter_step:,}", record.adapter_sha256[:12]
    line = f"{display_path(target)}: {name}, sha256 {sha256}, verified"
    scored = sentences.score_outcome(record)
    return line if scored is None else f"{line}\n{scored}"
