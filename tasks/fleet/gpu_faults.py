"""A worker whose GPU showed a fault: its node is named and, with fleet.cordon, cordoned and its pod deleted."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.records.run import RunRecord, TrainingJobEnd
from remote.cluster.client import Cluster
from remote.fleet.worker import DOWNLOAD_FOLDER
from remote.hosts.base import Host, HostError
from remote.hosts.pods.host import PodHost
from remote.hosts.pods.pod_index import Pod
from tasks.clients.cluster import open_cluster, resolve_target
from tasks.errors import TaskFailed, escape_controls
from tasks.settings.load import Settings

DELETE_TIMEOUT_SEC = 90.0


def with_cordon(settings: Settings, flag: bool) -> Settings:
    """Return the settings with fleet.cordon, if the flag --cordon is given."""
    if not flag:
        return settings
    return settings.model_copy(update={"fleet": settings.fleet.model_copy(update={"cordon": True})})


def make_mover(
    settings: Settings, hosts: Sequence[Host], workers: Sequence[str]
) -> Callable[[str, int], tuple[bool, str]]:
    """Return a function that moves a worker to another machine if that is set.

    It gets the worker's name and the rank with the fault, 0 for a trial of one worker. `workers` are the names in the
    order of the ranks. It returns whether the worker was moved, and a text for the operator.
    """
    by_name = {host.name: host for host in hosts}

    def move(name: str, rank: int) -> tuple[bool, str]:
        host = by_name.get(workers[rank] if 0 < rank < len(workers) else name)
        if not isinstance(host, PodHost):
            return False, "it takes no more trials of this run"
        try:
            pod = host.pods.find(host.index)
            location = f"{host.name} is {pod.name} on node {pod.node}"
            if not settings.fleet.cordon:
                return False, f"{location}: `kubectl cordon {pod.node}` keeps new pods away, fleet.cordon does so too"
            _drain(settings, pod)
        except (HostError, TaskFailed) as error:
            return False, f"{host.name} cannot be moved to another node: {escape_controls(str(error))}"
        host.pods.invalidate()
        return True, f"{location}: cordoned, its pod deleted; another node takes its place"

    return move


def cordon_faulty_node(settings: Settings, run: RunRecord, folder: Path) -> None:
    """Cordon the node whose GPU ended a training's Job, as its pods recorded. Raises ClusterError and TaskFailed."""
    end = TrainingJobEnd.read_or_none(folder / DOWNLOAD_FOLDER, run.provenance["inputs"]["job"]["turn"])
    if end is None or end.node is None:
        return
    with open_cluster(settings, changes=True, yes=True) as cluster:
        if end.node not in [node["metadata"]["name"] for node in cluster.nodes()]:  # the name is from the shared volume
            print(f"node {escape_controls(end.node)} is not in the cluster any more", flush=True)
            return
        cluster.cordon(end.node)
    print(f"cordoned node {end.node}", flush=True)


def _drain(settings: Settings, pod: Pod) -> None:
    """Cordon the pod's node and delete the pod. Raises ClusterError and TaskFailed."""
    cluster = Cluster(resolve_target(settings))
    try:
        cluster.cordon(pod.node)
        metadata = {"name": pod.name, "namespace": cluster.target.namespace}
        cluster.delete([{"apiVersion": "v1", "kind": "Pod", "metadata": metadata}], wait_sec=DELETE_TIMEOUT_SEC)
    finally:
        cluster.close()
