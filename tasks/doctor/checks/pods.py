"""The pods: what is deployed, and why a pod is not up, as `inv status` says it."""

from tasks.cluster.wait import state_of
from tasks.doctor import examples
from tasks.doctor.check import Checks
from tasks.doctor.context import Facts
from tasks.doctor.result import Answer, Mark, NotAsked, fine

CHECKS = Checks("pods")


@CHECKS.asks(
    "up", "Is every deployed pod up, and if not, why? Pulls, scheduling, limits, mounts, crashes.", others=examples.pods
)
def up(facts: Facts) -> Answer | list[Answer]:
    with facts.reached() as cluster:
        jobs = cluster.list_of("Job")
        if not jobs:
            raise NotAsked(f"nothing is deployed in namespace {cluster.target.namespace}: `inv deploy`")
        state = state_of(cluster, jobs)
    findings = {(one.reason, one.remedy): one for one in state.all_findings}
    wrong = [
        Answer(
            mark=Mark.WRONG,
            found=f"{one.subject}: {one.reason}",
            remedy=one.remedy,
            passes=one.patience_sec is None,
        )
        for one in findings.values()
    ]
    if wrong or state.is_up:
        return wrong or fine(f"{state.up} of {len(state.rows)} pods are up")
    waits = ", ".join(f"{row.job}[{row.index}] {row.state}" for row in state.rows if not row.is_up)
    return Answer(
        mark=Mark.CAREFUL, found=f"{state.up} of {len(state.rows)} pods are up: {waits}", remedy="`inv deploy` waits"
    )
