"""A pod through which the volume of a training is read: one of its own, else a worker, else one made for it.

Once a training has ended its pods take no command any more, and `inv train --job` has taken the workers' place. Then a
pod without a GPU, with the image and the volumes of the Job's own pods, is made for as long as it is needed.
"""

import contextlib
import time
from collections.abc import Iterator

from bench.records.run import RunRecord
from remote.cluster.client import Cluster
from remote.cluster.volume_reader_pod import READER, reader_of
from remote.hosts.command import Command
from remote.hosts.host import Host, HostError, one_line
from remote.pods.host import PodHost
from tasks.clients.cluster import cluster_of, target_of
from tasks.clients.workers import pod_hosts, pods_of_component
from tasks.errors import RetryableError
from tasks.settings.load import Settings

TRAIN = "train"
_ASK_SEC, _PAUSE_SEC, _DELETE_SEC = 30.0, 1.0, 60.0


def is_ordered(run: RunRecord) -> bool:
    """Whether a Job runs this training by itself."""
    return "job" in run.provenance.get("inputs", {})


def pods_of(settings: Settings, run: RunRecord) -> list[PodHost]:
    """The pods of the training as hosts, named as the run's workers."""
    return pods_of_component(settings, TRAIN, size=len(run.workers))


@contextlib.contextmanager
def open_reader_pod(settings: Settings, run: RunRecord) -> Iterator[Host]:
    """A host that sees the volume. Raises Resumable, and as `cluster_of`."""
    for host in (*pods_of(settings, run), *pod_hosts(settings, target_of(settings))):
        if _refusal(host) is None:
            yield host
            return
    with cluster_of(settings, changes=True) as cluster, _made(settings, cluster, run) as made:
        yield made


@contextlib.contextmanager
def _made(settings: Settings, cluster: Cluster, run: RunRecord) -> Iterator[Host]:
    jobs = [one for kind in ("Job", "JobSet") for one in cluster.list_of(kind)]
    found = next((reader for job in jobs if (reader := reader_of(job)) is not None), None)
    if found is None:
        raise RetryableError(
            f"run {run.run_id}: no pod is there through which the volume can be read; `inv deploy` with "
            "cluster.overlay pods brings some, then type the same again"
        )
    print(f"making pod {READER}, which reads the volume", flush=True)
    cluster.apply([found])
    try:
        (host,) = pods_of_component(settings, READER)
        until = time.monotonic() + settings.cluster.ready_within_sec
        while (error := _refusal(host)) is not None:
            if time.monotonic() > until:
                raise RetryableError(f"{error} (for {settings.cluster.ready_within_sec:g} s); `inv status` says why")
            time.sleep(_PAUSE_SEC)
        yield host
    finally:
        cluster.delete([found], wait_sec=_DELETE_SEC)


def _refusal(host: Host) -> str | None:
    """Why this host takes no command; None where it does."""
    try:
        host.run(Command(argv=(*host.python, "-c", "")), timeout_sec=_ASK_SEC)
    except HostError as error:
        return one_line(error)
    return None
