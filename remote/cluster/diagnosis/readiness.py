"""State of each pod of a Job: one row per index, from the API's pods and events. Pure.

JobSets are covered by the Jobs that they create.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.diagnosis.pods import diagnose_claim, diagnose_job, diagnose_pod, is_ready, training_end
from remote.cluster.labels import COMPONENT_LABEL, JOB_LABEL, TRAIN, Object, label
from remote.cluster.plan import end_state
from remote.hosts.pods.pod_index import INDEX_LABEL
from remote.providers import GENERIC, Provider

_MAX_ROWS = 10_000  # per Job: another user's with our labels may have 2,147,483,647 completions


@dataclass(frozen=True, kw_only=True)
class PodRow:
    """One index of a Job: its current pod, if any, and the pod's state."""

    job: str
    index: int
    pod: str | None = None
    node: str = ""
    state: str = "no pod yet"
    is_up: bool = False
    findings: tuple[Diagnosis, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PodFleet:
    """Deployed pods and their readiness."""

    rows: tuple[PodRow, ...] = ()
    findings: tuple[Diagnosis, ...] = ()

    @property
    def all_findings(self) -> tuple[Diagnosis, ...]:
        """Findings of Jobs and claims, which explain missing pods, then those of pods."""
        return (*self.findings, *(finding for row in self.rows for finding in row.findings))

    @property
    def up_count(self) -> int:
        return sum(row.is_up for row in self.rows)

    @property
    def is_up(self) -> bool:
        return bool(self.rows) and self.up_count == len(self.rows)


def build_fleet(
    jobs: Sequence[Object],
    pods: Sequence[Object],
    claims: Sequence[Object],
    events: Sequence[Object],
    provider: Provider = GENERIC,
) -> PodFleet:
    """Build the state of the given Jobs. Pods of other Jobs are ignored."""
    rows: list[PodRow] = []
    findings: list[Diagnosis] = []
    for job in sorted(jobs, key=lambda job: str(job["metadata"]["name"])):
        findings += diagnose_job(job, events)
        rows += _rows(job, pods, events, provider)
    if not all(row.is_up for row in rows):
        for claim in claims:
            findings += diagnose_claim(claim, events)
    return PodFleet(rows=tuple(rows), findings=tuple(findings))


def _rows(job: Object, pods: Sequence[Object], events: Sequence[Object], provider: Provider) -> Iterator[PodRow]:
    name = job["metadata"]["name"]
    ranges = (part.partition("-") for part in job.get("status", {}).get("completedIndexes", "").split(",") if part)
    done = [(int(first), int(last or first)) for first, _, last in ranges]  # the text is, for example, "0,2-4"
    for index in range(min(job.get("spec", {}).get("completions") or 1, _MAX_ROWS)):
        own = [pod for pod in pods if label(pod, JOB_LABEL) == name and label(pod, INDEX_LABEL) == str(index)]
        if own:
            yield _row(name, index, max(own, key=_preference), events, provider)
        else:
            is_done = any(first <= index <= last for first, last in done) or end_state(job) == "completed"
            state = "completed, its pod is gone" if is_done else "no pod yet"
            yield PodRow(job=name, index=index, state=state, is_up=is_done)


def _preference(pod: Object) -> tuple[bool, bool, str]:
    """Return the order of pods with one index; the largest counts: Ready, then not being deleted, then newest."""
    meta = pod["metadata"]
    return is_ready(pod), not meta.get("deletionTimestamp"), str(meta.get("creationTimestamp", ""))


def _row(job: str, index: int, pod: Object, events: Sequence[Object], provider: Provider) -> PodRow:
    status, ready = pod.get("status", {}), is_ready(pod)
    phase, containers = str(status.get("phase", "?")), status.get("containerStatuses") or []
    states = [container.get("state", {}).get("waiting") for container in containers]
    waiting = [state.get("reason", "") for state in states if state]
    if pod["metadata"].get("deletionTimestamp"):
        state = "Terminating"
    elif ready:
        state = "Ready"
    else:
        end = (training_end(pod) or "").partition(":")[0]
        state = waiting[0] if waiting else end or str(status.get("reason") or phase)
    return PodRow(
        job=job,
        index=index,
        pod=pod["metadata"]["name"],
        node=pod.get("spec", {}).get("nodeName", ""),
        state=state,
        is_up=ready or (label(pod, COMPONENT_LABEL) == TRAIN and phase == "Succeeded"),
        findings=tuple(diagnose_pod(pod, events, provider)),
    )
