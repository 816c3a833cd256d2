"""The pods: what is deployed, and why a pod is not up, as `inv status` says it."""

from tasks.cluster.wait import state_of
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Skipped, fine

CHECKS = Checks("pods")


@CHECKS.asks(
    "up", "Is every deployed pod up, and if not, why? Pulls, scheduling, limits, mounts, crashes.", others=examples.pods
)
def up(facts: CheckContext) -> CheckResult | list[CheckResult]:
    with facts.reached() as cluster:
        jobs = cluster.list_of("Job")
        if not jobs:
            raise Skipped(f"nothing is deployed in namespace {cluster.target.namespace}: `inv deploy`")
        state = state_of(cluster, jobs)
    findings = {(all_finding.reason, all_finding.remedy): all_finding for all_finding in state.all_findings}
    wrong = [
        CheckResult(
            mark=CheckStatus.WRONG,
            found=f"{finding.subject}: {finding.reason}",
            remedy=finding.remedy,
            passes=finding.patience_sec is None,
        )
        for finding in findings.values()
    ]
    if wrong or state.is_up:
        return wrong or fine(f"{state.up} of {len(state.rows)} pods are up")
    waits = ", ".join(f"{row.job}[{row.index}] {row.state}" for row in state.rows if not row.is_up)
    return CheckResult(
        mark=CheckStatus.CAREFUL,
        found=f"{state.up} of {len(state.rows)} pods are up: {waits}",
        remedy="`inv deploy` waits",
    )
