"""Check of the deployed pods, with the findings of `inv status`."""

from tasks.cluster.wait import read_state
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import CheckContext
from tasks.doctor.result import CheckResult, CheckStatus, Skipped, passed

CHECKS = Checks("pods")


@CHECKS.register(
    "up",
    "Is every deployed pod up, and if not, why? Pulls, scheduling, limits, mounts, crashes.",
    other_rows=examples.pods,
)
def up(context: CheckContext) -> CheckResult | list[CheckResult]:
    with context.open_cluster() as cluster:
        jobs = cluster.list_fleet_objects("Job")
        if not jobs:
            raise Skipped(f"nothing is deployed in namespace {cluster.target.namespace}: `inv deploy`")
        state = read_state(cluster, jobs)
    findings = {(finding.reason, finding.remedy): finding for finding in state.all_findings}
    failures = [
        CheckResult(
            status=CheckStatus.FAIL,
            message=f"{finding.subject}: {finding.reason}",
            remedy=finding.remedy,
            is_transient=finding.patience_sec is None,
        )
        for finding in findings.values()
    ]
    if failures or state.is_up:
        return failures or passed(f"{state.up_count} of {len(state.rows)} pods are up")
    pending = ", ".join(f"{row.job}[{row.index}] {row.state}" for row in state.rows if not row.is_up)
    return CheckResult(
        status=CheckStatus.WARN,
        message=f"{state.up_count} of {len(state.rows)} pods are up: {pending}",
        remedy="`inv deploy` waits for them",
    )
