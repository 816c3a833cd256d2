"""A check that runs once in a pod of its own on a GPU node, without a GPU, and is read from the pod's log."""

import time
from typing import Any

from remote.cluster.diagnosis.nodes import ANY_PRODUCT, GPU_PRODUCT_LABEL, INSTANCE_TYPE_LABEL
from remote.cluster.diagnosis.pods import diagnose_pod
from remote.cluster.namespace_client import Cluster
from tasks.cli.waiting import Wait
from tasks.clients.target_cluster import PodPlacement
from tasks.errors import RetryableError, TaskFailed, escape_controls

NAME, CPU, MEMORY = "serve-check", "100m", "256Mi"
TIMEOUT_SEC, DELETE_TIMEOUT_SEC = 120.0, 60.0
_POLL_INTERVAL_SEC = 1.0


def run_pod_check(placement: PodPlacement, cluster: Cluster, image: str, command: list[str], retry_command: str) -> str:
    """Run the command in a pod of this image until it ends, and delete the pod. Returns its log.

    Raises a task's errors.
    """
    secret = placement.pull_secret
    has_secret = secret is not None and cluster.has_secret(secret)
    pod = pod_manifest(image, command, placement, has_secret=has_secret)
    cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)  # left behind by a killed check
    cluster.apply([pod])
    print(f"pod {NAME} checks {image}", flush=True)
    try:
        with Wait(f"pod {NAME}") as line:
            _wait_until_ended(cluster, placement.section.ready_timeout_sec, retry_command, line)
        return cluster.logs(NAME)
    finally:
        cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)


def pod_manifest(image: str, command: list[str], placement: PodPlacement, *, has_secret: bool) -> dict[str, Any]:
    """Build the pod: this share of a node, no volume except /tmp, killed at its deadline."""
    section = placement.section
    product = None if section.gpu == ANY_PRODUCT else section.gpu
    labels = {INSTANCE_TYPE_LABEL: placement.instance_type, GPU_PRODUCT_LABEL: product}
    node_selector = {name: value for name, value in labels.items() if value is not None}
    container = {
        "name": "check",
        "image": image,
        "command": command,
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - inside the pod
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": CPU, "memory": MEMORY},
            "limits": {
                "memory": MEMORY,
                **({} if section.cpu_limit is None else {"cpu": section.cpu_limit}),
            },
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - inside the pod
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": round(section.ready_timeout_sec + TIMEOUT_SEC),
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
    metadata = {"name": NAME, "namespace": section.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _wait_until_ended(cluster: Cluster, ready_timeout_sec: float, retry_command: str, line: Wait) -> None:
    """Wait until the pod has ended. Raises a task's errors."""
    started_at, first_seen = time.monotonic(), dict[str, float]()
    limit = ready_timeout_sec
    while True:
        pod = cluster.pod(NAME)
        if pod is None:
            raise TaskFailed(f"pod {NAME} was deleted", remedy=f"rerun `{retry_command}`")
        phase, now = pod.get("status", {}).get("phase"), time.monotonic()
        line.set_text(f"pod {NAME}: {phase}")
        if phase in ("Succeeded", "Failed"):
            return
        if phase == "Running":
            limit = ready_timeout_sec + TIMEOUT_SEC
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
                f"pod {NAME}: not done after {limit:.0f} s: {reason}", remedy=f"rerun `{retry_command}`"
            )
        time.sleep(_POLL_INTERVAL_SEC)
