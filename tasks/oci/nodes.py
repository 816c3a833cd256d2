"""`inv tenancy.nodes`: list the GPU node pools, or resize one: print plan and cost, confirm, wait.

Nodes are removed only if no results would be lost and no pod of others uses them. OKE chooses which ones. The size
before nodes were added is recorded, for `train.then: shrink`.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from invoke.context import Context
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import UpdateNodePoolDetails, UpdateNodePoolNodeConfigDetails

from bench.records import schema
from bench.records.atomic_files import read_regular, write_atomic
from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import GPU_RESOURCE
from remote.cluster.quantities import parse_quantity
from tasks.cli.answer import Answer, plan_answer
from tasks.cli.terminal import confirm, console, plain_table
from tasks.clients.cluster import open_cluster
from tasks.errors import (
    ConfirmationRequired,
    RetryableError,
    TaskFailed,
    UsageError,
    file_errors,
    results_write_errors,
)
from tasks.fleet.node_use import check_removable
from tasks.fleet.pricing import price_of, price_table
from tasks.oci.api_errors import Operation
from tasks.oci.clients import TenancyApi, connect, resolve_compartment
from tasks.oci.discovery import NodePoolInfo, choose_one, list_gpu_limits, list_node_pools, parse_node_pool
from tasks.settings.load import Settings, load

POLL_INTERVAL_SEC = 5.0
SIZES_FILE = "node-pools.json"  # sizes before nodes were added, by the pool's OCID
_MAX_SIZES_BYTES = 1_000_000
MAX_NODES = 1000
PERMISSION = "manage cluster-node-pools"
Node = Mapping[str, Any]


def resize(
    context: Context, name: str | None, *, add: str | None, remove: str | bool | None, dry_run: bool, yes: bool
) -> Answer:
    """Resize the pool with this name or OCID by `add` or `remove` nodes; `remove` is True for all nodes."""
    settings = load(context)
    change = _parse_change(add, remove)
    api = connect(settings)
    compartment, compartment_name = resolve_compartment(settings, api)
    pools = [pool for pool in list_node_pools(api, compartment) if pool.has_gpus]
    if change is None:
        rows = [{**asdict(pool), "nodes": len(pool.nodes)} for pool in pools]
        return Answer(data={"pools": rows}, show=lambda: _print_pools(settings, pools, compartment_name))
    pool, etag = read_pool(api, choose_one(pools, name, "GPU pool", "tenancy.nodes: --pool", "nodepool").id)
    size = 0 if change == "all" else pool.size + int(change)
    if size < 0 or size > MAX_NODES:
        raise UsageError(f"pool {pool.name} has {pool.size} nodes", remedy=f"{size} is outside 0 to {MAX_NODES}")
    hourly = usd_per_node_hour(settings, pool)
    data = {
        "pool": pool.name,
        "from": pool.size,
        "to": size,
        "usd_per_node_hour": None if hourly is None else hourly[0],
    }
    if size == pool.size:
        return Answer(data=data, show=lambda: print(f"pool {pool.name} already has {size} nodes; nothing to do"))
    for line in describe_change(settings, pool, size):
        print(line, flush=True)
    grows = size > pool.size
    if grows:
        _check_gpu_limit(api, pool, size)
    else:
        _check_use(settings, pool)
    if dry_run:
        return plan_answer([], **data)
    if not yes:
        if not confirm(f"{'Grow' if grows else 'Shrink'} pool {pool.name} from {pool.size} to {size} nodes?"):
            raise ConfirmationRequired("nothing changed", remedy="pass --yes to confirm")
        if not grows:  # the question may have waited for long
            _check_use(settings, pool)
    record_size(settings, pool, size)
    wait_for_work_request(settings, api, request_size(api, pool, size, etag), compartment, pool.name)
    print(f"pool {pool.name} has {size} nodes", flush=True)
    if grows:
        wait_until_ready(settings, read_pool(api, pool.id)[0])
    return Answer(data=data)


def _check_use(settings: Settings, pool: NodePoolInfo) -> None:
    with open_cluster(settings) as cluster:
        check_removable(settings, cluster, lambda node: is_in_pool(pool, node), pool.name, is_confirmed=True)


def read_pool(api: TenancyApi, pool_id: str) -> tuple[NodePoolInfo, str | None]:
    """Read a pool and its etag. Raises a task's error."""
    client = api.client(ContainerEngineClient)
    operation = Operation(action="reading the node pool", permission="read cluster-node-pools")
    response = api.call(operation, client.get_node_pool, pool_id)
    pool = api.parse(operation, parse_node_pool, api.check_type(operation, response.data, dict))
    return pool, response.headers.get("etag")


