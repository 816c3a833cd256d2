"""A pool's nodes as the cluster sees them: which are Ready with their GPUs, and whether results would go with them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import GPU
from remote.cluster.quantities import amount
from tasks.clients.cluster import cluster_of
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet.pending_results import foreign_active_jobs, uncollected
from tasks.oci.discovery import NodePoolInfo
from tasks.settings.load import Settings

POLL_SEC = 5.0
Node = Mapping[str, Any]


def not_ready(pool: NodePoolInfo, nodes: Iterable[Node]) -> list[str]:
    """A line for each node of the pool that the cluster lacks, or that is not Ready, or shows no GPU yet.

    Raises Resumable for a node whose state is not as Kubernetes has it.
    """
    by_instance = {str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2]: node for node in nodes}
    lines = []
    for one in pool.nodes:
        name, node = str(one.get("name") or one.get("id")), by_instance.get(str(one.get("id")))
        failure = (one.get("nodeError") or {}).get("message")
        if failure:
            lines.append(f"{name}: {failure}")
        elif node is None:
            lines.append(f"{name}: {str(one.get('lifecycleState', 'not there')).lower()}, not in the cluster yet")
        elif (lacks := _lacks(name, node)) is not None:
            lines.append(f"{name}: {lacks}")
    return lines


def _lacks(name: str, node: Node) -> str | None:
    status = node.get("status", {})
    try:
        conditions, gpus = status.get("conditions") or (), amount((status.get("allocatable") or {}).get(GPU, 0))
        is_ready = any(
            condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
        )
    except (AttributeError, TypeError, ValueError):
        raise RetryableError(
            f"{name}: the cluster's answer is not as Kubernetes has it: {str(status)[:80]!r}"
        ) from None
    if not is_ready:
        return "not Ready yet"
    return None if gpus else "Ready, no GPU yet (the device plugin starts)"


def await_ready(settings: Settings, pool: NodePoolInfo) -> None:
    """Wait until all nodes of the pool are Ready with GPUs. Raises Resumable; the pool has grown all the same."""
    after = "the pool has grown; `inv nodes` says which nodes qualify"
    try:
        with cluster_of(settings) as cluster:
            _wait(settings, pool, cluster, after)
    except UsageError as error:
        raise UsageError(
            f"the pool has grown, but the cluster cannot be asked: {error}; `inv tenancy.kubeconfig`"
        ) from None
    except RetryableError as error:
        raise RetryableError(f"{error}; {after}") from None
    print(f"all {len(pool.nodes)} nodes are Ready; `inv nodes` says which qualify", flush=True)


def _wait(settings: Settings, pool: NodePoolInfo, cluster: Cluster, after: str) -> None:
    began, before = time.monotonic(), -1
    while lines := not_ready(pool, cluster.nodes()):
        took = time.monotonic() - began
        if len(lines) != before:
            print(f"{took:6.0f} s  {len(pool.nodes) - len(lines)} of {len(pool.nodes)} Ready; {lines[0]}", flush=True)
            before = len(lines)
        if took > settings.cluster.ready_within_sec:
            raise TaskFailed(f"{lines[0]}, {took:.0f} s after the pool had grown; {after}")
        time.sleep(POLL_SEC)


def refuse_losing(settings: Settings, pool: NodePoolInfo) -> None:
    """Raise Refused where a result is not collected yet, or somebody works there; UsageError for another cluster."""
    with cluster_of(settings) as cluster:
        there = {str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2] for node in cluster.nodes()}
        if pool.nodes and there.isdisjoint(str(node.get("id")) for node in pool.nodes):
            raise UsageError(
                f"context {cluster.target.context} has none of pool {pool.name}'s nodes, so whether results would be "
                "lost is not known; set cluster.context to the pool's cluster (`inv tenancy.kubeconfig`)"
            )
        lines: Sequence[str] = [one.line for one in uncollected(settings.results_folder, cluster.target)]
        lines = [*lines, *foreign_active_jobs(settings, cluster.target)]
    if lines:
        raise ConfirmationRequired("; ".join(("results would be lost: nothing was changed", *lines)))
