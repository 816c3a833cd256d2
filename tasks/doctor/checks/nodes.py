"""Checks of the nodes: the findings of `inv nodes`, grouped by cause."""

from collections.abc import Sequence
from functools import partial

from remote.cluster.diagnosis.finding import grouped_lines
from tasks.cluster.nodes import capacity, capacity_summary, check_gpu_products, shortage_message
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Skipped, from_message, passed
from tasks.errors import TaskFailed

CHECKS = Checks("nodes")
# check name: (question, causes of the findings that it reports)
_CAUSES = {
    "health": ("Are the nodes Ready, without pressure, not cordoned?", ("not-ready", "pressure", "cordoned")),
    "taints": ("Do our pods tolerate their taints?", ("taint", "not-preemptible")),
    "GPUs": (
        "Does each have whole GPUs of one kind that no other pod holds? Does the device plugin run?",
        ("device-plugin", "split", "gpu-product", "gpu-shared", "few-gpus", "gpu-taken"),
    ),
    "room": (
        "Do they have cores, memory, and a disk for the image and cluster.scratch?",
        ("no-cpu", "no-memory", "disk"),
    ),
    "versions": (
        "Are kubelet and NVIDIA driver new enough, the driver for the image's CUDA?",
        ("kubelet", "driver"),
    ),
}


@CHECKS.register(
    "enough",
    "Do as many nodes qualify as the fleet has pods, with one kind of GPU?",
    other_rows=partial(examples.nodes, ("instance-type",)),
)
def enough(context: CheckContext) -> CheckResult:
    reports, settings = context.nodes.get_or_raise(), context.settings
    check_gpu_products(settings, reports)
    if capacity(reports) < settings.fleet.size:
        raise TaskFailed(shortage_message(settings, settings.fleet.size, reports))
    return passed(capacity_summary(settings, settings.fleet.size, reports))


def check_causes(causes: Sequence[str], context: CheckContext) -> CheckResult | list[CheckResult]:
    """Return the findings with these causes, one result for all nodes with the same finding."""
    reports = [report for report in context.nodes.get_or_skip() if report.is_candidate]
    if not reports:
        raise Skipped("see nodes enough")
    findings = [finding for report in reports for finding in report.findings if finding.cause in causes]
    no_findings = passed(f"no problem on {len(reports)} nodes")
    return [from_message(line) for line in grouped_lines(findings)] or no_findings


for _name, (_question, _causes) in _CAUSES.items():
    CHECKS.register(_name, _question, other_rows=partial(examples.nodes, _causes))(partial(check_causes, _causes))
