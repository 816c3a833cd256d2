"""Why does this pod not come up? From what the API shows (pod, Job, claim, events) to what is wrong and what to do.

Pure: JSON objects in, findings out. The texts matched here are Kubernetes' own, as recorded from a 1.34 cluster with
containerd; where older versions word something differently both are matched. A text nobody has seen yet becomes a
finding too, with the text itself as its reason: nothing is hidden because it has no remedy.

Not covered: a process killed for memory inside a pod whose first process lives on; the pod's status says nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remote.cluster.diagnosis.imagepull import PULL_REASONS, explain_pull
from remote.cluster.diagnosis.scheduling import explain_scheduling
from remote.cluster.labels import Object

SOON_SEC, PATIENT_SEC = 10.0, 120.0
_MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: with what, which kind of thing (`cause`, for tests and tables), why, and what to do.

    `patience_sec` is how long this may last before waiting on is pointless; None: it may pass at any time.
    """

    subject: str
    cause: str
    reason: str
    remedy: str
    patience_sec: float | None = PATIENT_SEC

    def __str__(self) -> str:
        return f"{self.subject}: {self.reason}; {self.remedy}"


def together(findings: Iterable[Finding]) -> list[str]:
    """Findings for a person: what is said of several pods, or claims, in the same words stands once."""
    subjects: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        subjects.setdefault((finding.reason, finding.remedy), []).append(finding.subject)
    return [f"{_all_of(held)}: {reason}; {remedy}" for (reason, remedy), held in subjects.items()]


def _all_of(subjects: list[str]) -> str:
    """`pod a`; `pods a, b and c`; of many the first few. Other subjects as they are, one after the other."""
    kinds = {subject.partition(" ")[0] for subject in subjects}
    if len(subjects) == 1 or len(kinds) > 1:
        return ", ".join(subjects)
    names = [subject.partition(" ")[2] for subject in subjects]
    shown = names if len(names) <= _MOST_NAMED else [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]
    return f"{kinds.pop()}s {', '.join(shown[:-1])} and {shown[-1]}"


def events_of(thing: Object, events: Iterable[Object]) -> list[Object]:
    """The events about this very object (by uid where both have one), oldest first."""
    meta = thing["metadata"]

    def is_about(event: Object) -> bool:
        about = event.get("involvedObject", {})
        if meta.get("uid") and about.get("uid"):
            return bool(about["uid"] == meta["uid"])
        return bool(about.get("name") == meta["name"])

    return sorted((event for event in events if is_about(event)), key=_when)


def is_ready(pod: Object) -> bool:
    """Whether the cluster holds this pod for Ready, and is not ending it."""
    conditions = pod.get("status", {}).get("conditions") or []
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")


def diagnose_pod(pod: Object, events: Iterable[Object]) -> list[Finding]:
    """What keeps this pod from being Ready, most telling first; empty when nothing does, or nothing is known yet."""
    status, meta = pod.get("status", {}), pod["metadata"]
    if is_ready(pod) or status.get("phase") == "Succeeded":
        return []
    subject, about = f"pod {meta['name']}", events_of(pod, events)
    if status.get("reason"):
        return [_ended_from_outside(subject, status)]
    if meta.get("deletionTimestamp"):
        return [
            Finding(
                subject=subject,
                cause="terminating",
                reason="is being deleted",
                remedy="wait; on a dead node it stays until the node is back, or `kubectl delete pod --force` it",
                patience_sec=None,
            )
        ]
    unscheduled = _condition(status, "PodScheduled")
    if unscheduled is not None and unscheduled["status"] == "False":
        return [
            Finding(subject=subject, cause=cause, reason=reason, remedy=remedy, patience_sec=60.0)
            for cause, reason, remedy in explain_scheduling(unscheduled.get("message", ""))
        ]
    found: list[Finding] = []
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in statuses:
        found += _container(pod, container, about)
    if not found:
        found = _mounts(subject, about) or _not_ready(pod, subject, about)
    return found


