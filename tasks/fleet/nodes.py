"""Nodes that a run gives back after its success (`train.then: shrink`, `bench.then: shrink`).

The plan is confirmed when the run starts. After its success, when all its results are here and verified, the provider's
module removes the nodes; in doubt they are kept. Every step is in the run's folder (nodes.json) before it is made, so
that the same command goes on after a kill. A Job may do it without this machine (bench.commands.job_nodes); its own
record is on the shared volume, and is taken over when the run is collected.
"""

import dataclasses
import importlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from bench.notify.events import EventKind
from bench.records.checksummed import ResultError
from bench.records.nodes import JobPool, NodesRecord, NodesState
from bench.records.paths import ADAPTER_FOLDER, LEDGER_FILE, NODES_FILE, RUN_FILE, SUMS_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.sums_file import find_changed, read_sums
from remote.cluster.client import Cluster
from remote.fleet.ledger import Ledger
from remote.providers import Provider
from reports.read.nodes import describe_nodes, end_of
from tasks.cli.terminal import confirm
from tasks.clients.cluster import open_cluster, target_identity
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError, escape_controls
from tasks.fleet.notifications import notify_once
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings

SHRINK = "shrink"
MAX_IDLE_SEC = 72 * 3600.0  # after a run's end; later its plan no longer says what the nodes are for


class RunFolder:
    """The record of a run's nodes in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> NodesRecord | None:
        """Read the record; None if the run gives nothing back. Raises ConfirmationRequired for a damaged one."""
        path = self._folder / NODES_FILE
        if not path.exists():
            return None
        try:
            return NodesRecord.read(path)
        except ResultError as error:
            raise ConfirmationRequired(
                f"the nodes are kept: {error}", remedy=f"remove the nodes yourself, then remove {path}"
            ) from error

    def save(self, record: NodesRecord) -> None:
        """Write the record, before the step that it names. Raises OSError."""
        record.write(self._folder)


class NodeProvider(Protocol):
    """Module of a provider that removes nodes; `Provider.nodes` names it."""

    def plan(self, settings: Settings, cluster: Cluster) -> tuple[NodesRecord, list[str]]:
        """Return what will be done, without a run id, and lines that describe it. Raises a task's error."""

    def plan_job(
        self, settings: Settings, cluster: Cluster, record: NodesRecord, pods: int
    ) -> tuple[JobPool | None, list[str]]:
        """Return what a Job of so many pods needs to do it itself, and lines that describe it.

        None, with the reason in the lines, if it cannot or if it is not sure that the Job will hold the nodes whole.
        """

    def shrink(
        self,
        settings: Settings,
        cluster: Cluster,
        record: NodesRecord,
        folder: RunFolder,
        check_current: Callable[[], None],
    ) -> None:
        """Remove the nodes, or go on with it. Idempotent: the record says which steps were made.

        Calls `check_current` before each change, and saves the states REQUESTED, before it, and DONE. Raises a task's
        error: ConfirmationRequired in doubt.
        """


def plan(
    settings: Settings, section: str, *, yes: bool, dry_run: bool = False, job_pods: int | None = None
) -> NodesRecord | None:
    """Return the confirmed plan for the nodes of a new run; None if they are kept. `section` is train or bench.

    It is printed first; in a dry run it is not confirmed. `job_pods` is the number of pods of a Job. Raises UsageError,
    and ConfirmationRequired if it is not confirmed.
    """
    if getattr(settings, section).then != SHRINK:
        return None
    if not settings.connector.is_cluster:
        raise UsageError(
            f"{section}.then: fleet.kind is local, which has no nodes to give back", remedy="set it to keep"
        )
    with open_cluster(settings, changes=not dry_run, yes=yes) as cluster:
        module = _module(cluster.provider)
        record, lines = module.plan(settings, cluster)
        if job_pods is not None:
            job, job_lines = module.plan_job(settings, cluster, record, job_pods)
            record, lines = dataclasses.replace(record, job=job), [*lines, *job_lines]
    for line in lines:
        print(line, flush=True)
    if not dry_run and not yes and not confirm("Give these nodes back after success, without asking again?"):
        raise ConfirmationRequired(
            "nothing was started", remedy=f"pass --yes to confirm, or set {section}.then to keep"
        )
    return record


def save_plan(record: NodesRecord | None, run: RunRecord, folder: Path) -> None:
    """Write a new run's plan for its nodes. Raises OSError."""
    if record is not None:
        RunFolder(folder).save(dataclasses.replace(record, run_id=run.run_id))


def import_job_record(folder: Path, incoming: Path) -> None:
    """Take over what the run's Job wrote about its nodes: the record in `incoming`, if there is one. Raises OSError.

    The request is taken over, and not its success: the pool itself is read before the nodes count as given back.
    """
    record, path = RunFolder(folder).read(), incoming / NODES_FILE
    if record is None or record.state is not NodesState.PLANNED or not path.exists():
        return
    try:
        other = NodesRecord.read(path)
    except ResultError as error:
        print(f"the Job's record of its nodes is not used: {escape_controls(str(error))}")
        return
    changes = {name: getattr(other, name) for name in ("ended_at", "requested_at", "finished_at", "work_request_id")}
    if _plan_of(other) != _plan_of(record) or other.state is NodesState.PLANNED:
        return
    if other.state is NodesState.KEPT:
        print(f"the Job kept its nodes: {escape_controls(str(other.reason))}")
        record = dataclasses.replace(record, reason=other.reason)
    else:
        record = dataclasses.replace(record, state=NodesState.REQUESTED, **changes)
    RunFolder(folder).save(record)


