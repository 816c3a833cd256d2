"""`inv image.verify --on-node`: the self-check in a pod on a GPU node, which ends by itself; its answer comes here.

The pod runs the digest that `inv push` wrote, with what a worker has of a node. Not covered: a pod beside the workers
where no GPU is free; it waits, and the line says for what.
"""

import time
from typing import Any

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.diagnosis.pods import diagnose_pod
from remote.image import pod_check
from remote.image.docker_client import ContainerExit, model_digests
from tasks.clients.cluster import cluster_of
from tasks.clients.image_ref import image_of, recorded
from tasks.errors import RetryableError, TaskFailed, UsageError, one_line
from tasks.image.selfcheck_report import conclude, differing_models, report_of, show
from tasks.settings.load import Settings

VERIFY_SEC = 3600.0  # 14 GB are read in full
GONE_SEC = 60.0
_LOOK_SEC = 1.0


def verify_on_node(settings: Settings) -> None:
    image, section = image_of(settings), settings.cluster
    with cluster_of(settings, changes=True) as cluster:
        if cluster.namespace() is None:
            raise UsageError(f"there is no namespace {section.namespace}; `inv deploy` makes it, with its pull secret")
        secret = section.pull_secret
        pod = pod_check.pod_of(
            namespace=section.namespace,
            image=image.reference,
            python=settings.fleet.pods.python,
            instance_type=section.instance_type,
            product=None if section.gpu == ANY_PRODUCT else section.gpu,
            gpus=section.gpus_per_pod,
            cpu=section.cpu,
            memory=section.memory,
            preemptible=section.preemptible or section.overlay == "preemptible",
            pull_secret=secret if secret is not None and cluster.has_secret(secret) else None,
            deadline_sec=section.ready_within_sec + VERIFY_SEC,
        )
        cluster.delete([pod], wait_sec=GONE_SEC)  # what a check that was killed has left
        cluster.apply([pod])
        print(f"pod {pod_check.NAME} checks {image.reference}", flush=True)
        try:
            node = _ended(cluster, settings)
            text = cluster.logs(pod_check.NAME)
        finally:
            cluster.delete([pod], wait_sec=GONE_SEC)
    name = f"{image.reference} on node {node}"
    report = _report(name, text)
    wrong = [*report["wrong"], *differing_models(report, _pushed_models(settings, report))]
    show(report)
    lines = text.splitlines()
    end = next((index for index, line in enumerate(lines) if line.startswith(pod_check.MARK)), None)
    said = [line for line in lines[:end] if line.strip()]
    if end is None or lines[end].split()[-1] != "0":
        wrong.append(f"python -m bench selfcheck: {said[-1] if said else 'no output'}")
    elif said:
        print(one_line(f"  {said[-1]}"))
    if not report["device"]["visible"]:
        wrong.append("no GPU is visible in the pod, although it was given one")
    conclude(name, wrong)


def _ended(cluster: Cluster, settings: Settings) -> str:
    """Wait until the pod has ended; the node that it ran on. Raises a task's errors."""
    began, seen = time.monotonic(), dict[str, float]()
    limit = settings.cluster.ready_within_sec
    while True:
        pod = cluster.pod(pod_check.NAME)
        if pod is None:
            raise TaskFailed(f"pod {pod_check.NAME} is gone: somebody deleted it; the same again")
        phase, now = pod.get("status", {}).get("phase"), time.monotonic()
        if phase in ("Succeeded", "Failed"):
            return str(pod["spec"].get("nodeName", "?"))
        if phase == "Running":
            limit = settings.cluster.ready_within_sec + VERIFY_SEC
        else:
            for finding in diagnose_pod(pod, cluster.events())[:1]:
                if str(finding) not in seen:
                    print(one_line(f"  {finding}"), flush=True)
                lasted = now - seen.setdefault(str(finding), now)
                if finding.patience_sec is not None and lasted > finding.patience_sec:
                    raise TaskFailed(f"{finding}; the pod was removed")
        if now - began > limit:
            last = next(reversed(seen), "it did not end")
            raise RetryableError(f"pod {pod_check.NAME}: not done after {limit:.0f} s: {last}; the same again")
        time.sleep(_LOOK_SEC)


def _report(name: str, text: str) -> dict[str, Any]:
    """The line of the log that is the self-check's report. Raises TaskFailed."""
    found = [line for line in text.splitlines() if line.startswith("{") and '"wrong"' in line]
    return report_of(name, ContainerExit(exit_code=1, stdout="\n".join(found[:1]), stderr=text))


def _pushed_models(settings: Settings, report: dict[str, Any]) -> dict[str, str]:
    """The models that the pushed image was built from; those of the report where that is not known here."""
    try:
        pushed = recorded(settings)
        if settings.cluster.image is None or pushed["digest"] in settings.cluster.image:
            return model_digests(pushed["labels"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    return {model["name"]: model["manifest_sha256"] for model in report["models"]}
