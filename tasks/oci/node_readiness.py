"""State of a pool's nodes in the cluster: readiness with GPUs, and results that would be lost with them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import GPU_RESOURCE
from remote.cluster.quantities import parse_quantity
from tasks.clients.cluster import open_cluster
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet.pending_results import foreign_active_jobs, pending_runs
from tasks.oci.discovery import NodePoolInfo
from tasks.settings.load import Settings

POLL_INTERVAL_SEC = 5.0
Node = Mapping[str, Any]


def describe_unready(pool: NodePoolInfo, nodes: Iterable[Node]) -> list[str]:
    """Describe each node of the pool that is not in the cluster, not Ready, or without a GPU yet.

    Raises RetryableError for a malformed node object.
    """
    by_instance = {
        str(cluster_node.get("spec", {}).get("providerID", "")).rpartition("/")[2]: cluster_node
        for cluster_node in nodes
    }
    lines = []
    for node in pool.nodes:
        name, cluster_node = str(node.get("name") or node.get("id")), by_instance.get(str(node.get("id")))
        failure = (node.get("nodeError") or {}).get("message")
        if failure:
            lines.append(f"{name}: {failure}")
        elif cluster_node is None:
            lines.append(f"{name}: {str(node.get('lifecycleState', 'no state')).lower()}, not in the cluster yet")
        elif (problem := _readiness_problem(name, cluster_node)) is not None:
            lines.append(f"{name}: {problem}")
    return lines


def _readiness_problem(name: str, node: Node) -> str | None:
    status = node.get("status", {})
    try:
        conditions, gpus = (
            status.get("conditions") or (),
            parse_quantity((status.get("allocatable") or {}).get(GPU_RESOURCE, 0)),
        )
        is_ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise RetryableError(f"{name}: the cluster returned a malformed node status: {str(status)[:80]!r}") from error
    if not is_ready:
        return "not Ready yet"
    return None if gpus else "Ready, no GPU yet (the device plugin starts)"


def wait_until_ready(settings: Settings, pool: NodePoolInfo) -> None:
    """Wait until all nodes of the pool are Ready with GPUs. Raises a task's error; the pool keeps its new size."""
    remedy = "the pool has grown; `inv nodes` shows which nodes qualify"
    try:
        with open_cluster(settings) as cluster:
            _poll(settings, pool, cluster, remedy)
    except UsageError as error:
        raise UsageError(
            f"the pool has grown, but the cluster cannot be queried: {error}", remedy="`inv tenancy.kubeconfig`"
        ) from error
    except RetryableError as error:
        raise RetryableError.from_error(error, remedy=remedy) from error
    print(f"all {len(pool.nodes)} nodes are Ready; `inv nodes` shows which qualify", flush=True)


def _poll(settings: Settings, pool: NodePoolInfo, cluster: Cluster, remedy: str) -> None:
    started_at, last_count = time.monotonic(), -1
    while lines := describe_unready(pool, cluster.nodes()):
        elapsed_sec = time.monotonic() - started_at
        if len(lines) != last_count:
            print(
                f"{elapsed_sec:6.0f} s  {len(pool.nodes) - len(lines)} of {len(pool.nodes)} Ready; {lines[0]}",
                flush=True,
            )
            last_count = len(lines)
        if elapsed_sec > settings.cluster.ready_timeout_sec:
            raise TaskFailed(f"{lines[0]}, {elapsed_sec:.0f} s after the pool had grown", remedy=remedy)
        time.sleep(POLL_INTERVAL_SEC)


def check_no_results_lost(settings: Settings, pool: NodePoolInfo) -> None:
    """Check that the pool's cluster has no uncollected results and no other users' jobs.

    Raises ConfirmationRequired if it has, and UsageError if the context is another cluster.
    """
    with open_cluster(settings) as cluster:
        cluster_instances = {
            str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2] for node in cluster.nodes()
        }
        if pool.nodes and cluster_instances.isdisjoint(str(node.get("id")) for node in pool.nodes):
            raise UsageError(
                f"context {cluster.target.context} has none of pool {pool.name}'s nodes, so results there cannot be "
                "checked",
                remedy="set cluster.context to the pool's cluster (`inv tenancy.kubeconfig`)",
            )
        losses: Sequence[str] = [run.description for run in pending_runs(settings.results_folder, cluster.target)]
        losses = [*losses, *foreign_active_jobs(settings, cluster.target)]
    if losses:
        raise ConfirmationRequired("; ".join(("results would be lost, so nothing changed", *losses)))
