"""`inv nodes`: which nodes can take a pod, and why not the others."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from invoke.context import Context
from rich.text import Text

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.driver import drivers
from remote.cluster.diagnosis.nodes import (
    ANY_PRODUCT,
    CUDA_12,
    PREEMPTIBLE,
    NodeReport,
    NodeRequirements,
    examine,
    mixed,
)
from remote.cluster.errors import Forbidden
from remote.cluster.manifests import Image
from remote.cluster.quantities import amount, in_gib
from tasks.cli.terminal import console, for_programs, table
from tasks.clients.cluster import cluster_of
from tasks.clients.image_ref import image_of
from tasks.errors import TaskFailed, UsageError
from tasks.settings.load import Settings, load


def check_nodes(context: Context, *, as_json: bool) -> None:
    with for_programs(as_json) as say:
        _check(load(context), say)


def _check(settings: Settings, say: Callable[[Mapping[str, Any]], None]) -> None:
    try:
        image: Image | None = image_of(settings)
    except UsageError as error:
        image = None
        print(f"the image's size is unknown, so the disk is checked without it: {error}")
    with cluster_of(settings) as cluster:
        reports = report(cluster, need_of(settings, image))
    show(reports)
    wanted = settings.fleet.size
    say(
        {
            "kind": "nodes",
            "schema_version": 1,
            "needed": wanted,
            "room": capacity(reports),
            "nodes": [document(report) for report in reports],
        }
    )
    check_kinds(settings, reports)
    if capacity(reports) < wanted:
        raise TaskFailed(too_few(settings, wanted, reports))
    print(capacity_summary(settings, wanted, reports))


def document(one: NodeReport) -> dict[str, Any]:
    """A node for programs; docs/reference.md says what the fields are."""
    return {
        "name": one.name,
        "qualifies": one.qualifies,
        "pods": one.pods,
        "instance_type": one.instance_type,
        "gpu": one.product,
        "gpus": one.gpus,
        "gpus_free": one.gpus_free,
        "disk_bytes": int(one.disk_bytes),
        "kubelet": one.kubelet,
        "driver": one.driver,
        "findings": [found.document() for found in one.findings],
    }


def capacity(reports: Sequence[NodeReport]) -> int:
    """How many pods the nodes can take."""
    return sum(report.pods for report in reports)


def capacity_summary(settings: Settings, wanted: int, reports: Sequence[NodeReport]) -> str:
    """The line where there is room for all."""
    able = sum(report.qualifies for report in reports)
    if settings.cluster.one_per_node:
        return f"{able} nodes qualify, {wanted} are needed"
    return (
        f"{able} nodes qualify, with room for {capacity(reports)} pods, {wanted} are needed; pods on one node share "
        "its cores, memory bandwidth, disk and network: loading and steps vary more than with one pod on each"
    )


def check_kinds(settings: Settings, reports: Sequence[NodeReport]) -> None:
    """Raise UsageError where the nodes that qualify have different kinds of GPU and nobody asked for that."""
    kinds = mixed(reports)
    if kinds and settings.cluster.gpu is None:
        raise UsageError(
            f"the nodes have different kinds of GPU: {', '.join(kinds)}; trials on them cannot be compared: set "
            f"cluster.gpu to one of them, or to {ANY_PRODUCT} if that is meant"
        )


def too_few(settings: Settings, wanted: int, reports: Sequence[NodeReport]) -> str:
    """The message where the nodes cannot take as many pods as the fleet has."""
    able, qualify = capacity(reports), sum(report.qualifies for report in reports)
    candidates = [report for report in reports if report.is_candidate and not report.qualifies]
    first = str(candidates[0].findings[0]) if candidates else "no other node has that instance type"
    least = f"set fleet.size to {able or 'what there is'}"
    if settings.cluster.one_per_node:
        more = sum((report.gpus_free or 0) // settings.cluster.gpus_per_pod for report in reports if report.qualifies)
        several = f"set cluster.one_per_node to false: there are free GPUs for {more}; or " if more > able else ""
        return f"{able} of {wanted} nodes qualify; {first}; or {several}{least}"
    return f"{qualify} nodes qualify, with room for {able} of {wanted} pods; {first}; or {least}"


def need_of(settings: Settings, image: Image | None) -> NodeRequirements:
    """What one pod of this deployment needs of a node."""
    section = settings.cluster
    preemptible = section.preemptible or section.overlay == "preemptible"
    tolerations: list[dict[str, Any]] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if preemptible:
        tolerations.append({"key": PREEMPTIBLE, "operator": "Exists"})
    # Without a shared volume the pod has a second local folder, for results.
    scratch = amount(section.scratch) * (1 if section.fss.volume_handle else 2)
    return NodeRequirements(
        instance_type=section.instance_type,
        preemptible=preemptible,
        cpu=amount(section.cpu),
        memory=amount(section.memory),
        scratch=scratch,
        tolerations=tolerations,
        namespace=section.namespace,
        gpus=section.gpus_per_pod,
        one_per_node=section.one_per_node,
        product=section.gpu,
        image=image.reference if image else None,
        image_bytes=image.size_bytes if image else None,
        drivers=(drivers(image.requires) if image and image.requires else None) or CUDA_12,
    )


def report(cluster: Cluster, need: NodeRequirements) -> list[NodeReport]:
    """A report for each node. Raises ClusterError; without the right to list all pods, free GPUs are not known."""
    nodes = cluster.nodes()
    try:
        pods = cluster.pods_everywhere()
    except Forbidden as error:
        print(f"free GPUs are not known: {error}")
        return examine(nodes, None, need)
    return examine(nodes, pods, need)


def show(reports: Sequence[NodeReport]) -> None:
    """The nodes as a table, then one line for each finding; nodes of other instance types are only counted."""
    screen = console()
    rows = table("node", "qualifies", "instance type", "GPU", "GPUs", "free", "disk", "kubelet", "driver")
    for one in reports:
        if not one.is_candidate and not one.gpus:
            continue
        rows.add_row(
            Text(one.name),
            Text("yes", style="green") if one.qualifies else Text("no", style="red"),
            Text(one.instance_type or "-"),
            Text((one.product or "-").removeprefix("NVIDIA-") + (f" (1/{one.shared})" if one.shared > 1 else "")),
            str(one.gpus),
            "?" if one.gpus_free is None else str(one.gpus_free),
            in_gib(one.disk_bytes),
            Text(one.kubelet),
            Text(one.driver or "unknown"),
        )
    if rows.row_count:
        screen.print(rows)
    for one in reports:
        if one.is_candidate or one.gpus:
            for finding in one.findings:
                screen.print(f"  {finding}")
    others = [report for report in reports if not report.is_candidate and not report.gpus]
    if others:
        names = ", ".join(other.name for other in others[:3]) + (", ..." if len(others) > 3 else "")
        screen.print(f"  {len(others)} nodes without GPU, of another instance type: {names}")
