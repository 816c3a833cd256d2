"""Are the pods of a Job there? One row per index, from pods and events as the API shows them. Pure.

Not covered: JobSets, whose pods are counted by the Jobs that they make.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.diagnosis.pods import diagnose_claim, diagnose_job, diagnose_pod, is_ready
from remote.cluster.errors import reading_objects
from remote.cluster.labels import COMPONENT_LABEL, INDEX_LABEL, JOB_LABEL, Object, label
from remote.cluster.plan import ended

_MOST_ROWS = 10_000  # of one Job; fleet.size has a tenth of it, and anybody may order more under our labels


@dataclass(frozen=True, kw_only=True)
class PodRow:
    """One index of a Job: the pod that has it now, if any, and how it is."""

    job: str
    index: int
    pod: str | None = None
    node: str = ""
    state: str = "no pod yet"
    is_up: bool = False
    restarts: int = 0
    findings: tuple[Diagnosis, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PodFleet:
    """What is deployed and how far it is up."""

    rows: tuple[PodRow, ...] = ()
    findings: tuple[Diagnosis, ...] = ()

    @property
    def all_findings(self) -> tuple[Diagnosis, ...]:
        """Those of Jobs and claims first: they explain why a pod is not even there."""
        return (*self.findings, *(finding for row in self.rows for finding in row.findings))

    @property
    def up(self) -> int:
        return sum(row.is_up for row in self.rows)

    @property
    def is_up(self) -> bool:
        return bool(self.rows) and self.up == len(self.rows)


@reading_objects()
def fleet(
    jobs: Sequence[Object], pods: Sequence[Object], claims: Sequence[Object], events: Sequence[Object]
) -> PodFleet:
    """The state of the given Jobs. Pods that none of them made are left out."""
    rows: list[PodRow] = []
    findings: list[Diagnosis] = []
    for job in sorted(jobs, key=lambda one: str(one["metadata"]["name"])):
        findings += diagnose_job(job, events)
        rows += _rows(job, pods, events)
    if not all(row.is_up for row in rows):
        for claim in claims:
            findings += diagnose_claim(claim, events)
    return PodFleet(rows=tuple(rows), findings=tuple(findings))


def _rows(job: Object, pods: Sequence[Object], events: Sequence[Object]) -> Iterator[PodRow]:
    name = job["metadata"]["name"]
    done = _ranges(job.get("status", {}).get("completedIndexes", ""))
    for index in range(min(int(job.get("spec", {}).get("completions") or 1), _MOST_ROWS)):
        own = [pod for pod in pods if label(pod, JOB_LABEL) == name and label(pod, INDEX_LABEL) == str(index)]
        if own:
            yield _row(name, index, max(own, key=_preference), events)
        else:
            is_done = any(first <= index <= last for first, last in done) or ended(job) == "completed"
            state = "completed, its pod is gone" if is_done else "no pod yet"
            yield PodRow(job=name, index=index, state=state, is_up=is_done)


def _preference(pod: Object) -> tuple[bool, bool, str]:
    """Of two pods with one index the larger one counts: a Ready one, then a live one, then the newest."""
    meta = pod["metadata"]
    return is_ready(pod), not meta.get("deletionTimestamp"), str(meta.get("creationTimestamp", ""))


def _row(job: str, index: int, pod: Object, events: Sequence[Object]) -> PodRow:
    status, ready = pod.get("status", {}), is_ready(pod)
    phase, containers = str(status.get("phase", "?")), status.get("containerStatuses") or []
    waiting = [
        container["state"]["waiting"].get("reason", "")
        for container in containers
        if container.get("state", {}).get("waiting")
    ]
    if pod["metadata"].get("deletionTimestamp"):
        state = "Terminating"
    elif ready:
        state = "Ready"
    else:
        state = waiting[0] if waiting else str(status.get("reason") or phase)
    return PodRow(
        job=job,
        index=index,
        pod=pod["metadata"]["name"],
        node=pod.get("spec", {}).get("nodeName", ""),
        state=state,
        is_up=ready or (label(pod, COMPONENT_LABEL) == "train" and phase == "Succeeded"),
        restarts=sum(container.get("restartCount", 0) for container in containers),
        findings=tuple(diagnose_pod(pod, events)),
    )


def _ranges(text: str) -> list[tuple[int, int]]:
    """completedIndexes ("0,2-4") as first and last numbers."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return [(int(first), int(last or first)) for first, _, last in ranges]
