"""Runs whose results are still in the pods: deleting the pods would lose them.

A run counts until all of it is here, or until the operator gave it up. Times are not compared: the laptop's clock and
the cluster's can be hours apart, and a run could then seem older than the pods it ran in.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.records.atomic_files import sha256_of
from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, RUN_FILE, SUMS_FILE
from bench.records.run import RunRecord
from remote.cluster.kubeconfig import Target
from remote.fleet.ledger import Ledger, LedgerError
from remote.hosts.host import Host, HostError
from remote.jobs.agent import Agent
from remote.jobs.job import slot_of
from tasks.clients.workers import pod_hosts
from tasks.fleet.k8s_training.volume_reader import is_ordered
from tasks.fleet.run_store import resume_command
from tasks.settings.load import Settings

DISCARDED_FILE = "discarded"  # in a run's folder: its results in the pods were given up


@dataclass(frozen=True, kw_only=True)
class PendingRun:
    """A run that is not fully collected: its folder, and one line with what is missing and what to type."""

    folder: Path
    line: str


def uncollected(results_folder: Path, target: Target) -> list[PendingRun]:
    """The runs over this namespace's pods that are not fully collected.

    Not covered: runs that another operator's machine planned.
    """
    found = []
    for path in sorted(results_folder.glob(f"*/{RUN_FILE}")):
        folder = path.parent
        if folder.is_symlink() or (folder / DISCARDED_FILE).exists():  # latest is a link
            continue
        try:
            run = RunRecord.read(path)
        except ResultError as error:
            line = f"{folder.name}: cannot be read, so whether it was collected is not known: {error}"
            found.append(PendingRun(folder=folder, line=line))
            continue
        # By address, not by context: a context can be renamed while the pods are the same.
        cluster = run.provenance.get("cluster") or {}
        is_here = (cluster.get("server"), cluster.get("namespace")) == (target.server, target.namespace)
        missing = _missing(folder, run)
        if run.fleet_kind == "pods" and is_here and missing and not is_ordered(run):  # that one's are on its volume
            found.append(PendingRun(folder=folder, line=f"run {run.run_id}: {missing}"))
    return found


def incomplete_runs(results_folder: Path) -> list[str]:
    """The names of the runs that are not fully here, over whatever fleet; without those given up or unreadable."""
    names = []
    for path in sorted(results_folder.glob(f"*/{RUN_FILE}")):
        folder = path.parent
        if folder.is_symlink() or (folder / DISCARDED_FILE).exists():
            continue
        with contextlib.suppress(ResultError):
            run = RunRecord.read(path)
            if _missing(folder, run) is not None:
                names.append(folder.name)
    return names


def foreign_active_jobs(settings: Settings, target: Target) -> list[str]:
    """A line for each pod that runs another operator's trial, one that this machine has no run of.

    A pod that cannot be asked has no line: it may be deleted for just that reason.
    """

    def ask(host: Host) -> str | None:
        try:
            holder = Agent(host).holder(slot_of(host))
        except HostError:
            return None
        job = Path(holder or "")
        if holder is None or (settings.results_folder / job.parent.name / RUN_FILE).is_file():
            return None
        return f"{host.name} is at {job.name} of run {job.parent.name}, another operator's"

    hosts = pod_hosts(settings, target)
    with ThreadPoolExecutor(max_workers=min(32, len(hosts))) as pool:
        return [line for line in pool.map(ask, hosts) if line is not None]


def discard(lost: list[PendingRun]) -> None:
    """Mark these runs as given up, and print them. Raises OSError."""
    for one in lost:
        print(f"discarded: {one.line}", flush=True)
        (one.folder / DISCARDED_FILE).touch()


def _missing(folder: Path, run: RunRecord) -> str | None:
    run_id, trial_ids = run.run_id, [planned.trial_id for planned in run.planned]
    try:
        ledger = Ledger(folder / LEDGER_FILE)
        running = [trial_id for trial_id in trial_ids if ledger.is_open(trial_id)]
    except LedgerError as error:
        return str(error)
    if running:
        return f"{len(running)} of {len(trial_ids)} trials have not ended; `{resume_command(run_id)}` goes on"
    brings = f"`inv collect --run={run_id}` brings it"
    try:
        sums = (folder / SUMS_FILE).read_text(encoding="utf-8")
    except OSError:
        return f"it was never collected; {brings}"
    if f"{sha256_of(folder / LEDGER_FILE)}  {LEDGER_FILE}\n" not in sums:
        return f"it went on after it was collected; {brings}"
    absent = [trial_id for trial_id in trial_ids if f"  trials/{trial_id}/" not in sums]
    return f"{len(absent)} of {len(trial_ids)} trials were not collected; {brings}" if absent else None
