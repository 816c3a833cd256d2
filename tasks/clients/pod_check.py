"""A check that runs once in a pod of its own on a GPU node, and is read from the pod's log."""

import time
from dataclasses import dataclass

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.diagnosis.pods import diagnose_pod
from remote.image import pod_check
from tasks.clients.provider import resolve_provider, uses_preemptible_nodes
from tasks.errors import RetryableError, TaskFailed, escape_controls
from tasks.settings.load import Settings

DELETE_TIMEOUT_SEC = 60.0
_POLL_INTERVAL_SEC = 1.0


@dataclass(frozen=True, kw_only=True)
class PodCheck:
    """A pod that ends after its check: its image and program, its share of a node, and the limit of its run."""

    name: str
    image: str
    args: list[str] | None = None
    command: list[str] | None = None
    gpus: int
    cpu: str
    memory: str
    timeout_sec: float
    retry_command: str


def run_pod_check(settings: Settings, cluster: Cluster, check: PodCheck) -> tuple[str, str]:
    """Run the pod until it ends, and delete it. Returns its node and its log. Raises a task's errors."""
    settings = resolve_provider(settings, cluster)
    section, secret = settings.cluster, settings.cluster.pull_secret
    pod = pod_check.pod_manifest(
        name=check.name,
        namespace=section.namespace,
        image=check.image,
        args=check.args,
        command=check.command,
        instance_type=section.instance_type,
        product=None if section.gpu == ANY_PRODUCT else section.gpu,
        gpus=check.gpus,
        cpu=check.cpu,
        cpu_limit=section.cpu_limit,
        memory=check.memory,
        preemptible_label=cluster.provider.preemptible_label if uses_preemptible_nodes(settings) else None,
        pull_secret=secret if secret is not None and cluster.has_secret(secret) else None,
        deadline_sec=section.ready_timeout_sec + check.timeout_sec,
    )
    cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)  # left behind by a killed check
    cluster.apply([pod])
    print(f"pod {check.name} checks {check.image}", flush=True)
    try:
        node = _wait_until_ended(cluster, settings, check)
        return node, cluster.logs(check.name)
    finally:
        cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)


def _wait_until_ended(cluster: Cluster, settings: Settings, check: PodCheck) -> str:
    """Wait until the pod has ended and return its node. Raises a task's errors."""
    started_at, first_seen = time.monotonic(), dict[str, float]()
    limit = settings.cluster.ready_timeout_sec
    while True:
        pod = cluster.pod(check.name)
        if pod is None:
            raise TaskFailed(f"pod {check.name} was deleted", remedy=f"rerun `{check.retry_command}`")
        phase, now = pod.get("status", {}).get("phase"), time.monotonic()
        if phase in ("Succeeded", "Failed"):
            return str(pod["spec"].get("nodeName", "?"))
        if phase == "Running":
            limit = settings.cluster.ready_timeout_sec + check.timeout_sec
        else:
            for finding in diagnose_pod(pod, cluster.events(), cluster.provider)[:1]:
                if str(finding) not in first_seen:
                    print(escape_controls(f"  {finding}"), flush=True)
                lasted_sec = now - first_seen.setdefault(str(finding), now)
                if finding.patience_sec is not None and lasted_sec > finding.patience_sec:
                    raise TaskFailed(finding.problem, remedy=f"{finding.remedy}; the pod was deleted")
        if now - started_at > limit:
            reason = next(reversed(first_seen), "it did not end")
            raise RetryableError(
                f"pod {check.name}: not done after {limit:.0f} s: {reason}", remedy=f"rerun `{check.retry_command}`"
            )
        time.sleep(_POLL_INTERVAL_SEC)
