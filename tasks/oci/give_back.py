"""Give the nodes of an OKE pool back after a run (`train.then: shrink`); see `NodeProvider`.

The size is changed only from the one that was confirmed, under the pool's etag, and after all checks. A repeated call
reads the pool first: what an earlier call has requested is not requested again.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable

from bench.notify.events import time_text
from bench.records.nodes import JobIdentity, JobPool, NodesRecord, NodesState
from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import GPU_RESOURCE
from remote.cluster.quantities import parse_quantity
from tasks.clients.cluster import target_identity
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet.node_use import check_removable, delete_workloads, fleet_nodes, has_other_node
from tasks.fleet.nodes import RunFolder
from tasks.oci import nodes
from tasks.oci.api_errors import ApiNotFound
from tasks.oci.clients import TenancyApi, connect, resolve_compartment
from tasks.oci.discovery import NodePoolInfo, list_node_pools
from tasks.settings.load import Settings

SERVICE_ACCOUNT = "bench"  # the pods' account in manifests/base


def plan(settings: Settings, cluster: Cluster) -> tuple[NodesRecord, list[str]]:
    """Plan the change of the pool on whose nodes the fleet runs; see `NodeProvider`."""
    api = connect(settings)
    compartment, name = resolve_compartment(settings, api)
    pool = _choose_pool(cluster, [pool for pool in list_node_pools(api, compartment) if pool.has_gpus], name)
    target = settings.train.then_nodes
    if target is None:
        target = nodes.size_before_growth(settings, pool.id)
    if target is None:
        raise UsageError(
            f"train.then_nodes: null, and `inv tenancy.nodes --add` has not grown pool {pool.name} ({pool.size} nodes)",
            remedy="set it to the number of nodes to keep, e.g. 0",
        )
    if target >= pool.size:
        raise UsageError(
            f"pool {pool.name} has {pool.size} nodes, and {target} are to be kept: there is nothing to give back",
            remedy="set train.then and bench.then to keep, or train.then_nodes to a smaller number",
        )
    hourly = nodes.usd_per_node_hour(settings, pool)
    record = NodesRecord(
        run_id="",
        state=NodesState.PLANNED,
        provider=cluster.provider.name,
        cluster=target_identity(cluster.target),
        pool_id=pool.id,
        pool=pool.name,
        from_size=pool.size,
        to_size=target,
        usd_per_hour=None if hourly is None else hourly[0] * pool.size,
        price=None if hourly is None else hourly[1],
    )
    change, *cost = nodes.describe_change(settings, pool, target)
    policy = f"required policy: {api.caller.policy_statement(nodes.PERMISSION)}"
    return record, [f"after success: the fleet's pods are deleted, then {change}", *cost, policy]


def plan_job(settings: Settings, cluster: Cluster, record: NodesRecord, pods: int) -> tuple[JobPool | None, list[str]]:
    """Plan what the first pod of a Job needs; see `NodeProvider`."""
    api = connect(settings)
    compartment, _ = resolve_compartment(settings, api)
    pool, _ = nodes.read_pool(api, str(record.pool_id))
    problem = _job_problem(settings, cluster, pool, record, pods)
    if problem is not None:
        return None, [f"not by the Job itself: {problem}; `inv collect` does it"]
    identity = JobIdentity(settings.tenancy.job_auth)
    scope = "tenancy" if compartment == api.tenancy else f"compartment id {compartment}"
    policy = _job_policy(identity, cluster.target.namespace, pool.cluster_id, scope)
    job = JobPool(
        region=api.region,
        identity=identity,
        gpus_per_node=nodes.gpus_per_node(pool.shape),
        gpus_per_pod=settings.cluster.gpus_per_pod,
        policy=policy,
    )
    return job, [f"the Job's first pod does it, as {identity.value}; it needs the policy", f"  {policy}"]


def _job_policy(identity: JobIdentity, namespace: str, cluster_id: str, scope: str) -> str:
    """Return the policy statement that lets the Job's first pod resize pools."""
    if identity is JobIdentity.INSTANCE:
        return f"Allow dynamic-group DYNAMIC-GROUP to {nodes.PERMISSION} in {scope}"
    conditions = {
        "type": "workload",
        "namespace": namespace,
        "service_account": SERVICE_ACCOUNT,
        "cluster_id": cluster_id,
    }
    where = ", ".join(f"request.principal.{name} = '{value}'" for name, value in conditions.items())
    return f"Allow any-user to {nodes.PERMISSION} in {scope} where all {{{where}}}"


def _job_problem(
    settings: Settings, cluster: Cluster, pool: NodePoolInfo, record: NodesRecord, pods: int
) -> str | None:
    """Return why it is not sure that a Job of so many pods holds the pool's nodes whole; None if it is."""
    per_node, per_pod = nodes.gpus_per_node(pool.shape), settings.cluster.gpus_per_pod
    live = [node for node in cluster.nodes() if nodes.is_in_pool(pool, node)]
    if len(live) != pool.size:
        return f"{len(live)} of the {pool.size} nodes of pool {pool.name} are in the cluster"
    odd = [node for node in live if _gpus(node) != per_node]
    if odd:
        return f"node {odd[0]['metadata']['name']} offers {_gpus(odd[0])} GPUs, and {pool.shape} has {per_node}"
    if pods * per_pod != pool.size * per_node or (settings.cluster.one_per_node and per_pod != per_node):
        return f"{pods} pods with {per_pod} GPUs each do not hold all GPUs of {pool.size} nodes with {per_node} each"
    if not record.to_size and not has_other_node(cluster, lambda node: nodes.is_in_pool(pool, node)):
        return "no other node (Ready, amd64, without taints) could run the pod that fetches the adapter afterwards"
    try:
        check_removable(settings, cluster, lambda node: nodes.is_in_pool(pool, node), pool.name)
    except TaskFailed as error:
        return error.problem
    return None