def _container(pod: Object, container: Object, about: Sequence[Object]) -> list[Finding]:
    subject = f"pod {pod['metadata']['name']}"
    state, last = container.get("state", {}), container.get("lastState", {})
    waiting, terminated = state.get("waiting"), state.get("terminated") or last.get("terminated")
    if waiting:
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in PULL_REASONS:
            messages = [message, *(event.get("message", "") for event in reversed(about))]
            cause, why, remedy, passes = explain_pull(reason, messages, pod["spec"])
            patience = PATIENT_SEC if passes else SOON_SEC
            return [Finding(subject=subject, cause=cause, reason=why, remedy=remedy, patience_sec=patience)]
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            return [_config(subject, reason, message)]
        if reason != "CrashLoopBackOff":
            return []  # ContainerCreating, PodInitializing: the events say more
    if terminated and (waiting or state.get("terminated")) and terminated.get("exitCode") != 0:
        return [_crash(subject, container, terminated, about)]
    return []


def _ended_from_outside(subject: str, status: Object) -> Finding:
    reason, message = status["reason"], " ".join(status.get("message", "").split()).rstrip(".")
    remedies = {
        "Evicted": "make room: give it more of cluster.scratch or cluster.memory, or free the node's disk",
        "DeadlineExceeded": "it ran longer than its Job allows; raise activeDeadlineSeconds in the manifest",
        "Preempting": "a pod of higher priority took its place; wait, or give these pods a priority",
        "NodeLost": "its node is gone; a replacement starts where a node is free: `inv nodes`",
    }
    remedy = remedies.get(reason, "a replacement starts where a node is free: `inv nodes`")
    causes = {"Evicted": "evicted", "DeadlineExceeded": "deadline"}
    why = f"{reason}: {message}" if message else reason
    return Finding(subject=subject, cause=causes.get(reason, "ended"), reason=why, remedy=remedy, patience_sec=None)


def _config(subject: str, reason: str, message: str) -> Finding:
    rules = (
        (
            r"runAsNonRoot and image will run as root",
            "runs-as-root",
            "build the image with `USER 1000`; image/Dockerfile does",
        ),
        (r'configmap "([^"]+)" not found', "configmap-missing", "`inv deploy` makes it"),
        (
            r'secret "([^"]+)" not found',
            "secret-missing",
            "`inv deploy` makes the pull secret; others are yours to make",
        ),
        (r"couldn't find key", "key-missing", "put the key into that ConfigMap or Secret"),
    )
    known = _first(rules, message)
    cause, remedy = known or ("container-config", "see `kubectl describe pod`")
    return Finding(subject=subject, cause=cause, reason=f"{reason}: {message}", remedy=remedy, patience_sec=SOON_SEC)


def _crash(subject: str, container: Object, terminated: Object, about: Sequence[Object]) -> Finding:
    code, name = terminated.get("exitCode"), container["name"]
    times = container.get("restartCount", 0)
    again = f", {times} restarts" if times else ""
    see = f"`inv logs --pod {subject.removeprefix('pod ')}` has its last words"
    if terminated.get("reason") == "OOMKilled":
        cause, reason = "out-of-memory", f"container {name} was killed: it used more memory than its limit{again}"
        remedy = "raise cluster.memory (/dev/shm counts in); GPU memory has nothing to do with it"
    elif "executable file not found" in terminated.get("message", "") or code == 127:
        cause, reason = "command-missing", f"container {name}: its program is not in the image"
        remedy = "cluster.image must be an image that `inv build` made"
    elif "exec format error" in terminated.get("message", ""):
        cause, reason = "wrong-architecture", f"container {name}: the image is for another processor"
        remedy = "build it for the nodes' architecture (amd64)"
    elif any("failed liveness probe" in event.get("message", "") for event in about):
        cause, reason, remedy = "liveness", f"container {name} was killed: its liveness probe failed{again}", see
    elif code == 143:
        cause, reason, remedy = "terminated", f"container {name} was told to stop (143)", "wait for its replacement"
    elif code == 137:
        cause, reason, remedy = "killed", f"container {name} was killed (137){again}", f"{see}; memory, or a deletion"
    else:
        cause, reason, remedy = "crash", f"container {name} ended with exit {code}{again}", see
    return Finding(subject=subject, cause=cause, reason=reason, remedy=remedy, patience_sec=SOON_SEC)


