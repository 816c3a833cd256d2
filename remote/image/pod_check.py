"""The manifest of a pod that runs a check once on a GPU node, and the self-check's arguments. Pure."""

from typing import Any

from remote.cluster.diagnosis.nodes import GPU_PRODUCT_LABEL, GPU_RESOURCE, INSTANCE_TYPE_LABEL

POD_NAME = "image-check"
EXIT_MARKER = "image-check: python -m bench selfcheck ended with"
# Without a report the script stops and prints the end of standard error, which has the cause.
_SCRIPT = (
    '"$0" /opt/qlora-fleet/selfcheck.py --verify --json >/tmp/report 2>/tmp/why; cat /tmp/report; echo; '
    f'[ -s /tmp/report ] || {{ tail -c 2000 /tmp/why; exit 1; }}; "$0" -m bench selfcheck; echo "{EXIT_MARKER} $?"'
)


def selfcheck_args(python: str) -> list[str]:
    return ["sh", "-c", _SCRIPT, python]


def pod_manifest(
    *,
    name: str,
    namespace: str,
    image: str,
    args: list[str] | None = None,
    command: list[str] | None = None,
    instance_type: str | None,
    product: str | None,
    gpus: int,
    cpu: str,
    cpu_limit: str | None,
    memory: str,
    preemptible_label: str | None,
    pull_secret: str | None,
    deadline_sec: float,
) -> dict[str, Any]:
    """Build the pod: this share of a node, no volume except /tmp, killed at its deadline."""
    tolerations = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
    if preemptible_label is not None:
        tolerations.append({"key": preemptible_label, "operator": "Exists"})
    labels = {INSTANCE_TYPE_LABEL: instance_type, GPU_PRODUCT_LABEL: product}
    node_selector = {name: value for name, value in labels.items() if value is not None}
    container = {
        "name": "check",
        "image": image,
        **({} if command is None else {"command": command}),
        **({} if args is None else {"args": args}),
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - inside the pod
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": cpu, "memory": memory},
            "limits": {
                "memory": memory,
                **({GPU_RESOURCE: str(gpus)} if gpus else {}),
                **({} if cpu_limit is None else {"cpu": cpu_limit}),
            },
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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