def _gpus(node: nodes.Node) -> int:
    """Return the GPUs that a node offers. Raises RetryableError for a malformed node object."""
    try:
        return int(parse_quantity(((node.get("status") or {}).get("allocatable") or {}).get(GPU_RESOURCE, 0)))
    except (AttributeError, TypeError, ValueError) as error:
        raise RetryableError(f"the cluster returned a malformed node: {str(node)[:80]!r}") from error


def shrink(
    settings: Settings, cluster: Cluster, record: NodesRecord, folder: RunFolder, check_current: Callable[[], None]
) -> None:
    """Shrink the pool, or go on with it; see `NodeProvider`."""
    pool_id, size = record.pool_id, record.to_size
    if pool_id is None or size is None or record.from_size is None:
        raise ConfirmationRequired(
            "nodes.json has no pool", remedy="remove the nodes with `inv tenancy.nodes --remove`"
        )
    api = connect(settings)
    compartment, _ = resolve_compartment(settings, api)
    pool, etag = nodes.read_pool(api, pool_id)
    if pool.size == record.from_size:
        check_current()
        check_removable(settings, cluster, lambda node: nodes.is_in_pool(pool, node), pool.name)
        record = dataclasses.replace(record, state=NodesState.REQUESTED, requested_at=time_text(), work_request_id=None)
        folder.save(record)
        delete_workloads(settings, cluster)
        record = dataclasses.replace(record, work_request_id=_request(api, pool, size, etag))
        folder.save(record)
    elif pool.size != size:
        raise ConfirmationRequired(
            f"pool {pool.name} was changed meanwhile: it had {record.from_size} nodes, now {pool.size}",
            remedy="remove nodes yourself with `inv tenancy.nodes --remove`",
        )
    finished_at = record.finished_at
    if record.work_request_id is not None:
        with contextlib.suppress(ApiNotFound):  # the service has forgotten the request of a Job; the pool itself tells
            ended_at = nodes.wait_for_work_request(settings, api, record.work_request_id, compartment, pool.name)
            finished_at = finished_at or ended_at
    _wait_until_gone(settings, api, pool_id, size)
    nodes.record_size(settings, pool, size)
    # A Job's nodes were gone long before; otherwise the wait for the last node counts, too.
    finished_at = (finished_at if record.job is not None else None) or time_text()
    folder.save(dataclasses.replace(record, state=NodesState.DONE, finished_at=finished_at))


def _choose_pool(cluster: Cluster, pools: list[NodePoolInfo], compartment: str) -> NodePoolInfo:
    """Return the pool with the cluster's GPU nodes; of several, the one on whose nodes the fleet's pods are."""
    live, own = cluster.nodes(), fleet_nodes(cluster)
    in_cluster = [pool for pool in pools if any(nodes.is_in_pool(pool, node) for node in live)]
    used = [node for node in live if node["metadata"]["name"] in own]
    candidates = [pool for pool in in_cluster if any(nodes.is_in_pool(pool, node) for node in used)] or in_cluster
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(pool.name for pool in candidates) or "none"
    raise UsageError(
        f"expected one GPU pool of compartment {compartment} with the fleet's nodes in context "
        f"{cluster.target.context}, found {names}",
        remedy="set tenancy.compartment and cluster.context, or train.then and bench.then to keep",
    )


def _request(api: TenancyApi, pool: NodePoolInfo, size: int, etag: str | None) -> str | None:
    """Request the size; return the work request's id, None if it is not known. Raises a task's error."""
    try:
        return nodes.request_size(api, pool, size, etag)
    except ConfirmationRequired:
        if nodes.read_pool(api, pool.id)[0].size != size:
            raise
        return None  # our request was accepted, its response was lost, and the SDK repeated it


def _wait_until_gone(settings: Settings, api: TenancyApi, pool_id: str, size: int) -> None:
    """Wait until the pool has only `size` nodes left. Raises TaskFailed for a node that could not be removed."""
    started_at = time.monotonic()
    while True:
        pool, _ = nodes.read_pool(api, pool_id)
        left = [node for node in pool.nodes if node.get("lifecycleState") != "DELETED"]
        if pool.size == size and len(left) <= size:
            return
        failed = [
            f"{node.get('name') or node.get('id')}: {message}"
            for node in left
            if (message := (node.get("nodeError") or {}).get("message"))
        ]
        if failed:
            raise TaskFailed(f"pool {pool.name}: {len(left)} of {size} nodes are left: {failed[0]}")
        if pool.size != size:
            raise ConfirmationRequired(f"pool {pool.name} was changed meanwhile: to {pool.size} nodes")
        if time.monotonic() - started_at > settings.cluster.ready_timeout_sec:
            raise RetryableError(
                f"pool {pool.name}: {len(left)} nodes, {size} wanted, after {settings.cluster.ready_timeout_sec:g} s"
            )
        time.sleep(nodes.POLL_INTERVAL_SEC)