def _plan_of(record: NodesRecord) -> tuple[object, ...]:
    return record.run_id, record.provider, record.pool_id, record.from_size, record.to_size


def give_back(settings: Settings, run: RunRecord, folder: Path) -> None:
    """Give the nodes of a successful run back as planned; nothing without a plan, or if that is done.

    Raises a task's error if they are kept. The receivers of notifications get either outcome.
    """
    run_folder = RunFolder(folder)
    record = run_folder.read()
    if record is None or record.state is NodesState.DONE or not _has_succeeded(folder):
        return
    section = TRAIN if run.suite == TRAIN else "bench"
    if getattr(settings, section).then != SHRINK:
        print(f"run {run.run_id}: its nodes are kept, as {section}.then is keep now", flush=True)
        return
    try:
        if (problem := _unverified(run, folder)) is not None:
            raise ConfirmationRequired(f"its results are not all here: {problem}")
        with open_cluster(settings, changes=True, yes=True) as cluster:
            if (target_identity(cluster.target), cluster.provider.name) != (record.cluster, record.provider):
                raise ConfirmationRequired(
                    f"{cluster.target} is not the cluster of the run, or has another provider",
                    remedy="set cluster.context and cluster.provider",
                )
            if record.ended_at is None:
                record = dataclasses.replace(record, ended_at=end_of(run, folder))
                run_folder.save(record)
            check_current = partial(_check_current, settings, run, record)
            _module(cluster.provider).shrink(settings, cluster, record, run_folder, check_current)
    except TaskFailed as error:
        problem = "it succeeded, but its nodes may still cost money"
        notify_once(settings, run, EventKind.NODES, f"{problem}: {error}")
        retry = f"`inv collect --run={run.run_id}` tries again"
        raise type(error).from_error(error, prefix=f"run {run.run_id}: {problem}: ", remedy=retry) from error
    text = f"nodes: {describe_nodes(folder, run, time.time())}"
    print(text, flush=True)
    notify_once(settings, run, EventKind.NODES, text)


def is_giving_back(folder: Path, run: RunRecord, now: float) -> bool:
    """Check whether a run that has ended may still give nodes back. Raises ConfirmationRequired and OSError."""
    record = RunFolder(folder).read()
    if record is None or record.state is NodesState.DONE or not _has_succeeded(folder):
        return False
    idle_sec = dataclasses.replace(record, ended_at=record.ended_at or end_of(run, folder)).idle_sec(now)
    return idle_sec is None or idle_sec <= MAX_IDLE_SEC


def _check_current(settings: Settings, run: RunRecord, record: NodesRecord) -> None:
    """Check that the plan was confirmed for the nodes as they are used now. Raises ConfirmationRequired."""
    remedy = "if the nodes are idle, remove them yourself (on OKE: `inv tenancy.nodes --remove`)"
    idle_sec = record.idle_sec(time.time())
    if idle_sec is None or idle_sec > MAX_IDLE_SEC:
        raise ConfirmationRequired(f"it ended more than {MAX_IDLE_SEC / 3600:.0f} h ago", remedy=remedy)
    for path in settings.results_folder.glob(f"*/{RUN_FILE}"):
        try:
            other = RunRecord.read(path)
        except ResultError as error:
            raise ConfirmationRequired(f"a run that may be later cannot be read: {error}", remedy=remedy) from error
        cluster = other.provenance.get("cluster") or {}
        is_here = all(cluster.get(key) == record.cluster[key] for key in ("server", "namespace"))
        if is_here and other.run_id != run.run_id and other.created_at > run.created_at:
            raise ConfirmationRequired(f"run {other.run_id} was started on these nodes later", remedy=remedy)


def _module(provider: Provider) -> NodeProvider:
    return cast(NodeProvider, importlib.import_module(provider.nodes))


def _has_succeeded(folder: Path) -> bool:
    entries = Ledger(folder / LEDGER_FILE).entries.values()
    return bool(entries) and all(entry.status is TrialStatus.SUCCEEDED for entry in entries)


def _unverified(run: RunRecord, folder: Path) -> str | None:
    """Return what is missing or changed of a run's results in this folder; None if all are here."""
    try:
        digests = read_sums(folder)
        prefixes = [f"{TRIALS_FOLDER}/{planned.trial_id}/" for planned in run.planned]
        prefixes += [LEDGER_FILE, *([f"{ADAPTER_FOLDER}/"] if run.suite == TRAIN else [])]
        for prefix in prefixes:
            if not any(path.startswith(prefix) for path in digests):
                return f"{SUMS_FILE} has no {prefix}"
        changed = find_changed(folder, digests)
    except (OSError, ValueError) as error:
        return str(error)
    return None if changed is None else f"{changed} is missing or differs from {SUMS_FILE}"
