"""A check that runs once in a pod of its own on a GPU node, without a GPU, and is read from the pod's log."""

import time
from dataclasses import dataclass
from typing import Any

from remote.cluster.diagnosis.nodes import ANY_PRODUCT, GPU_PRODUCT_LABEL, INSTANCE_TYPE_LABEL
from remote.cluster.diagnosis.pods import diagnose_pod
from remote.cluster.namespace_client import Cluster
from tasks.cli.waiting import Wait
from tasks.clients.target_cluster import PodPlacement
from tasks.errors import RetryableError, TaskFailed, escape_controls

DELETE_TIMEOUT_SEC = 60.0
_POLL_INTERVAL_SEC = 1.0


@dataclass(frozen=True, kw_only=True)
class PodCheck:
    """A pod that ends after its check: its image and program, its share of a node, and the limit of its run."""

    name: str
    image: str
    command: list[str]
    cpu: str
    memory: str
    timeout_sec: float
    retry_command: str


def run_pod_check(placement: PodPlacement, cluster: Cluster, check: PodCheck) -> tuple[str, str]:
    """Run the pod until it ends, and delete it. Returns its node and its log. Raises a task's errors."""
    secret = placement.pull_secret
    pod = pod_manifest(check, placement, has_secret=secret is not None and cluster.has_secret(secret))
    cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)  # left behind by a killed check
    cluster.apply([pod])
    print(f"pod {check.name} checks {check.image}", flush=True)
    try:
        with Wait(f"pod {check.name}") as line:
            node = _wait_until_ended(cluster, placement.section.ready_timeout_sec, check, line)
        return node, cluster.logs(check.name)
    finally:
        cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)


def pod_manifest(check: PodCheck, placement: PodPlacement, *, has_secret: bool) -> dict[str, Any]:
    """Build the pod: this share of a node, no volume except /tmp, killed at its deadline."""
    section = placement.section
    product = None if section.gpu == ANY_PRODUCT else section.gpu
    labels = {INSTANCE_TYPE_LABEL: placement.instance_type, GPU_PRODUCT_LABEL: product}
    node_selector = {name: value for name, value in labels.items() if value is not None}
    container = {
        "name": "check",
        "image": check.image,
        "command": check.command,
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - inside the pod
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": check.cpu, "memory": check.memory},
            "limits": {
                "memory": check.memory,
                **({} if section.cpu_limit is None else {"cpu": section.cpu_limit}),
            },
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - inside the pod
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": round(section.ready_timeout_sec + check.timeout_sec),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": node_selector,
        "tolerations": placement.tolerations,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
    }
    if has_secret:
        spec["imagePullSecrets"] = [{"name": placement.pull_secret}]
    metadata = {"name": check.name, "namespace": section.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _wait_until_ended(cluster: Cluster, ready_timeout_sec: float, check: PodCheck, line: Wait) -> str:
    """Wait until the pod has ended and return its node. Raises a task's errors."""
    started_at, first_seen = time.monotonic(), dict[str, float]()
    limit = ready_timeout_sec
    while True:
        pod = cluster.pod(check.name)
        if pod is None:
            raise TaskFailed(f"pod {check.name} was deleted", remedy=f"rerun `{check.retry_command}`")
        phase, now = pod.get("status", {}).get("phase"), time.monotonic()
        line.set_text(f"pod {check.name}: {phase}")
        if phase in ("Succeeded", "Failed"):
            return str(pod["spec"].get("nodeName", "?"))
        if phase == "Running":
            limit = ready_timeout_sec + check.timeout_sec
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
