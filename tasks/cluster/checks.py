"""What is checked before a plan changes the cluster: nodes, controllers, rights, and results that would be lost."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from remote.cluster.client import Cluster
from remote.cluster.errors import Forbidden
from remote.cluster.manifests import Image
from remote.cluster.plan import Action, ClusterPlan, Verb, is_training
from remote.cluster.resource_kinds import CSI_DRIVER, KINDS, POD, STORAGE_CLASS, Kind
from tasks.clients.cluster import remember
from tasks.cluster.nodes import capacity, capacity_summary, check_kinds, need_of, report, show, too_few
from tasks.errors import ConfirmationRequired, TaskFailed, UsageError, writing
from tasks.fleet.pending_results import PendingRun, discard, foreign_active_jobs, uncollected
from tasks.settings.load import Settings

EXEC = ("get", POD, "exec"), ("create", POD, "exec")  # what `kubectl exec` needs, by WebSocket and by SPDY
# overlay: (the API group that it needs, whose that is)
CONTROLLERS = {"job-4gpu-jobset": ("jobset.x-k8s.io", "JobSet"), "job-4gpu-kueue": ("kueue.x-k8s.io", "Kueue")}


def check_nodes(settings: Settings, cluster: Cluster, image: Image, planned: ClusterPlan, *, partial: bool) -> None:
    """Raise TaskFailed where fewer nodes qualify than the plan's pods need, unless `partial`."""
    starts = [a for a in planned.of(Verb.CREATE, Verb.REPLACE) if a.kind in ("Job", "JobSet") and a.desired]
    if not starts:
        return
    wanted = max(_pods_of(action) for action in starts)
    try:
        reports = report(cluster, need_of(settings, image))
    except Forbidden as error:
        print(f"the nodes cannot be checked: {error}")
        return
    check_kinds(settings, reports)
    able = capacity(reports)
    if able >= wanted:
        print(capacity_summary(settings, wanted, reports), flush=True)
        return
    show(reports)
    if partial:
        print(f"nodes: room for only {able} of {wanted} pods", flush=True)
        return
    raise TaskFailed(f"{too_few(settings, wanted, reports)}; or type the same with --partial; nothing was changed")


def _pods_of(action: Action) -> int:
    spec = (action.desired or {}).get("spec", {})
    if action.kind == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return int(spec.get("parallelism", 1))


def check_controller(settings: Settings, cluster: Cluster, planned: ClusterPlan) -> None:
    """Raise UsageError for an overlay whose controller is missing: without Kueue its Job would simply start."""
    needed = CONTROLLERS.get(settings.cluster.overlay)
    if needed is None or not planned.of(Verb.CREATE, Verb.REPLACE):
        return
    group, name = needed
    if not cluster.knows_group(group):
        raise UsageError(
            f"this cluster knows no {name}: its controller is not installed; choose another cluster.overlay "
            "(job-4gpu does the same without it), or have it installed; nothing was changed"
        )


def check_storage(cluster: Cluster, planned: ClusterPlan) -> None:
    """Raise UsageError where a volume's CSI driver or a claim's storage class is missing: pods would wait for ever."""
    for action in planned.of(Verb.CREATE, Verb.REPLACE):
        spec = (action.desired or {}).get("spec", {})
        if action.kind == "PersistentVolume" and "csi" in spec:
            kind, name, what = CSI_DRIVER, spec["csi"]["driver"], "CSI driver"
            remedy = "have it installed (on OKE: the add-on for File Storage), or set cluster.fss.volume_handle to null"
        elif action.kind == "PersistentVolumeClaim" and spec.get("storageClassName"):
            kind, name, what = STORAGE_CLASS, spec["storageClassName"], "storage class"
            remedy = "name one of `kubectl get storageclasses` in manifests/base/storage.yaml"
        else:
            continue
        try:
            is_there = cluster.has(kind, name)
        except Forbidden as error:
            print(f"whether there is a {what} {name} cannot be checked: {error}")
            continue
        if not is_there:
            raise UsageError(f"this cluster has no {what} {name}: {remedy}; nothing was changed")


def check_rights(cluster: Cluster, planned: ClusterPlan) -> None:
    """Raise UsageError for rights that are missing, before anything is half done."""
    require_rights(cluster, [*((verb, KINDS[kind], "") for verb, kind in planned.permissions), *EXEC])


def require_rights(cluster: Cluster, asked: Sequence[tuple[str, Kind, str]]) -> None:
    """Raise UsageError that names what is missing of the (verb, kind, subresource) in `asked`."""
    missing = missing_rights(cluster, asked)
    if missing:
        raise UsageError(
            f"user {cluster.target.user} may not {', '.join(missing)} in namespace {cluster.target.namespace}; "
            "ask the cluster's administrator for these rights (manifests/base/access.yaml has the role); "
            "nothing was changed"
        )


def missing_rights(cluster: Cluster, asked: Sequence[tuple[str, Kind, str]]) -> list[str]:
    """What our account may not do of the (verb, kind, subresource) in `asked`, in words."""
    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = list(pool.map(lambda one: cluster.allowed(*one), asked))
    return [
        f"{verb} {kind.plural}{'/' + sub if sub else ''}"
        for (verb, kind, sub), is_allowed in zip(asked, answers, strict=True)
        if not is_allowed
    ]


def refuse_losing_results(
    settings: Settings, cluster: Cluster, planned: ClusterPlan, *, may_lose: bool
) -> list[PendingRun]:
    """The runs whose results are lost with the pods that the plan ends. Raises Refused unless `may_lose`."""
    if not planned.ends_pods:
        return []
    for action in planned.ends_pods:
        if action.live is not None and is_training(action.live) and not may_lose:
            raise ConfirmationRequired(
                f"{action.title} is still training; wait for it (`inv status`), "
                "or type the same with --discard-results; nothing was changed"
            )
    lost = uncollected(settings.results_folder, cluster.target)
    if lost and not may_lose:
        more = f"; and {len(lost) - 3} more: `inv collect --all` brings what has ended" if len(lost) > 3 else ""
        raise ConfirmationRequired(
            f"{planned.ends_pods[0].title} would end with results in its pods: "
            f"{'; '.join(one.line for one in lost[:3])}{more}; "
            "or type the same with --discard-results; nothing was changed"
        )
    busy = [] if may_lose else foreign_active_jobs(settings, cluster.target)
    if busy:
        raise ConfirmationRequired(
            f"{planned.ends_pods[0].title} would end what runs in its pods: {'; '.join(busy[:3])}; wait for it "
            "(`inv monitor`), or type the same with --discard-results; nothing was changed"
        )
    return lost


def print_refusal(settings: Settings, cluster: Cluster, planned: ClusterPlan, *, may_lose: bool) -> None:
    """In a dry run: why the plan itself would be refused."""
    try:
        refuse_losing_results(settings, cluster, planned, may_lose=may_lose)
    except ConfirmationRequired as error:
        print(f"would be refused: {error}")


def write_down(settings: Settings, cluster: Cluster, lost: list[PendingRun]) -> None:
    """Remember that this cluster was changed last, and which runs were lost by it. Raises UsageError."""
    with writing(settings.results_folder):
        remember(settings, cluster.target)
        discard(lost)
