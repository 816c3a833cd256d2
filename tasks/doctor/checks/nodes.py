"""The nodes: `inv nodes`' own findings, grouped by what they are about."""

from collections.abc import Sequence
from functools import partial

from remote.cluster.diagnosis.finding import together
from tasks.cluster.nodes import capacity, capacity_summary, check_kinds, too_few
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, Skipped, fine, from_error
from tasks.errors import TaskFailed

CHECKS = Checks("nodes")
# The question of each check, and the causes that it is about.
_ABOUT = {
    "health": ("Are the nodes Ready, without pressure, not cordoned?", ("not-ready", "pressure", "cordoned")),
    "taints": ("Do our pods tolerate their taints?", ("taint", "not-preemptible")),
    "GPUs": (
        "Does each allocate whole GPUs of one kind that nobody else holds? Does the device plugin run?",
        ("device-plugin", "split", "gpu-product", "gpu-shared", "few-gpus", "gpu-taken"),
    ),
    "room": (
        "Have they cores, memory, and a disk for the image and cluster.scratch?",
        ("no-cpu", "no-memory", "disk"),
    ),
    "versions": (
        "Are kubelet and NVIDIA driver new enough, the driver for the image's CUDA?",
        ("kubelet", "driver"),
    ),
}


@CHECKS.asks(
    "enough",
    "Do as many nodes qualify as the fleet has pods, with one kind of GPU?",
    others=partial(examples.nodes, ("instance-type",)),
)
def enough(facts: CheckContext) -> CheckResult:
    reports, settings = facts.nodes.first(), facts.settings
    check_kinds(settings, reports)
    if capacity(reports) < settings.fleet.size:
        raise TaskFailed(too_few(settings, settings.fleet.size, reports))
    return fine(capacity_summary(settings, settings.fleet.size, reports))


def about(causes: Sequence[str], facts: CheckContext) -> CheckResult | list[CheckResult]:
    """The findings with these causes, one answer for all nodes that have the same."""
    reports = [one for one in facts.nodes.get() if one.is_candidate]
    if not reports:
        raise Skipped("see nodes enough")
    findings = [finding for report in reports for finding in report.findings if finding.cause in causes]
    said = fine(f"nothing is wrong on {len(reports)} nodes of {facts.settings.cluster.instance_type}")
    return [from_error(line) for line in together(findings)] or said


for _name, (_question, _causes) in _ABOUT.items():
    CHECKS.asks(_name, _question, others=partial(examples.nodes, _causes))(partial(about, _causes))
