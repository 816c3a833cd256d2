"""The manifest of a pod that runs the image's self-check once on a GPU node. Pure."""

from typing import Any

from remote.cluster.diagnosis.nodes import GPU_PRODUCT_LABEL, GPU_RESOURCE, INSTANCE_TYPE_LABEL

POD_NAME = "image-check"
EXIT_MARKER = "image-check: python -m bench selfcheck ended with"
# Without a report the script stops and prints the end of standard error, which has the cause.
_SCRIPT = (
    '"$0" /opt/qlora-fleet/selfcheck.py --verify --json >/tmp/report 2>/tmp/why; cat /tmp/report; echo; '
    f'[ -s /tmp/report ] || {{ tail -c 2000 /tmp/why; exit 1; }}; "$0" -m bench selfcheck; echo "{EXIT_MARKER} $?"'
)


def pod_manifest(
    *,
    namespace: str,
    image: str,
    python: str,
    instance_type: str | None,
    product: str | None,
    gpus: int,
    cpu: str,
    memory: str,
    preemptible_label: str | None,
    pull_secret: str | None,
    deadline_sec: float,
) -> dict[str, Any]:
    """Build the pod: a worker's share of the node, no volume except /tmp, killed at its deadline."""
    tolerations = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    if preemptible_label is not None:
        tolerations.append({"key": preemptible_label, "operator": "Exists"})
    labels = {INSTANCE_TYPE_LABEL: instance_type, GPU_PRODUCT_LABEL: product}
    node_selector = {name: value for name, value in labels.items() if value is not None}
    container = {
        "name": "check",
        "image": image,
        "args": ["sh", "-c", _SCRIPT, python],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - inside the pod
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": cpu, "memory": memory},
            "limits": {"memory": memory, GPU_RESOURCE: str(gpus)},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - inside the pod
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": round(deadline_sec),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": node_selector,
        "tolerations": tolerations,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
    }
    if pull_secret is not None:
        spec["imagePullSecrets"] = [{"name": pull_secret}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD_NAME, "namespace": namespace}, "spec": spec}
