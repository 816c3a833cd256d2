"""`inv nodes`: nodes that can run a pod, and the findings on the others."""

from collections.abc import Callable, Sequence
from typing import Any

from invoke.context import Context
from rich.text import Text

from bench.records.units import format_gib
from remote.cluster.diagnosis.node_health import HARDWARE_CAUSE
from remote.cluster.diagnosis.nodes import (
    CORDONED_CAUSE,
    NodeReport,
    examine,
)
from remote.cluster.manifests import Image
from remote.cluster.namespace_client import Cluster
from remote.cluster.settings import ANY_PRODUCT, ClusterSection, PodPlacement
from remote.hosts.pods.kubectl import Forbidden
from reports import formatting
from tasks.cli.command_result import CommandResult
from tasks.cli.terminal import console, plain_table
from tasks.clients.registry import resolve_image
from tasks.clients.target_cluster import open_cluster, place_pods
from tasks.errors import TaskFailed, UsageError
from tasks.settings.layers import load


def show_nodes(context: Context, *, cordon: bool = False, dry_run: bool = False) -> CommandResult:
    """Show the nodes. With `cordon`, mark those with a problem of their hardware as unschedulable."""
    if dry_run and not cordon:
        raise UsageError("nodes: --dry-run: nothing would be changed", remedy="pass it with --cordon, or omit it")
    settings = load(context)
    image, unknown_size = None, ""
    try:
        image = resolve_image(settings)
    except UsageError as error:
        unknown_size = f"the image's size is unknown, so the disk is checked without it: {error}\n"
    with open_cluster(settings) as cluster:
        placement = place_pods(settings.cluster, cluster.provider)
        reports = node_reports(cluster, placement, image)
        cordoned = nodes_to_cordon(reports) if cordon else []
        for name in [] if dry_run else cordoned:
            cluster.cordon(name)
    print_nodes(reports)
    print(unknown_size, end="")
    if cordon:
        verb = "would cordon" if dry_run else "cordoned"
        print(f"{verb}: {', '.join(cordoned)}" if cordoned else "no node was cordoned")
    needed, failure = settings.fleet.size, None
    try:
        print(check_capacity(placement, needed, reports))
    except TaskFailed as error:
        failure = error
    document = {
        "needed": needed,
        "room": capacity(reports),
        **({"cordoned": cordoned} if cordon else {}),
        "nodes": [to_document(report) for report in reports],
    }
    return CommandResult(data=document, failure=None if dry_run else failure)


def to_document(report: NodeReport) -> dict[str, Any]:
    """Return a node as JSON for programs; docs/reference.md describes the fields."""
    return {
        "name": report.name,
        "qualifies": report.qualifies,
        "pods": report.pods,
        "instance_type": report.instance_type,
        "gpu": report.gpu_product,
        "gpus": report.gpus,
        "gpus_free": report.gpus_free,
        "disk_bytes": int(report.disk_bytes),
        "kubelet": report.kubelet,
        "driver": report.driver,
        "findings": [finding.to_dict() for finding in report.findings],
    }


def nodes_to_cordon(reports: Sequence[NodeReport]) -> list[str]:
    """Return the nodes whose hardware has a problem, and which are not cordoned."""
    causes = {report.name: {finding.cause for finding in report.findings} for report in reports}
    return [name for name, own in causes.items() if HARDWARE_CAUSE in own and CORDONED_CAUSE not in own]


def capacity(reports: Sequence[NodeReport]) -> int:
    """Return the number of pods that the nodes can run."""
    return sum(report.pods for report in reports)


def check_capacity(placement: PodPlacement, needed: int, reports: Sequence[NodeReport], advice: str = "") -> str:
    """Return the line for nodes with room for all pods, of one kind. Raises UsageError or TaskFailed, with `advice`."""
    check_gpu_products(placement.section, reports)
    if capacity(reports) < needed:
        raise TaskFailed(f"{shortage_message(placement, needed, reports)}{advice}")
    qualified = formatting.count(sum(report.qualifies for report in reports), "node qualifies", "nodes qualify")
    return f"{qualified}, with room for {formatting.count(capacity(reports), 'pod')}, {needed} are needed"


def check_gpu_products(section: ClusterSection, reports: Sequence[NodeReport]) -> None:
    """Raise UsageError if the qualifying nodes have different kinds of GPU and cluster.gpu is not set.

    Nodes without that label are ignored.
    """
    kinds = sorted({report.gpu_product for report in reports if report.qualifies and report.gpu_product})
    if len(kinds) > 1 and section.gpu is None:
        raise UsageError(
            f"the nodes have different kinds of GPU: {', '.join(kinds)}",
            remedy="trials on them cannot be compared: set "
            f"cluster.gpu to one of them, or to {ANY_PRODUCT} to allow all",
        )


def shortage_message(placement: PodPlacement, needed: int, reports: Sequence[NodeReport]) -> str:
    """Return the message for nodes without room for all pods of the fleet."""
    room, first = capacity(reports), "no other node has that instance type"
    candidates = [report for report in reports if report.is_candidate and not report.qualifies]
    if candidates:
        first = str(candidates[0].findings[0])
    elif not any(report.gpus for report in reports):
        first = f"no node offers nvidia.com/gpu: {placement.provider.texts['device-plugin']}"
    shortage = f"{room} of {needed} nodes qualify"
    if not placement.section.one_per_node:
        shortage = f"the nodes have room for {room} of {needed} pods"
    return f"{shortage}; {first}; or set fleet.size to {room or 'the number of qualifying nodes'}"


def node_reports(
    cluster: Cluster, placement: PodPlacement, image: Image | None, warn: Callable[[str], object] = print
) -> list[NodeReport]:
    """Return a report for each node; free GPUs are unknown without permission to list all pods. Raises ClusterError."""
    nodes, pods = cluster.nodes(), None
    try:
        pods = cluster.pods_everywhere()
    except Forbidden as error:
        warn(f"free GPUs are unknown: {error}")
    return examine(nodes, pods, placement, image)


def print_nodes(reports: Sequence[NodeReport]) -> None:
    """Print the nodes as a table, then one line for each finding; nodes of other types without GPU are only counted."""
    screen = console()
    rows = plain_table("node", "qualifies", "instance type", "GPU", "GPUs", "free", "disk", "kubelet", "driver")
    for report in reports:
        if not report.is_candidate and not report.gpus:
            continue
        share = f" (1/{report.pods_per_gpu})" if report.pods_per_gpu > 1 else ""
        rows.add_row(
            Text(report.name),
            Text("yes", style="green") if report.qualifies else Text("no", style="red"),
            Text(report.instance_type or "-"),
            Text((report.gpu_product or "-").removeprefix("NVIDIA-") + share),
            str(report.gpus),
            "?" if report.gpus_free is None else str(report.gpus_free),
            format_gib(report.disk_bytes),
            Text(report.kubelet),
            Text(report.driver or "unknown"),
        )
    if rows.row_count:
        screen.print(rows)
    for report in reports:
        if report.is_candidate or report.gpus:
            for finding in report.findings:
                screen.print(f"  {finding}")
    others = [report for report in reports if not report.is_candidate and not report.gpus]
    if others:
        names = ", ".join(other.name for other in others[:3]) + (", ..." if len(others) > 3 else "")
        screen.print(f"  {formatting.count(len(others), 'node')} without GPU, of another instance type: {names}")
