"""Checks before a plan changes the cluster: nodes, controllers, and results that would be lost."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from remote.cluster.labels import WORKLOADS, job_spec
from remote.cluster.manifests import Image
from remote.cluster.namespace_client import Cluster
from remote.cluster.plan import ClusterPlan, Verb, is_training
from remote.cluster.settings import PodPlacement
from remote.hosts.pods.host import PodsSection
from remote.hosts.pods.kubectl import Forbidden
from tasks.cluster.node_list import capacity, check_capacity, check_gpu_products, node_reports, print_nodes
from tasks.errors import ConfirmationRequired, UsageError, results_write_errors
from tasks.fleet.pending_results import discard, foreign_active_jobs, has_training_ended, pending_runs

NOTHING_CHANGED = "nothing was changed"
# overlay: (the API group that it needs, the controller of that group)
OVERLAY_CONTROLLERS = {"job-4gpu-jobset": ("jobset.x-k8s.io", "JobSet"), "job-4gpu-kueue": ("kueue.x-k8s.io", "Kueue")}


def check_plan(
    cluster: Cluster, cluster_plan: ClusterPlan, placement: PodPlacement, image: Image, *, is_partial: bool
) -> None:
    """Check nodes and controller before the first change.

    Raises TaskFailed if fewer nodes qualify than the plan's pods need, unless `is_partial`, and UsageError without the
    overlay's controller: without Kueue its Job would start at once.
    """
    started = [action.desired for action in cluster_plan.with_verb(Verb.CREATE, Verb.REPLACE) if action.desired]
    needed = max((job_spec(item).get("parallelism", 1) for item in started if item["kind"] in WORKLOADS), default=0)
    if needed:
        _check_nodes(cluster, needed, placement, image, is_partial=is_partial)
    group, controller = OVERLAY_CONTROLLERS.get(placement.overlay, ("", ""))
    if started and controller and not cluster.has_api_group(group):
        raise UsageError(
            f"the overlay {placement.overlay} needs {controller}, which is not installed",
            remedy=f"set cluster.overlay to job-4gpu, which needs none, or have it installed; {NOTHING_CHANGED}",
        )


def _check_nodes(cluster: Cluster, needed: int, placement: PodPlacement, image: Image, *, is_partial: bool) -> None:
    try:
        reports = node_reports(cluster, placement, image)
    except Forbidden as error:
        print(f"the nodes cannot be checked: {error}")
        return
    available = capacity(reports)
    if available < needed:
        print_nodes(reports)
    if available < needed and is_partial:
        check_gpu_products(placement.section, reports)
        print(f"nodes: room for only {available} of {needed} pods", flush=True)
    else:
        print(check_capacity(placement, needed, reports, f"; or pass --partial; {NOTHING_CHANGED}"), flush=True)


@dataclass(frozen=True)
class ResultsGuard:
    """Protection of results that are only in the pods. With `discards`, the operator gives them up.

    `results_folder` has the runs of this machine; `pods` says which pods run trials of others.
    """

    cluster: Cluster
    results_folder: Path
    pods: PodsSection
    discards: bool

    def check(self, cluster_plan: ClusterPlan) -> Mapping[Path, str]:
        """Return the runs whose results are lost with the pods that the plan deletes.

        Raises ConfirmationRequired if there are any, unless `discards`.
        """
        ending, ended = cluster_plan.pod_ending_actions, cluster_plan.with_verb(Verb.REPLACE, Verb.DELETE)
        if not ending:
            return {}
        trainings = [a for a in ending if a.live and is_training(a.live)] if not self.discards else []
        for action in trainings:
            if action.live and not has_training_ended(self.results_folder, action.live):
                raise _would_lose(f"{action.title} is still training", "wait until it ends (`inv status`), ")
        is_volume_kept = all(action.kind != "PersistentVolumeClaim" for action in ended)
        lost = pending_runs(self.results_folder, self.cluster.target, is_volume_kept=is_volume_kept)
        if self.discards:
            return lost
        if lost:
            more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
            lines = "; ".join(list(lost.values())[:3])
            raise _would_lose(f"{ending[0].title} would be deleted with results in its pods: {lines}{more}")
        if busy := foreign_active_jobs(self.results_folder, self.cluster, self.pods):
            problem = f"{ending[0].title} would be deleted with running jobs: {'; '.join(busy[:3])}"
            raise _would_lose(problem, "wait until they end (`inv monitor`), ")
        return lost

    def print_refusal(self, cluster_plan: ClusterPlan) -> str | None:
        """Print, in a dry run, why the plan itself would be refused; return the reason, None without one."""
        try:
            self.check(cluster_plan)
        except ConfirmationRequired as error:
            print(f"would be refused: {error}")
            return str(error)
        return None

    def record_discarded(self, lost: Mapping[Path, str]) -> None:
        """Record the runs as discarded. Raises UsageError."""
        with results_write_errors(self.results_folder):
            discard(lost)


def _would_lose(problem: str, advice: str = "") -> ConfirmationRequired:
    return ConfirmationRequired(problem, remedy=f"{advice}or pass --discard-results; {NOTHING_CHANGED}")