_MOUNTS = (
    (
        r"driver name (\S+) not found in the list of registered CSI drivers",
        "csi-driver-missing",
        "the node has no driver for FSS: install the OKE CSI add-on, or leave cluster.fss.volume_handle null",
    ),
    (
        r"timed out waiting for external-attacher of (\S+)",
        "csi-driver-missing",
        "that CSI driver is not installed in this cluster",
    ),
    (r'secret "([^"]+)" not found', "secret-missing", "make that secret"),
    (r'configmap "([^"]+)" not found', "configmap-missing", "`inv deploy` makes it"),
    (r"references non-existent config key", "key-missing", "put the key into that ConfigMap"),
    (r"hostPath type check failed", "hostpath", "hostPath volumes are refused by Pod Security; use the claim"),
    (
        r"mount failed|mount\.nfs|[Cc]onnection timed out|DeadlineExceeded|access denied",
        "nfs",
        "the node must reach the mount target: security list with TCP 111, 2048-2050 and UDP 111, 2048; see that "
        "cluster.fss.volume_handle has the right address and export",
    ),
)


def _mounts(subject: str, about: Sequence[Object]) -> list[Finding]:
    for event in reversed(about):
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            message = " ".join(event.get("message", "").split())
            cause, remedy = _first(_MOUNTS, message) or ("mount", "see `kubectl describe pod`")
            return [Finding(subject=subject, cause=cause, reason=message, remedy=remedy)]
        if event.get("reason") == "FailedCreatePodSandBox":
            message = " ".join(event.get("message", "").split())
            part = "network plugin" if re.search(r"network for sandbox|cni|CNI", message) else "container runtime"
            remedy = f"the node's {part} fails: wait for it, or replace the node"
            return [Finding(subject=subject, cause="sandbox", reason=message, remedy=remedy)]
    return []


def _not_ready(pod: Object, subject: str, about: Sequence[Object]) -> list[Finding]:
    if pod["status"].get("phase") != "Running":
        return []
    for event in reversed(about):
        if event.get("reason") == "NodeNotReady":
            node = pod["spec"].get("nodeName", "its node")
            remedy = "30 s after that a replacement starts where a node is free: `inv nodes`"
            return [Finding(subject=subject, cause="node-not-ready", reason=f"{node} is silent", remedy=remedy)]
        if event.get("reason") == "Unhealthy":
            message = " ".join(event.get("message", "").split())
            remedy = f"`inv logs --pod {pod['metadata']['name']}`"
            return [Finding(subject=subject, cause="not-ready", reason=message, remedy=remedy)]
    return []


_REFUSALS = (
    (
        r"exceeded quota: ([^,]+), requested: ([^,]+)",
        "quota",
        "free what uses the quota, or ask for more: `kubectl describe resourcequota`",
    ),
    (
        r"violates PodSecurity",
        "pod-security",
        "the manifest was weakened: take manifests/ as shipped, or relax the namespace's own rules",
    ),
    (r"serviceaccount .* not found", "service-account", "`inv deploy` makes it"),
    (r"no PriorityClass", "priority-class", "make that PriorityClass, or take it out of the manifest"),
    (r"RuntimeClass .* not found", "runtime-class", "make that RuntimeClass, or take it out of the manifest"),
    (r"is forbidden", "forbidden", "the cluster's admission refuses the pods; see its message"),
)
_JOB_ENDS = {
    "BackoffLimitExceeded": ("job-failed", "its pods failed more often than it allows"),
    "FailedIndexes": ("job-failed", "some of its indexes failed"),
    "DeadlineExceeded": ("deadline", "it ran longer than it may"),
    "PodFailurePolicy": ("job-failed", "a pod failed in a way that no other try mends"),
}


