"""A pod that runs the image's self-check once, on a GPU node, and ends. Pure."""

from typing import Any

from remote.cluster.diagnosis.nodes import GPU, INSTANCE_TYPE, PREEMPTIBLE, PRODUCT

NAME = "image-check"
MARK = "image-check: python -m bench selfcheck ended with"
# Without a report there is nothing more to try, and standard error says why there is none.
_SCRIPT = (
    '"$0" /opt/qlora-fleet/selfcheck.py --verify --json >/tmp/report 2>/tmp/why; cat /tmp/report; echo; '
    f'[ -s /tmp/report ] || {{ tail -c 2000 /tmp/why; exit 1; }}; "$0" -m bench selfcheck; echo "{MARK} $?"'
)


def pod_of(
    *,
    namespace: str,
    image: str,
    python: str,
    instance_type: str,
    product: str | None,
    gpus: int,
    cpu: str,
    memory: str,
    preemptible: bool,
    pull_secret: str | None,
    deadline_sec: float,
) -> dict[str, Any]:
    """The pod. It has what a worker has of the node, no volume but memory and /tmp, and is ended at its deadline."""
    tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
    if preemptible:
        tolerations.append({"key": PREEMPTIBLE, "operator": "Exists"})
    wanted = {INSTANCE_TYPE: instance_type, **({PRODUCT: product} if product is not None else {})}
    container = {
        "name": "check",
        "image": image,
        "args": ["sh", "-c", _SCRIPT, python],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - the pod's own
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": cpu, "memory": memory},
            "limits": {"memory": memory, GPU: str(gpus)},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": round(deadline_sec),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": wanted,
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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "namespace": namespace}, "spec": spec}
