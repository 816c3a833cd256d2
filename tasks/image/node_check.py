"""`inv image.verify --on-node`: run the self-check in a pod on a GPU node and read its report from the pod's log.

The pod runs the digest that `inv push` recorded, with a worker's resources. It needs a free GPU: while the workers use
all of them it stays pending, and the reason is printed.
"""

import time
from typing import Any

from remote.cluster.client import Cluster
from remote.cluster.diagnosis.nodes import ANY_PRODUCT
from remote.cluster.diagnosis.pods import diagnose_pod
from remote.image import pod_check
from remote.image.docker_client import ContainerExit, model_digests
from tasks.clients.cluster import open_cluster
from tasks.clients.image_ref import read_push_record, resolve_image
from tasks.clients.provider import resolve_provider, uses_preemptible_nodes
from tasks.errors import RetryableError, TaskFailed, UsageError, escape_controls
from tasks.image.selfcheck_report import differing_models, finish, parse_report, print_report
from tasks.settings.load import Settings

VERIFY_TIMEOUT_SEC = 3600.0  # the check reads 14 GB in full
DELETE_TIMEOUT_SEC = 60.0
_POLL_INTERVAL_SEC = 1.0


def verify_on_node(settings: Settings) -> None:
    image = resolve_image(settings)
    with open_cluster(settings, changes=True) as cluster:
        settings = resolve_provider(settings, cluster)
        section, provider = settings.cluster, cluster.provider
        if cluster.namespace() is None:
            raise UsageError(f"no namespace {section.namespace}; `inv deploy` creates it, with its pull secret")
        secret = section.pull_secret
        pod = pod_check.pod_manifest(
            namespace=section.namespace,
            image=image.reference,
            python=settings.fleet.pods.python,
            instance_type=section.instance_type,
            product=None if section.gpu == ANY_PRODUCT else section.gpu,
            gpus=section.gpus_per_pod,
            cpu=section.cpu,
            memory=section.memory,
            preemptible_label=provider.preemptible_label if uses_preemptible_nodes(settings) else None,
            pull_secret=secret if secret is not None and cluster.has_secret(secret) else None,
            deadline_sec=section.ready_timeout_sec + VERIFY_TIMEOUT_SEC,
        )
        cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)  # left behind by a killed check
        cluster.apply([pod])
        print(f"pod {pod_check.POD_NAME} checks {image.reference}", flush=True)
        try:
            node = _wait_until_ended(cluster, settings)
            text = cluster.logs(pod_check.POD_NAME)
        finally:
            cluster.delete([pod], wait_sec=DELETE_TIMEOUT_SEC)
    name = f"{image.reference} on node {node}"
    report = _parse_log(name, text)
    problems = [*report["wrong"], *differing_models(report, _pushed_models(settings, report))]
    print_report(report)
    lines = text.splitlines()
    marker_index = next((index for index, line in enumerate(lines) if line.startswith(pod_check.EXIT_MARKER)), None)
    trial_lines = [line for line in lines[:marker_index] if line.strip()]
    if marker_index is None or lines[marker_index].split()[-1] != "0":
        problems.append(f"python -m bench selfcheck: {trial_lines[-1] if trial_lines else 'no output'}")
    elif trial_lines:
        print(escape_controls(f"  {trial_lines[-1]}"))
    if not report["device"]["visible"]:
        problems.append("no GPU is visible in the pod, although one was allocated to it")
    finish(name, problems)


def _wait_until_ended(cluster: Cluster, settings: Settings) -> str:
    """Wait until the pod has ended and return its node. Raises a task's errors."""
    started_at, first_seen = time.monotonic(), dict[str, float]()
    limit = settings.cluster.ready_timeout_sec
    while True:
        pod = cluster.pod(pod_check.POD_NAME)
        if pod is None:
            raise TaskFailed(f"pod {pod_check.POD_NAME} was deleted; rerun `inv image.verify --on-node`")
        phase, now = pod.get("status", {}).get("phase"), time.monotonic()
        if phase in ("Succeeded", "Failed"):
            return str(pod["spec"].get("nodeName", "?"))
        if phase == "Running":
            limit = settings.cluster.ready_timeout_sec + VERIFY_TIMEOUT_SEC
        else:
            for finding in diagnose_pod(pod, cluster.events(), cluster.provider)[:1]:
                if str(finding) not in first_seen:
                    print(escape_controls(f"  {finding}"), flush=True)
                lasted_sec = now - first_seen.setdefault(str(finding), now)
                if finding.patience_sec is not None and lasted_sec > finding.patience_sec:
                    raise TaskFailed(f"{finding}; the pod was deleted")
        if now - started_at > limit:
            reason = next(reversed(first_seen), "it did not end")
            raise RetryableError(
                f"pod {pod_check.POD_NAME}: not done after {limit:.0f} s: {reason}; rerun `inv image.verify --on-node`"
            )
        time.sleep(_POLL_INTERVAL_SEC)


def _parse_log(name: str, text: str) -> dict[str, Any]:
    """Parse the self-check's report from its line of the log. Raises TaskFailed."""
    report_lines = [line for line in text.splitlines() if line.startswith("{") and '"wrong"' in line]
    return parse_report(name, ContainerExit(exit_code=1, stdout="\n".join(report_lines[:1]), stderr=text))


def _pushed_models(settings: Settings, report: dict[str, Any]) -> dict[str, str]:
    """Return the manifest digests of the pushed image's models; the report's own if the push is not recorded here."""
    try:
        pushed = read_push_record(settings)
        if settings.cluster.image is None or pushed["digest"] in settings.cluster.image:
            return model_digests(pushed["labels"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # never pushed from here
    return {model["name"]: model["manifest_sha256"] for model in report["models"]}
