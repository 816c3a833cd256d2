"""Checks before a plan changes the cluster: nodes, controllers, permissions, and results that would be lost."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from remote.cluster.client import Cluster
from remote.cluster.manifests import Image
from remote.cluster.plan import Action, ClusterPlan, Verb, is_training
from remote.cluster.resource_kinds import CSI_DRIVER, KINDS, POD, STORAGE_CLASS, Kind
from remote.hosts.pods.errors import Forbidden
from tasks.clients.cluster import record_last_cluster
from tasks.cluster.nodes import (
    capacity,
    capacity_summary,
    check_gpu_products,
    node_reports,
    pod_requirements,
    print_nodes,
    shortage_message,
)
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError, results_write_errors
from tasks.fleet.pending_results import PendingRun, discard, foreign_active_jobs, pending_runs
from tasks.settings.load import Settings

EXEC_PERMISSIONS = ("get", POD, "exec"), ("create", POD, "exec")  # `kubectl exec` by WebSocket and by SPDY
# overlay: (the API group that it needs, the controller of that group)
OVERLAY_CONTROLLERS = {"job-4gpu-jobset": ("jobset.x-k8s.io", "JobSet"), "job-4gpu-kueue": ("kueue.x-k8s.io", "Kueue")}


def check_node_capacity(
    settings: Settings, cluster: Cluster, image: Image, cluster_plan: ClusterPlan, *, partial: bool
) -> None:
    """Raise TaskFailed if fewer nodes qualify than the plan's pods need, unless `partial`."""
    starts = [a for a in cluster_plan.with_verb(Verb.CREATE, Verb.REPLACE) if a.kind in ("Job", "JobSet") and a.desired]
    if not starts:
        return
    needed = max(_parallelism(action) for action in starts)
    try:
        reports = node_reports(cluster, pod_requirements(settings, image))
    except Forbidden as error:
        print(f"the nodes cannot be checked: {error}")
        return
    check_gpu_products(settings, reports)
    available = capacity(reports)
    if available >= needed:
        print(capacity_summary(settings, needed, reports), flush=True)
        return
    print_nodes(reports)
    if partial:
        print(f"nodes: room for only {available} of {needed} pods", flush=True)
        return
    raise TaskFailed(f"{shortage_message(settings, needed, reports)}; or pass --partial; nothing was changed")


def _parallelism(action: Action) -> int:
    spec = (action.desired or {}).get("spec", {})
    if action.kind == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return int(spec.get("parallelism", 1))


def check_controller(settings: Settings, cluster: Cluster, cluster_plan: ClusterPlan) -> None:
    """Raise UsageError if the overlay's controller is missing: without Kueue its Job would start at once."""
    needed = OVERLAY_CONTROLLERS.get(settings.cluster.overlay)
    if needed is None or not cluster_plan.with_verb(Verb.CREATE, Verb.REPLACE):
        return
    group, name = needed
    if not cluster.has_api_group(group):
        raise UsageError(
            f"this cluster has no {name}: its controller is not installed; set cluster.overlay to another one "
            "(job-4gpu does the same without it), or have it installed; nothing was changed"
        )


def check_storage(cluster: Cluster, cluster_plan: ClusterPlan) -> None:
    """Raise UsageError if a volume's CSI driver or a claim's storage class is missing: pods would wait indefinitely."""
    for action in cluster_plan.with_verb(Verb.CREATE, Verb.REPLACE):
        spec = (action.desired or {}).get("spec", {})
        if action.kind == "PersistentVolume" and "csi" in spec:
            kind, name, label = CSI_DRIVER, spec["csi"]["driver"], "CSI driver"
            remedy = cluster.provider.texts["volume-driver"]
        elif action.kind == "PersistentVolumeClaim" and spec.get("storageClassName"):
            kind, name, label = STORAGE_CLASS, spec["storageClassName"], "storage class"
            remedy = "name one of `kubectl get storageclasses` in manifests/base/storage.yaml"
        else:
            continue
        try:
            exists = cluster.has_object(kind, name)
        except Forbidden as error:
            print(f"{label} {name} cannot be checked: {error}")
            continue
        if not exists:
            raise UsageError(f"this cluster has no {label} {name}: {remedy}; nothing was changed")


