"""The Kubernetes Job of a training: find it, check whether it is active, cancel it.

Deleting the Job leaves its pods time to write a checkpoint.
"""

import contextlib
from pathlib import Path

from bench.records.run import RunRecord
from bench.records.status import Outcome, ReasonCode
from remote.cluster.client import Cluster
from remote.cluster.labels import RUN_ANNOTATION, Object
from remote.cluster.plan import is_training
from remote.fleet.ledger import Ledger
from remote.hosts.base import HostError
from tasks.clients.cluster import open_cluster
from tasks.fleet.k8s_training.sync_ledger import sync_ledger
from tasks.fleet.k8s_training.volume_reader import training_pods
from tasks.settings.load import Settings

_DELETE_TIMEOUT_SEC = 180.0


def find_job(cluster: Cluster, run_id: str) -> Object | None:
    """Return the Job or JobSet of this run; None if it does not exist."""
    for kind in ("JobSet", "Job"):
        for job in cluster.list_fleet_objects(kind):
            if (job["metadata"].get("annotations") or {}).get(RUN_ANNOTATION) == run_id:
                return job
    return None


def is_job_active(settings: Settings, run: RunRecord) -> bool:
    """Check whether the run's Job exists and has not ended."""
    with open_cluster(settings) as cluster:
        job = find_job(cluster, run.run_id)
    return job is not None and is_training(job)


def cancel_training(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger) -> None:
    """Delete the Job, and end the training as CANCELLED unless it has already ended. Raises HostError, LedgerError."""
    with contextlib.suppress(HostError):  # a later `inv collect` reads the pods' last state
        for host in training_pods(settings, run)[:1]:
            sync_ledger(run, folder, ledger, host)
    with open_cluster(settings, changes=True) as cluster:
        job = find_job(cluster, run.run_id)
        if job is not None:
            print(f"deleting {job['kind'].lower()}/{job['metadata']['name']} and waiting for its pods", flush=True)
            cluster.delete([job], wait_sec=_DELETE_TIMEOUT_SEC)
    trial_id = run.planned[0].trial_id
    attempts = ledger.entries[trial_id].attempts
    outcome = Outcome.of(ReasonCode.CANCELLED, "cancelled by the operator")
    if ledger.record_end(trial_id, outcome, attempts[-1].number if attempts else None):
        print(f"run {run.run_id}: cancelled; `inv train --job --resume={run.run_id}` resumes it")
    else:
        print(f"run {run.run_id}: it had already ended; `inv collect --run={run.run_id}` fetches its results")
