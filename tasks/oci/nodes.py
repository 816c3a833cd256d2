"""`inv tenancy.nodes`: the GPU node pools, and one of them grown or shrunk: plan, dollars, a question, the wait.

A pool is shrunk only where no result would be lost. Which nodes go, OKE decides.
"""

import time
from collections.abc import Sequence

from invoke.context import Context
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import UpdateNodePoolDetails, UpdateNodePoolNodeConfigDetails

from tasks.cli.terminal import asks, console, table
from tasks.errors import ConfirmationRequired, RetryableError, TaskFailed, UsageError
from tasks.fleet.pricing import price_of
from tasks.oci.access.clients import Access, access, compartment_of
from tasks.oci.access.errors import ServiceCall
from tasks.oci.access.profile import check_ocid, ocid_kind
from tasks.oci.discovery import NodePoolInfo, gpu_limits, node_pools, pool_of
from tasks.oci.node_readiness import await_ready, refuse_losing
from tasks.settings.load import Settings, load

POLL_SEC = 5.0
MOST_NODES = 1000
_RIGHT = "manage cluster-node-pools"


def resize(
    context: Context, name: str | None, *, grow: str | None, shrink: str | bool | None, dry_run: bool, yes: bool
) -> None:
    """What was typed: a pool's name or OCID, how many nodes more or less. `shrink` is True for all nodes."""
    settings = load(context)
    change = _change(grow, shrink)
    entry = access(settings)
    compartment, where = compartment_of(settings, entry)
    pools = [pool for pool in node_pools(entry, compartment) if pool.has_gpus]
    if change is None:
        _show(settings, pools, where)
        return
    client = entry.client(ContainerEngineClient)
    asked = ServiceCall(doing="asking for the node pool", right="read cluster-node-pools")
    response = entry.response(asked, client.get_node_pool, chosen(pools, name).id)
    pool = entry.read(asked, pool_of, entry.of_kind(asked, response.data, dict))
    etag = response.headers.get("etag")
    size = 0 if change == "all" else pool.size + int(change)
    if size < 0 or size > MOST_NODES:
        raise UsageError(f"pool {pool.name} has {pool.size} nodes; {size} is not from 0 to {MOST_NODES}")
    if size == pool.size:
        print(f"pool {pool.name} has {pool.size} nodes already; nothing to do")
        return
    for line in plan(settings, pool, size):
        print(line, flush=True)
    if size > pool.size:
        _refuse_beyond_limit(entry, pool, size)
    else:
        refuse_losing(settings, pool)
    if dry_run:
        print("dry run: nothing was changed")
        return
    verb = "Grow" if size > pool.size else "Shrink"
    if not yes and not asks(f"{verb} pool {pool.name} from {pool.size} to {size} nodes?"):
        raise ConfirmationRequired("nothing was changed; type the same with --yes if it is meant")
    asked = ServiceCall(doing=f"resizing pool {pool.name}", right=_RIGHT)
    details = UpdateNodePoolDetails(node_config_details=UpdateNodePoolNodeConfigDetails(size=size))
    matching = {"if_match": etag} if etag else {}
    answer = entry.response(asked, client.update_node_pool, pool.id, details, **matching)
    _follow(settings, entry, answer.headers.get("opc-work-request-id"), compartment, pool)
    print(f"pool {pool.name} has {size} nodes", flush=True)
    if size > pool.size:
        grown = entry.read(asked, pool_of, entry.one(asked, client.get_node_pool, pool.id))
        await_ready(settings, grown)


def _change(grow: str | None, shrink: str | bool | None) -> int | str | None:
    """By how many nodes; "all" for none left; None where nothing is to change. Raises UsageError."""
    if grow is not None and shrink is not None:
        raise UsageError("tenancy.nodes: --grow or --shrink, not both")
    if shrink is True:
        return "all"
    flag, text, sign = ("--grow", grow, 1) if grow is not None else ("--shrink", shrink, -1)
    if text is None or text is False:
        return None
    if not str(text).isdecimal() or not 1 <= int(text) <= MOST_NODES:
        raise UsageError(f"tenancy.nodes: {flag}: expected a whole number from 1 to {MOST_NODES}, found {text!r}")
    return sign * int(text)


def chosen(pools: Sequence[NodePoolInfo], name: str | None) -> NodePoolInfo:
    """The pool that is meant. Raises UsageError, which names those there are."""
    if name is not None and ocid_kind(name):
        check_ocid("tenancy.nodes: --pool", name, "nodepool")
    named = [pool for pool in pools if name is None or name in (pool.name, pool.id)]
    if len(named) == 1:
        return named[0]
    known = ", ".join(f"{pool.name} ({pool.shape}, {pool.id})" for pool in named or pools)
    if not named:
        there = f"there are {known}" if known else "there is none; tenancy.compartment names another"
        raise UsageError(f"no GPU pool{f' {name}' if name else ''} in this compartment; {there}")
    raise UsageError(f"several GPU pools: {known}; choose one with --pool OCID")


