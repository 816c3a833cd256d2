"""`inv nodes`: which nodes can take a pod, and why not the others."""

from typing import Any

from invoke.context import Context
from rich.text import Text

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import PREEMPTIBLE, Need, NodeReport, examine
from remote.cluster.errors import Forbidden
from remote.cluster.manifests import Image
from remote.cluster.quantity import amount, in_gib
from tasks.cli.terminal import console, table
from tasks.cluster.desired import image_of
from tasks.connect.cluster import cluster_of
from tasks.errors import TaskFailed, UsageError
from tasks.settings.load import Settings, load


def check_nodes(context: Context) -> None:
    settings = load(context)
    try:
        image: Image | None = image_of(settings)
    except UsageError as error:
        image = None
        print(f"the image's size is unknown, so the disk is checked without it: {error}")
    with cluster_of(settings) as cluster:
        reports = report(cluster, need_of(settings, image))
    show(reports)
    wanted = settings.fleet.size
    able = sum(one.qualifies for one in reports)
    if able < wanted:
        raise TaskFailed(too_few(able, wanted, reports))
    print(f"{able} nodes qualify, {wanted} are needed")


def too_few(able: int, wanted: int, reports: list[NodeReport]) -> str:
    """The message where fewer nodes qualify than the fleet needs."""
    candidates = [one for one in reports if one.is_candidate and not one.qualifies]
    first = str(candidates[0].findings[0]) if candidates else "no other node has that instance type"
    return f"{able} of {wanted} nodes qualify; {first}; or set fleet.size to {able or 'what there is'}"


def need_of(settings: Settings, image: Image | None) -> Need:
    """What one pod of this deployment needs of a node."""
    section = settings.cluster
    preemptible = section.preemptible or section.overlay == "preemptible"
    tolerations: list[dict[str, Any]] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    if preemptible:
        tolerations.append({"key": PREEMPTIBLE, "operator": "Exists"})
    # Without a shared volume the pod has a second local folder, for results.
    scratch = amount(section.scratch) * (1 if section.fss.volume_handle else 2)
    return Need(
        instance_type=section.instance_type,
        preemptible=preemptible,
        cpu=amount(section.cpu),
        memory=amount(section.memory),
        scratch=scratch,
        tolerations=tolerations,
        namespace=section.namespace,
        image=image.reference if image else None,
        image_bytes=image.size_bytes if image else None,
    )


def report(cluster: Cluster, need: Need) -> list[NodeReport]:
    """A report for each node. Raises ClusterError; without the right to list all pods, free GPUs are not known."""
    nodes = cluster.nodes()
    try:
        pods = cluster.pods_everywhere()
    except Forbidden as error:
        print(f"free GPUs are not known: {error}")
        return examine(nodes, None, need)
    return examine(nodes, pods, need)


def show(reports: list[NodeReport]) -> None:
    """The nodes as a table, then one line for each finding; nodes of other instance types are only counted."""
    screen = console()
    rows = table("node", "qualifies", "instance type", "GPUs", "free", "disk", "kubelet", "driver")
    for one in reports:
        if not one.is_candidate and not one.gpus:
            continue
        rows.add_row(
            Text(one.name),
            Text("yes", style="green") if one.qualifies else Text("no", style="red"),
            Text(one.instance_type or "-"),
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
    others = [one for one in reports if not one.is_candidate and not one.gpus]
    if others:
        names = ", ".join(one.name for one in others[:3]) + (", ..." if len(others) > 3 else "")
        screen.print(f"  {len(others)} nodes without GPU, of another instance type: {names}")
