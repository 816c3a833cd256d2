"""The Job of a training that runs by itself: whether it is there, and its end.

A Job that is deleted gives its pods time for a checkpoint.
"""

import contextlib
from pathlib import Path

from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from remote.cluster.client import Cluster
from remote.cluster.labels import RUN_ANNOTATION, Object
from remote.cluster.plan import is_training
from remote.fleet.ledger import Ledger
from remote.hosts.host import HostError
from tasks.clients.cluster import cluster_of
from tasks.fleet.k8s_training.sync_ledger import sync_ledger
from tasks.fleet.k8s_training.volume_reader import pods_of
from tasks.settings.load import Settings

_WAIT_SEC = 180.0


def job_of(cluster: Cluster, run_id: str) -> Object | None:
    """The Job or JobSet of this run; None where it is gone, or another's."""
    for kind in ("JobSet", "Job"):
        for one in cluster.list_of(kind):
            if (one["metadata"].get("annotations") or {}).get(RUN_ANNOTATION) == run_id:
                return one
    return None


def is_under_way(settings: Settings, run: RunRecord) -> bool:
    """Whether its Job is there and has not ended."""
    with cluster_of(settings) as cluster:
        job = job_of(cluster, run.run_id)
    return job is not None and is_training(job)


def cancel(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger) -> None:
    """Delete it, and end its training as CANCELLED, unless that has ended by itself. Raises HostError, LedgerError."""
    with contextlib.suppress(HostError):  # else what its pods did last is learned of by a later collect
        for host in pods_of(settings, run)[:1]:
            sync_ledger(run, folder, ledger, host)
    with cluster_of(settings, changes=True) as cluster:
        job = job_of(cluster, run.run_id)
        if job is not None:
            print(f"deleting {job['kind'].lower()}/{job['metadata']['name']}, and waiting for its pods", flush=True)
            cluster.delete([job], wait_sec=_WAIT_SEC)
    trial_id = run.planned[0].trial_id
    attempts = ledger.entries[trial_id].attempts
    if ledger.ended(
        trial_id, TrialStatus.CANCELLED, "cancelled by the operator", attempts[-1].number if attempts else None
    ):
        print(f"run {run.run_id}: cancelled; `inv train --job --resume={run.run_id}` goes on with it")
    else:
        print(f"run {run.run_id}: it had ended; `inv collect --run={run.run_id}` brings what there is")