def gpus_of(shape: str) -> int:
    """GPUs of one node: the number behind the last point of VM.GPU.A10.2."""
    last = shape.rpartition(".")[2]
    return int(last) if last.isdecimal() else 1


def plan(settings: Settings, pool: NodePoolInfo, size: int) -> list[str]:
    """What would change, and what that costs."""
    line = f"pool {pool.name} ({pool.shape}): {pool.size} -> {size} nodes"
    hourly = usd_an_hour(settings, pool)
    if hourly is None:
        return [
            line,
            f"what {pool.shape} costs is not known: cost.price_usd_per_gpu_hour with its source, or cost.prices",
        ]
    usd, words = hourly
    more = "more" if size > pool.size else "less"
    now = f"then ${usd * size:,.2f} an hour in all, as long as the nodes are there, used or not"
    return [line, f"${usd * abs(size - pool.size):,.2f} an hour {more}, {now}", f"  at {words}"]


def usd_an_hour(settings: Settings, pool: NodePoolInfo) -> tuple[float, str] | None:
    """(US dollars for one node and hour with its boot volume, the price in words); None where it is not known."""
    price = price_of(settings, ["NVIDIA A10"] if ".A10." in pool.shape else [])
    if price is None:
        return None
    boot = 0.0 if price.boot_volume is None else price.boot_volume.usd_per_hour
    return price.usd_per_gpu_hour * gpus_of(pool.shape) + boot, price.words


def _refuse_beyond_limit(entry: Access, pool: NodePoolInfo, size: int) -> None:
    if ".A10." not in pool.shape:
        return
    try:
        limits = gpu_limits(entry)
    except UsageError as error:
        print(f"whether the limit allows it is not known: {error}")
        return
    free, more = sum(limit.most - limit.used for limit in limits), (size - pool.size) * gpus_of(pool.shape)
    if more > free:
        raise UsageError(
            f"{more} more A10 GPUs are needed, and the limit leaves {free} ({sum(limit.used for limit in limits)} of "
            f"{sum(limit.most for limit in limits)} in use); ask for more in the console: Limits, Quotas and Usage"
        )


def _follow(settings: Settings, entry: Access, work: str | None, compartment: str, pool: NodePoolInfo) -> None:
    """Wait for the work request's end, with a line for each change. Raises a task's error."""
    if work is None:
        raise RetryableError(
            f"the service took the change of pool {pool.name} and named no work; `inv tenancy.nodes` shows it"
        )
    client, began, before = entry.client(ContainerEngineClient), time.monotonic(), ""
    asked = ServiceCall(doing=f"following the change of pool {pool.name}", right="read cluster-work-requests")
    while True:
        status = str(entry.one(asked, client.get_work_request, work).get("status", "?"))
        took = time.monotonic() - began
        if status != before:
            print(f"{took:6.0f} s  {status}", flush=True)
            before = status
        if status == "SUCCEEDED":
            return
        if status in ("FAILED", "CANCELED"):
            said = "; ".join(
                str(one.get("message")) for one in entry.all(asked, client.list_work_request_errors, compartment, work)
            )
            full = "capacity" in said.lower()
            way = "that kind of GPU is used up there at the moment: later, or in another availability domain"
            raise TaskFailed(f"pool {pool.name}: {status}: {said or 'no reason given'}{f'; {way}' if full else ''}")
        if took > settings.cluster.ready_within_sec:
            raise RetryableError(
                f"pool {pool.name}: still {status} after {took:.0f} s (cluster.ready_within_sec); it goes on by "
                "itself: `inv tenancy.nodes` shows it"
            )
        time.sleep(POLL_SEC)


def _show(settings: Settings, pools: Sequence[NodePoolInfo], where: str) -> None:
    if not pools:
        print(f"no GPU pool in {where}; tenancy.compartment names another")
        return
    rows = table("pool", "shape", "wanted", "active", "$ an hour", "OCID")
    for pool in pools:
        hourly = usd_an_hour(settings, pool)
        active = sum(node.get("lifecycleState") == "ACTIVE" for node in pool.nodes)
        usd = "?" if hourly is None else f"{hourly[0] * pool.size:,.2f}"
        rows.add_row(pool.name, pool.shape, str(pool.size), str(active), usd, pool.id)
    console().print(rows)
