"""Runs whose results are still in the pods, and would be lost with them.

A run is pending until all its files are on this machine, or until the operator discards it. Times are not compared: the
clocks of this machine and of the cluster can differ by hours, and a run could seem older than its pods.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.records.atomic_files import sha256_of
from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from bench.records.sums_file import read_sums
from remote.cluster.kubeconfig import Target
from remote.cluster.labels import COMPONENT_LABEL, RUN_ANNOTATION, WORKER, Object, label
from remote.cluster.namespace_client import Cluster
from remote.fleet.ledger import Ledger, LedgerError
from remote.hosts.connectors import CONNECTORS
from remote.hosts.host_protocol import Host, HostError
from remote.hosts.pods.host import PodsSection
from remote.hosts.pods.pod_index import INDEX_LABEL
from remote.jobs.job import Agent, slot_path
from tasks.clients.workers import pod_hosts
from tasks.fleet.run_store import TRAIN, resume_command

DISCARDED_FILE = "discarded"  # marks a run's folder: the operator gave up its results in the pods


def pending_runs(results_folder: Path, target: Target, *, is_volume_kept: bool = False) -> dict[Path, str]:
    """Map the folders of runs over this namespace's pods to what is missing and the command that fetches it.

    With `is_volume_kept`, an ended run whose results are on the shared volume is not listed: other pods can read them.
    Not covered: runs planned on another operator's machine.
    """
    pending = {}
    for path in sorted(results_folder.glob(f"*/{RUN_FILE}")):
        folder = path.parent
        if folder.is_symlink() or (folder / DISCARDED_FILE).exists():  # latest is a link
            continue
        try:
            run = RunRecord.read(path)
        except ResultError as error:
            pending[folder] = f"{folder.name}: cannot be read, so it may not be collected: {error}"
            continue
        # Compare addresses, not context names: a context can be renamed while the pods stay the same.
        cluster, connector = run.provenance.get("cluster") or {}, CONNECTORS.get(run.fleet_kind)
        is_on_target = (cluster.get("server"), cluster.get("namespace")) == (target.server, target.namespace)
        # The Job of a training is checked elsewhere, and its files are on the volume.
        is_safe = run.suite == TRAIN or (is_volume_kept and not _is_open(folder))
        if connector is None or not connector.is_cluster or not is_on_target:
            continue
        reason = missing_reason(folder, run)
        if reason is not None and not (is_safe and _has_shared_results(run)):
            pending[folder] = f"run {run.run_id}: {reason}"
    return pending


def foreign_active_jobs(results_folder: Path, cluster: Cluster, pods: PodsSection) -> list[str]:
    """Return a line for each pod that runs another operator's trial, that is, of a run unknown to this machine.

    A pod that does not answer has no line: it may be deleted because of that.
    """
    workers = [pod for pod in cluster.pods() if label(pod, COMPONENT_LABEL) == WORKER]
    indices = [int(index) for index in (label(pod, INDEX_LABEL) for pod in workers) if index and index.isdecimal()]

    def describe_foreign_job(host: Host) -> str | None:
        try:
            holder = Agent(host).holder(slot_path(host))
        except HostError:
            return None
        job = Path(holder or "")
        if holder is None or (results_folder / job.parent.name / RUN_FILE).is_file():
            return None
        return f"{host.name} runs {job.name} of run {job.parent.name}, which is another operator's"

    hosts = pod_hosts(cluster.target, pods, max(indices, default=0) + 1)
    with ThreadPoolExecutor(max_workers=min(32, len(hosts))) as pool:
        return [line for line in pool.map(describe_foreign_job, hosts) if line is not None]


def discard(pending: Mapping[Path, str]) -> None:
    """Mark these runs as discarded, and print them. Raises OSError."""
    for folder, description in pending.items():
        print(f"discarded: {description}", flush=True)
        (folder / DISCARDED_FILE).touch()


def _has_shared_results(run: RunRecord) -> bool:
    """Check whether the run's settings had a volume for its results."""
    cluster, fleet = run.settings.get("cluster") or {}, run.settings.get("fleet") or {}
    return any(((cluster.get("volume") or {}).get("handle"), (fleet.get("pods") or {}).get("shared")))


def has_training_ended(results_folder: Path, job: Object) -> bool:
    """Check whether a training's end was read from its volume, although its Job waits for a pod."""
    folder = results_folder / str((job["metadata"].get("annotations") or {}).get(RUN_ANNOTATION))
    return (folder / LEDGER_FILE).is_file() and not _is_open(folder)


def _is_open(folder: Path) -> bool:
    """Check whether a trial of the run has not ended; True for a ledger that cannot be read."""
    try:
        return bool(Ledger(folder / LEDGER_FILE).open_trials())
    except LedgerError:
        return True


def missing_reason(folder: Path, run: RunRecord) -> str | None:
    """Return what is missing from a run's folder, and the command that fetches it; None if it is complete."""
    run_id, trial_ids = run.run_id, [planned.trial_id for planned in run.planned]
    try:
        ledger = Ledger(folder / LEDGER_FILE)
        running = [trial_id for trial_id in trial_ids if ledger.is_open(trial_id)]
    except LedgerError as error:
        return str(error)
    if running:
        advice = f"`{resume_command(run_id)}` resumes it, `inv cancel --run={run_id}` stops it"
        return f"{len(running)} of {len(trial_ids)} trials have not ended; {advice}"
    return uncollected_reason(folder, run)


def uncollected_reason(folder: Path, run: RunRecord) -> str | None:
    """Return what is missing from the folder of a run whose trials have ended; None if all of it was collected."""
    fetch_hint, trial_ids = f"`inv collect --run={run.run_id}` fetches it", [each.trial_id for each in run.planned]
    try:
        sums, ledger_sha256 = read_sums(folder), sha256_of(folder / LEDGER_FILE)
    except (OSError, ValueError):
        return f"it was never collected; {fetch_hint}"
    if sums.get(LEDGER_FILE) != ledger_sha256:
        return f"it continued after it was collected; {fetch_hint}"
    collected = {Path(name).parts[1] for name in sums if name.startswith(f"{TRIALS_FOLDER}/")}
    absent = [trial_id for trial_id in trial_ids if trial_id not in collected]
    return f"{len(absent)} of {len(trial_ids)} trials were not collected; {fetch_hint}" if absent else None