def check_permissions(cluster: Cluster, cluster_plan: ClusterPlan) -> None:
    """Raise UsageError for missing permissions before the first change."""
    require_permissions(
        cluster, [*((verb, KINDS[kind], "") for verb, kind in cluster_plan.permissions), *EXEC_PERMISSIONS]
    )


def require_permissions(cluster: Cluster, permissions: Sequence[tuple[str, Kind, str]]) -> None:
    """Raise UsageError that names the missing ones of `permissions`: (verb, kind, subresource)."""
    missing = missing_permissions(cluster, permissions)
    if missing:
        raise UsageError(
            f"user {cluster.target.user} may not {', '.join(missing)} in namespace {cluster.target.namespace}; "
            "ask the cluster's administrator for these permissions (manifests/base/access.yaml has the role); "
            "nothing was changed"
        )


def missing_permissions(cluster: Cluster, permissions: Sequence[tuple[str, Kind, str]]) -> list[str]:
    """Return the missing ones of `permissions`, (verb, kind, subresource), as text."""
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(lambda permission: cluster.is_allowed(*permission), permissions))
    return [
        f"{verb} {kind.plural}{'/' + sub if sub else ''}"
        for (verb, kind, sub), is_allowed in zip(permissions, answers, strict=True)
        if not is_allowed
    ]


def check_pending_results(
    settings: Settings, cluster: Cluster, cluster_plan: ClusterPlan, *, discard_results: bool
) -> list[PendingRun]:
    """Return the runs whose results are lost with the pods that the plan deletes.

    Raises ConfirmationRequired if there are any, unless `discard_results`.
    """
    if not cluster_plan.pod_ending_actions:
        return []
    for action in cluster_plan.pod_ending_actions:
        if action.live is not None and is_training(action.live) and not discard_results:
            raise ConfirmationRequired(
                f"{action.title} is still training; wait until it ends (`inv status`), "
                "or pass --discard-results; nothing was changed"
            )
    ended = cluster_plan.with_verb(Verb.REPLACE, Verb.DELETE)
    is_volume_kept = all(action.kind != "PersistentVolumeClaim" for action in ended)
    lost = pending_runs(settings.results_folder, cluster.target, is_volume_kept=is_volume_kept)
    if lost and not discard_results:
        more = f"; and {len(lost) - 3} more: `inv collect --all` fetches what has ended" if len(lost) > 3 else ""
        raise ConfirmationRequired(
            f"{cluster_plan.pod_ending_actions[0].title} would be deleted with results in its pods: "
            f"{'; '.join(run.description for run in lost[:3])}{more}; "
            "or pass --discard-results; nothing was changed"
        )
    busy = [] if discard_results else foreign_active_jobs(settings, cluster.target)
    if busy:
        raise ConfirmationRequired(
            f"{cluster_plan.pod_ending_actions[0].title} would be deleted with running jobs: {'; '.join(busy[:3])}; "
            "wait until they end (`inv monitor`), or pass --discard-results; nothing was changed"
        )
    return lost


def print_refusal(settings: Settings, cluster: Cluster, cluster_plan: ClusterPlan, *, discard_results: bool) -> None:
    """Print, in a dry run, why the plan itself would be refused."""
    try:
        check_pending_results(settings, cluster, cluster_plan, discard_results=discard_results)
    except ConfirmationRequired as error:
        print(f"would be refused: {error}")


def record_change(settings: Settings, cluster: Cluster, lost: list[PendingRun]) -> None:
    """Record this cluster as the last changed one, and the runs as discarded. Raises UsageError."""
    with results_write_errors(settings.results_folder):
        record_last_cluster(settings, cluster.target)
        discard(lost)
