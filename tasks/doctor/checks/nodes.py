"""Checks of the nodes and of the deployed pods: the findings of `inv nodes` and `inv status`."""

from collections.abc import Iterable, Sequence
from functools import partial

from remote.cluster.diagnosis.finding import Diagnosis, group
from tasks.cluster.nodes import check_capacity
from tasks.cluster.wait import read_state
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.faults import CheckResult, CheckStatus, Skipped, passed

CHECKS, POD_CHECKS = Checks("nodes"), Checks("pods")
# check name: (question, causes of the findings that it reports)
CAUSES = {
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


@CHECKS.register("enough", "Do as many nodes qualify as the fleet has pods, with one kind of GPU?")
def enough(context: CheckContext) -> CheckResult:
    return passed(check_capacity(context.settings, context.settings.fleet.size, context.nodes.get_or_raise()))


def check_causes(causes: Sequence[str], context: CheckContext) -> CheckResult | list[CheckResult]:
    """Return the findings with these causes, one result for all nodes with the same finding."""
    reports = [report for report in context.nodes.get_or_skip() if report.is_candidate]
    if not reports:
        raise Skipped("see nodes enough")
    findings = [finding for report in reports for finding in report.findings if finding.cause in causes]
    return _failures(findings) or passed(f"no problem on {len(reports)} nodes")


for _name, (_question, _causes) in CAUSES.items():
    CHECKS.register(_name, _question)(partial(check_causes, _causes))


@POD_CHECKS.register("up", "Is every deployed pod up, and if not, why? Pulls, scheduling, limits, mounts, crashes.")
def up(context: CheckContext) -> CheckResult | list[CheckResult]:
    with context.open_cluster() as cluster:
        jobs = cluster.list_fleet_objects("Job")
        if not jobs:
            raise Skipped(f"nothing is deployed in namespace {cluster.target.namespace}: `inv deploy`")
        state = read_state(cluster, jobs)
    if state.all_findings or state.is_up:
        return _failures(state.all_findings) or passed(f"{state.up_count} of {len(state.rows)} pods are up")
    pending = ", ".join(f"{row.job}[{row.index}] {row.state}" for row in state.rows if not row.is_up)
    return CheckResult(
        status=CheckStatus.WARN,
        message=f"{state.up_count} of {len(state.rows)} pods are up: {pending}",
        remedy="`inv deploy` waits for them",
    )


def _failures(findings: Iterable[Diagnosis]) -> list[CheckResult]:
    return [
        CheckResult(
            status=CheckStatus.FAIL,
            message=f"{finding.subject}: {finding.reason}",
            remedy=finding.remedy,
            is_transient=finding.patience_sec is None,
        )
        for finding in group(findings)
    ]