def request_size(api: TenancyApi, pool: NodePoolInfo, size: int, etag: str | None) -> str | None:
    """Request this size, if the pool still has this etag; return the work request's id. Raises a task's error.

    A changed pool is ConfirmationRequired, also if the response to an accepted request was lost and it was repeated.
    """
    operation = Operation(action=f"resizing pool {pool.name}", permission=PERMISSION)
    details = UpdateNodePoolDetails(node_config_details=UpdateNodePoolNodeConfigDetails(size=size))
    condition = {"if_match": etag} if etag else {}
    client = api.client(ContainerEngineClient)
    response = api.call(operation, client.update_node_pool, pool.id, details, **condition)
    work_request_id: str | None = response.headers.get("opc-work-request-id")
    return work_request_id


def is_in_pool(pool: NodePoolInfo, node: Node) -> bool:
    """Check whether a node of the cluster is one of the pool's instances."""
    instance = str(node.get("spec", {}).get("providerID", "")).rpartition("/")[2]
    return any(instance == str(member.get("id")) for member in pool.nodes)


def size_before_growth(settings: Settings, pool_id: str) -> int | None:
    """Return the pool's size before this program added nodes; None if it added none. Raises UsageError."""
    size = _read_sizes(settings).get(pool_id)
    return size if isinstance(size, int) and 0 <= size <= MAX_NODES else None


def record_size(settings: Settings, pool: NodePoolInfo, size: int) -> None:
    """Record the size before the first of several growths; forget it once the pool is as small again."""
    sizes, before = _read_sizes(settings), size_before_growth(settings, pool.id)
    if size > pool.size and before is None:
        sizes[pool.id] = pool.size
    elif before is not None and size <= before:
        del sizes[pool.id]
    else:
        return
    with results_write_errors(settings.results_folder):
        settings.results_folder.mkdir(parents=True, exist_ok=True)
        write_atomic(settings.results_folder / SIZES_FILE, (json.dumps(sizes) + "\n").encode())


def _read_sizes(settings: Settings) -> dict[str, Any]:
    path, remedy = settings.results_folder / SIZES_FILE, "set train.then_nodes, and remove this file"
    with file_errors(path, remedy):
        if not path.exists():
            return {}
        content = read_regular(path, max_bytes=_MAX_SIZES_BYTES, follow=False)
    try:
        return schema.parse_object(content)
    except ValueError as error:
        raise UsageError(f"{path}: {error}", remedy=remedy) from error


def _parse_change(add: str | None, remove: str | bool | None) -> int | str | None:
    """Parse the flags into a signed number of nodes, "all" to remove all, or None for no change. Raises UsageError."""
    if add is not None and remove is not None:
        raise UsageError("tenancy.nodes: --add or --remove, not both")
    if remove is True:
        return "all"
    flag, text, sign = ("--add", add, 1) if add is not None else ("--remove", remove, -1)
    if text is None or text is False:
        return None
    if not str(text).isdecimal() or not 1 <= int(text) <= MAX_NODES:
        raise UsageError(f"tenancy.nodes: {flag}: expected a whole number from 1 to {MAX_NODES}, found {text!r}")
    return sign * int(text)


def gpus_per_node(shape: str) -> int:
    """Return the GPUs of one node: the last number of a shape such as VM.GPU.A10.2."""
    last = shape.rpartition(".")[2]
    return int(last) if last.isdecimal() else 1


def describe_change(settings: Settings, pool: NodePoolInfo, size: int) -> list[str]:
    """Describe the change and its cost."""
    line = f"pool {pool.name} ({pool.shape}): {pool.size} -> {size} nodes"
    hourly = usd_per_node_hour(settings, pool)
    if hourly is None:
        return [
            line,
            f"the price of {pool.shape} is not known; set cost.price_usd_per_gpu_hour with its source, or cost.prices",
        ]
    usd, source = hourly
    direction = "more" if size > pool.size else "less"
    total = f"then ${usd * size:,.2f} an hour in total, as long as the nodes exist, used or not"
    return [line, f"${usd * abs(size - pool.size):,.2f} an hour {direction}, {total}", f"  at {source}"]