def diagnose_job(job: Object, events: Iterable[Object]) -> list[Finding]:
    """What keeps this Job from having its pods: refused pods, its own failure, suspension."""
    subject, about = f"job {job['metadata']['name']}", events_of(job, events)
    failed = _condition(job.get("status", {}), "Failed")
    if failed is not None and failed["status"] == "True":
        cause, why = _JOB_ENDS.get(failed.get("reason", ""), ("job-failed", "it failed"))
        message = failed.get("message") or why
        remedy = "`inv logs` and `inv status` say of what; `inv deploy --replace` starts it again"
        return [Finding(subject=subject, cause=cause, reason=message, remedy=remedy, patience_sec=SOON_SEC)]
    if job.get("spec", {}).get("suspend"):
        return [
            Finding(
                subject=subject,
                cause="suspended",
                reason="is suspended: a queue holds it back, or somebody did",
                remedy="see the queue (`kubectl get workloads`), or set its spec.suspend to false",
                patience_sec=None,
            )
        ]
    wanted = job.get("spec", {}).get("parallelism", 1)
    if job.get("status", {}).get("active", 0) >= wanted:
        return []  # whatever was refused once is there now
    said = [" ".join(event.get("message", "").split()) for event in about if event.get("reason") == "FailedCreate"]
    if not said:
        return []
    # The newest that says why: refusals are repeated with ever longer pauses, and not in the same words each time.
    message = next((one for one in reversed(said) if _first(_REFUSALS, one)), said[-1])
    known = _first(_REFUSALS, message)
    cause, remedy = known or ("refused", "see `kubectl describe job`")
    patience = 2 * SOON_SEC if cause in ("quota", "service-account") else SOON_SEC if known else PATIENT_SEC
    return [Finding(subject=subject, cause=cause, reason=message, remedy=remedy, patience_sec=patience)]


def diagnose_claim(claim: Object, events: Iterable[Object]) -> list[Finding]:
    """Why a volume claim is not bound."""
    if claim.get("status", {}).get("phase") == "Bound":
        return []
    subject = f"claim {claim['metadata']['name']}"
    rules = (
        (r"storageclass\S* \"([^\"]+)\" not found", "class-missing", "name a storage class that exists"),
        (
            r"either by the external provisioner",
            "provisioner-silent",
            "the provisioner does not answer: is the CSI driver installed?",
        ),
        (
            r"no persistent volumes available",
            "no-volume",
            "`inv deploy` makes its volume; is cluster.fss.volume_handle set?",
        ),
        (r"waiting for first consumer", "first-consumer", "it binds when a pod that uses it is scheduled"),
        (r"already bound to a different claim|volume \"[^\"]+\" already bound", "volume-taken", "release that volume"),
    )
    for event in reversed(events_of(claim, events)):
        message = " ".join(event.get("message", "").split())
        known = _first(rules, message)
        if known is not None:
            patience = None if known[0] == "first-consumer" else 60.0
            return [Finding(subject=subject, cause=known[0], reason=message, remedy=known[1], patience_sec=patience)]
    if claim.get("status", {}).get("phase") == "Lost":
        reason, remedy = "its volume is gone", "delete the claim, then `inv deploy`"
        return [Finding(subject=subject, cause="volume-lost", reason=reason, remedy=remedy)]
    return []


def _first(rules: Sequence[tuple[str, str, str]], text: str) -> tuple[str, str] | None:
    """(cause, remedy) of the first rule (pattern, cause, remedy) that the text meets."""
    return next(((cause, remedy) for pattern, cause, remedy in rules if re.search(pattern, text)), None)


def _condition(status: Object, kind: str) -> Object | None:
    return next((one for one in status.get("conditions") or [] if one["type"] == kind), None)


def _when(event: Object) -> str:
    meta = event.get("metadata", {})
    return str(event.get("lastTimestamp") or event.get("eventTime") or meta.get("creationTimestamp") or "")
