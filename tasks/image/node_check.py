"""`inv image.verify --on-node`: run the self-check in a pod on a GPU node and read its report from the pod's log.

The pod runs the digest that `inv push` recorded, with a worker's resources. It needs a free GPU: while the workers use
all of them it stays pending, and the reason is printed.
"""

from typing import Any

from remote.image import pod_check
from remote.image.docker_client import ContainerExit, model_digests
from tasks.clients.cluster import open_cluster
from tasks.clients.image_ref import read_push_record, resolve_image
from tasks.clients.pod_check import PodCheck, run_pod_check
from tasks.errors import UsageError, escape_controls
from tasks.image.selfcheck_report import differing_models, finish, parse_report, print_report
from tasks.settings.load import Settings

VERIFY_TIMEOUT_SEC = 3600.0  # the check reads 14 GB in full


def verify_on_node(settings: Settings) -> None:
    image, section = resolve_image(settings), settings.cluster
    with open_cluster(settings, changes=True) as cluster:
        if cluster.namespace() is None:
            raise UsageError(
                f"no namespace {section.namespace}", remedy="`inv deploy` creates it, with its pull secret"
            )
        check = PodCheck(
            name=pod_check.POD_NAME,
            image=image.reference,
            args=pod_check.selfcheck_args(settings.fleet.pods.python),
            gpus=section.gpus_per_pod,
            cpu=section.cpu,
            memory=section.memory,
            timeout_sec=VERIFY_TIMEOUT_SEC,
            retry_command="inv image.verify --on-node",
        )
        node, text = run_pod_check(settings, cluster, check)
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