def usd_per_node_hour(settings: Settings, pool: NodePoolInfo) -> tuple[float, str] | None:
    """Return (US dollars per node and hour with boot volume, description of the price), or None if unknown.

    The price is the pool's own: `cost.shape` names the workers' shape, which another pool need not have.
    """
    table = price_table(settings)
    shape = pool.shape if table is not None and pool.shape in table.shapes else None
    cost = settings.cost.model_copy(update={"shape": shape})
    price = price_of(settings.model_copy(update={"cost": cost}), ["NVIDIA A10"] if ".A10." in pool.shape else [])
    if price is None:
        return None
    boot_volume_usd = 0.0 if price.boot_volume is None else price.boot_volume.usd_per_hour
    return price.usd_per_gpu_hour * gpus_per_node(pool.shape) + boot_volume_usd, price.description


def _check_gpu_limit(api: TenancyApi, pool: NodePoolInfo, size: int) -> None:
    if ".A10." not in pool.shape:
        return
    try:
        limits = list_gpu_limits(api)
    except UsageError as error:
        print(f"the GPU limit is not known: {error}")
        return
    free, needed = sum(limit.maximum - limit.used for limit in limits), (size - pool.size) * gpus_per_node(pool.shape)
    if needed > free:
        raise UsageError(
            f"{needed} more A10 GPUs are needed, and the limit leaves {free} ({sum(limit.used for limit in limits)} of "
            f"{sum(limit.maximum for limit in limits)} in use)",
            remedy="request more in the console: Limits, Quotas and Usage",
        )


def wait_for_work_request(
    settings: Settings, api: TenancyApi, work_request_id: str | None, compartment: str, pool: str
) -> str | None:
    """Wait until the work request has ended, printing each status change; return the time of its end, if known.

    Raises a task's error.
    """
    if work_request_id is None:
        raise RetryableError(
            f"the service accepted the change of pool {pool} without a work request id",
            remedy="`inv tenancy.nodes` shows it",
        )
    client, started_at, last_status = api.client(ContainerEngineClient), time.monotonic(), ""
    operation = Operation(action=f"following the change of pool {pool}", permission="read cluster-work-requests")
    while True:
        work_request = api.get_object(operation, client.get_work_request, work_request_id)
        status = str(work_request.get("status", "?"))
        elapsed_sec = time.monotonic() - started_at
        if status != last_status:
            print(f"{elapsed_sec:6.0f} s  {status}", flush=True)
            last_status = status
        if status == "SUCCEEDED":
            return _iso_time(work_request.get("timeFinished"))
        if status in ("FAILED", "CANCELED"):
            reasons = "; ".join(
                str(error.get("message"))
                for error in api.list_all(operation, client.list_work_request_errors, compartment, work_request_id)
            )
            remedy = "; no such GPU is free there now: retry later, or in another availability domain"
            remedy = remedy if "capacity" in reasons.lower() else ""
            raise TaskFailed(f"pool {pool}: {status}: {reasons or 'no reason given'}{remedy}")
        if elapsed_sec > settings.cluster.ready_timeout_sec:
            raise RetryableError(
                f"pool {pool}: still {status} after {elapsed_sec:.0f} s (cluster.ready_timeout_sec)",
                remedy="it continues: `inv tenancy.nodes` shows it",
            )
        time.sleep(POLL_INTERVAL_SEC)


def _iso_time(text: object) -> str | None:
    """Return a time of the service in ISO 8601 with its zone; None if it is not one."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment.isoformat() if moment.tzinfo is not None else None


def _print_pools(settings: Settings, pools: Sequence[NodePoolInfo], compartment_name: str) -> None:
    if not pools:
        print(f"no GPU pool in {compartment_name}; set tenancy.compartment to another compartment")
        return
    rows = plain_table("pool", "shape", "wanted", "active", "$ an hour", "OCID")
    for pool in pools:
        hourly = usd_per_node_hour(settings, pool)
        active = sum(node.get("lifecycleState") == "ACTIVE" for node in pool.nodes)
        usd = "?" if hourly is None else f"{hourly[0] * pool.size:,.2f}"
        rows.add_row(pool.name, pool.shape, str(pool.size), str(active), usd, pool.id)
    console().print(rows)


# --- nodes of a pool in the cluster -----------------------------------------------------------------------------------


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
            _poll_readiness(settings, pool, cluster, remedy)
    except UsageError as error:
        raise UsageError(
            f"the pool has grown, but the cluster cannot be queried: {error}", remedy="`inv tenancy.kubeconfig`"
        ) from error
    except RetryableError as error:
        raise RetryableError.from_error(error, remedy=remedy) from error
    print(f"all {len(pool.nodes)} nodes are Ready; `inv nodes` shows which qualify", flush=True)


def _poll_readiness(settings: Settings, pool: NodePoolInfo, cluster: Cluster, remedy: str) -> None:
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
