"""Checks before nodes are removed: no results in their pods, no work of others; and the deletion of their own pods.

In doubt nodes are kept: a pod that does not answer or pods that may not be listed count as work.
"""

from collections.abc import Callable, Iterator

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import GPU_RESOURCE, may_use_gpus
from remote.cluster.labels import COMPONENT_LABEL, OWNER, PART_OF_LABEL, RUN_ANNOTATION, WORKER, Object, is_owned, label
from remote.cluster.manifests import ARCH, ARCH_LABEL
from remote.cluster.plan import is_training
from remote.hosts.pods.kubectl import Forbidden
from tasks.errors import ConfirmationRequired, UsageError
from tasks.fleet.pending_results import foreign_active_jobs, pending_runs, record_change
from tasks.settings.load import Settings

DELETE_TIMEOUT_SEC = 180.0
WORKLOADS = ("Job", "JobSet")


def check_removable(
    settings: Settings, cluster: Cluster, is_in_pool: Callable[[Object], bool], pool: str, *, is_confirmed: bool = False
) -> None:
    """Check that nothing is lost or disturbed if nodes of this pool are removed: any of them, as the service chooses.

    With `is_confirmed`, the operator at the terminal decides about pods that our account may not list. Raises
    ConfirmationRequired, and UsageError if the pool is not one of this cluster.
    """
    nodes = {str(node["metadata"]["name"]) for node in cluster.nodes() if is_in_pool(node)}
    if not nodes:
        raise UsageError(
            f"context {cluster.target.context} has none of pool {pool}'s nodes, so results there cannot be checked",
            remedy="set cluster.context to the pool's cluster (`inv tenancy.kubeconfig`)",
        )
    losses = [run.description for run in pending_runs(settings.results_folder, cluster.target)]
    losses += foreign_active_jobs(settings, cluster, must_answer=True)
    losses += [f"{_title(job)} still trains" for job in _workloads(cluster) if is_training(job)]
    try:
        losses += _other_pods(cluster, nodes)
    except Forbidden as error:
        if not is_confirmed:
            raise ConfirmationRequired(
                f"pool {pool}: nothing changed, as others may use its nodes: {error}",
                remedy="ask for the right to list pods in all namespaces",
            ) from error
        print(f"pods of other namespaces are not checked: {error}", flush=True)
    if losses:
        raise ConfirmationRequired("; ".join(("nodes are in use, or results would be lost: nothing changed", *losses)))


def delete_workloads(settings: Settings, cluster: Cluster) -> None:
    """Delete the fleet's Jobs and disruption budgets: pods would wait for nodes, and a budget would hold up a drain."""
    objects = [item for kind in ("PodDisruptionBudget", *WORKLOADS) for item in cluster.list_fleet_objects(kind)]
    own = [item for item in objects if is_owned(item)]
    if own:
        print(f"deleting {', '.join(map(_title, own))}, and waiting until their pods are gone", flush=True)
        cluster.delete(own, wait_sec=DELETE_TIMEOUT_SEC)
        record_change(settings, cluster.target, [])


def has_other_node(cluster: Cluster, is_in_pool: Callable[[Object], bool]) -> bool:
    """Check whether a node outside this pool could run the pod that reads the volume."""
    return any(_can_read(node) for node in cluster.nodes() if not is_in_pool(node))


def _can_read(node: Object) -> bool:
    """Check whether a node is Ready and takes a pod that tolerates the taint of GPU nodes and needs no GPU."""
    labels, spec = node["metadata"].get("labels") or {}, node.get("spec") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") != "PreferNoSchedule"]
    return (
        any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
        and labels.get(ARCH_LABEL) == ARCH
        and not spec.get("unschedulable")
        and all(taint.get("key") == GPU_RESOURCE for taint in taints)
    )


def fleet_nodes(cluster: Cluster) -> set[str]:
    """Return the names of the nodes on which pods of this fleet are."""
    return {str(node) for pod in cluster.pods() if (node := pod.get("spec", {}).get("nodeName"))}


def _workloads(cluster: Cluster) -> list[Object]:
    return [item for kind in WORKLOADS for item in cluster.list_fleet_objects(kind)]


def _other_pods(cluster: Cluster, nodes: set[str]) -> Iterator[str]:
    """Yield a line for each pod on these nodes that may use a GPU and is not one of our workers. Raises Forbidden."""
    for pod in cluster.pods_everywhere():
        metadata, node = pod["metadata"], pod.get("spec", {}).get("nodeName")
        is_worker = (
            metadata.get("namespace") == cluster.target.namespace
            and label(pod, PART_OF_LABEL) == OWNER
            and label(pod, COMPONENT_LABEL) == WORKER
        )
        if node in nodes and may_use_gpus(pod) and not is_worker:
            yield f"pod {metadata.get('namespace', '?')}/{metadata['name']} uses a GPU of node {node}"


def _title(item: Object) -> str:
    run_id = (item["metadata"].get("annotations") or {}).get(RUN_ANNOTATION)
    return f"{item['kind'].lower()}/{item['metadata']['name']}" + (f" (run {run_id})" if run_id else "")
