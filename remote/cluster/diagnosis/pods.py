"""Why does this pod not come up? From what the API shows (pod, Job, claim, events) to what is wrong and what to do.

Pure: JSON objects in, findings out. The texts matched here are Kubernetes' own, recorded from a 1.34 cluster with
containerd; where older versions use other words, both are matched. A text that no rule knows becomes a finding too,
with the text as its reason.

Not covered: a process killed for memory in a pod whose first process lives on; the pod's status does not show it.
"""

import re
from collections.abc import Iterable, Sequence

from remote.cluster.diagnosis.finding import PATIENT_SEC, SOON_SEC, Diagnosis, Rule, first
from remote.cluster.diagnosis.image_pull import PULL_REASONS, explain_pull
from remote.cluster.diagnosis.scheduling import explain_scheduling
from remote.cluster.errors import reading_objects
from remote.cluster.labels import FIRST, RUN_ANNOTATION, SERVE, Object
from remote.hosts.host import one_line


def events_of(thing: Object, events: Iterable[Object]) -> list[Object]:
    """The events about this very object (by uid where both have one), oldest first."""
    meta = thing["metadata"]

    def is_about(event: Object) -> bool:
        about = event.get("involvedObject", {})
        if meta.get("uid") and about.get("uid"):
            return bool(about["uid"] == meta["uid"])
        return bool(about.get("name") == meta["name"])

    return sorted((event for event in events if is_about(event)), key=_when)


@reading_objects()
def is_ready(pod: Object) -> bool:
    """Whether the pod is Ready to the cluster and is not being deleted."""
    ready = _condition(pod.get("status", {}), "Ready")
    return ready is not None and ready["status"] == "True" and not pod["metadata"].get("deletionTimestamp")


@reading_objects()
def diagnose_pod(pod: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """What keeps this pod from being Ready, most telling first; empty when nothing does, or nothing is known yet."""
    if is_ready(pod) or pod.get("status", {}).get("phase") == "Succeeded":
        return []
    return [one.of(f"pod {pod['metadata']['name']}") for one in _pod(pod, events_of(pod, events))]


def _pod(pod: Object, about: Sequence[Object]) -> list[Diagnosis]:
    status = pod.get("status", {})
    if status.get("reason"):
        return [_ended_from_outside(status)]
    if pod["metadata"].get("deletionTimestamp"):
        remedy = "wait; on a dead node it stays until the node is back, or `kubectl delete pod --force` it"
        return [Diagnosis("terminating", "is being deleted", remedy, None)]
    unscheduled = _condition(status, "PodScheduled")
    if unscheduled is not None and unscheduled["status"] == "False":
        return explain_scheduling(unscheduled.get("message", ""))
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    found = [finding for container in containers for finding in _container(pod, container, about)]
    return found or _mounts(about) or _not_ready(pod, about)


def _container(pod: Object, container: Object, about: Sequence[Object]) -> list[Diagnosis]:
    state, last = container.get("state", {}), container.get("lastState", {})
    waiting, terminated = state.get("waiting"), state.get("terminated") or last.get("terminated")
    if waiting:
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in PULL_REASONS:
            messages = [message, *(event.get("message", "") for event in reversed(about))]
            cause, why, remedy, passes = explain_pull(reason, messages, pod["spec"])
            return [Diagnosis(cause, why, remedy, PATIENT_SEC if passes else SOON_SEC)]
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            rule = first(_CONFIG, message) or Rule("", "container-config", "see `kubectl describe pod`")
            return [Diagnosis(rule.cause, f"{reason}: {message}", rule.remedy, SOON_SEC)]
        if reason != "CrashLoopBackOff":
            return []  # ContainerCreating, PodInitializing: the events say more
    if terminated and (waiting or state.get("terminated")) and terminated.get("exitCode") != 0:
        return [_crash(pod["metadata"]["name"], container, terminated, about)]
    return []


_REPLACED = "a replacement starts where a node is free: `inv nodes`"
_ENDED = {
    "Evicted": ("evicted", "give it more of cluster.scratch or cluster.memory, or free the node's disk"),
    "DeadlineExceeded": ("deadline", "it ran longer than its Job allows; raise activeDeadlineSeconds in the manifest"),
    "Preempting": ("ended", "a pod of higher priority took its place; wait, or give these pods a priority"),
    "NodeLost": ("ended", f"its node is gone; {_REPLACED}"),
}


def _ended_from_outside(status: Object) -> Diagnosis:
    reason, message = status["reason"], one_line(status.get("message", "")).rstrip(".")
    cause, remedy = _ENDED.get(reason, ("ended", _REPLACED))
    return Diagnosis(cause, f"{reason}: {message}" if message else reason, remedy, None)


_CONFIG = (
    Rule("image will run as root", "runs-as-root", "build the image with `USER 1000`; image/Dockerfile does"),
    Rule('configmap "[^"]+" not found', "configmap-missing", "`inv deploy` makes it"),
    Rule('secret "[^"]+" not found', "secret-missing", "`inv deploy` makes the pull secret; make others yourself"),
    Rule("couldn't find key", "key-missing", "put the key into that ConfigMap or Secret"),
)


def _crash(pod: str, container: Object, terminated: Object, about: Sequence[Object]) -> Diagnosis:
    code, message, times = terminated.get("exitCode"), terminated.get("message", ""), container.get("restartCount", 0)
    who, again = f"container {container['name']}", f", {times} restarts" if times else ""
    see = f"see `inv logs --pod {pod}`"
    if container["name"] == FIRST:
        see = f"see `kubectl logs {pod} --container={FIRST}`"
    if terminated.get("reason") == "OOMKilled":
        remedy = "raise cluster.memory (/dev/shm counts in); GPU memory has nothing to do with it"
        found = ("out-of-memory", f"{who} was killed: it used more memory than its limit{again}", remedy)
    elif "executable file not found" in message or code == 127:
        remedy = "cluster.image must be an image that `inv build` made"
        found = ("command-missing", f"{who}: its program is not in the image", remedy)
    elif "exec format error" in message:
        remedy = "build it for the nodes' architecture (amd64)"
        found = ("wrong-architecture", f"{who}: the image is for another processor", remedy)
    elif any("failed liveness probe" in event.get("message", "") for event in about):
        found = ("liveness", f"{who} was killed: its liveness probe failed{again}", see)
    elif code == 143:
        found = ("terminated", f"{who} got SIGTERM (143)", "wait for its replacement")
    elif code == 137:
        found = ("killed", f"{who} was killed (137){again}", f"{see}; 137: out of memory, or deleted")
    else:
        found = ("crash", f"{who} ended with exit {code}{again}", see)
    return Diagnosis(*found, SOON_SEC)


_MOUNTS = (
    Rule(
        "not found in the list of registered CSI drivers",
        "csi-driver-missing",
        "the node has no driver for FSS: install the OKE CSI add-on, or leave cluster.fss.volume_handle null",
    ),
    Rule("waiting for external-attacher", "csi-driver-missing", "that CSI driver is not installed in this cluster"),
    Rule('secret "[^"]+" not found', "secret-missing", "make that secret"),
    Rule('configmap "[^"]+" not found', "configmap-missing", "`inv deploy` makes it"),
    Rule("references non-existent config key", "key-missing", "put the key into that ConfigMap"),
    Rule("hostPath type check failed", "hostpath", "Pod Security refuses hostPath volumes; use the claim"),
    Rule(
        r"mount failed|mount\.nfs|[Cc]onnection timed out|DeadlineExceeded|access denied",
        "nfs",
        "the node must reach the mount target: security list with TCP 111, 2048-2050 and UDP 111, 2048; see that "
        "cluster.fss.volume_handle has the right address and export",
    ),
)


def _mounts(about: Sequence[Object]) -> list[Diagnosis]:
    for event in reversed(about):
        message = one_line(event.get("message", ""))
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            rule = first(_MOUNTS, message) or Rule("", "mount", "see `kubectl describe pod`")
            return [Diagnosis(rule.cause, message, rule.remedy)]
        if event.get("reason") == "FailedCreatePodSandBox":
            part = "network plugin" if re.search(r"network for sandbox|cni|CNI", message) else "container runtime"
            return [Diagnosis("sandbox", message, f"the node's {part} fails: wait for it, or replace the node")]
    return []


def _not_ready(pod: Object, about: Sequence[Object]) -> list[Diagnosis]:
    if pod["status"].get("phase") != "Running":
        return []
    for event in reversed(about):
        if event.get("reason") == "NodeNotReady":
            node = pod["spec"].get("nodeName", "its node")
            return [Diagnosis("node-not-ready", f"{node} does not answer", f"after 30 s {_REPLACED}")]
        if event.get("reason") == "Unhealthy":
            message = one_line(event.get("message", ""))
            see = f"`inv logs --pod {pod['metadata']['name']}`"
            # A server that loads its model: how long that may take is what its startup probe says.
            patience_sec = None if message.startswith("Startup probe failed") else PATIENT_SEC
            return [Diagnosis("not-ready", message, see, patience_sec)]
    return []


_REFUSALS = (
    Rule(
        r"must specify [^;]*limits\.cpu",
        "quota-limit",
        "the namespace's quota counts limits: set cluster.cpu_limit, then `inv deploy`",
    ),
    Rule("exceeded quota", "quota", "free what uses the quota, or ask for more: `kubectl describe resourcequota`"),
    Rule("violates PodSecurity", "pod-security", "take manifests/ as shipped, or relax the namespace's own rules"),
    Rule("serviceaccount .* not found", "service-account", "`inv deploy` makes it"),
    Rule("no PriorityClass", "priority-class", "make that PriorityClass, or remove it from the manifest"),
    Rule("RuntimeClass .* not found", "runtime-class", "make that RuntimeClass, or remove it from the manifest"),
    Rule("is forbidden", "forbidden", "the cluster's admission refuses the pods; see its message"),
)
_JOB_ENDS = {
    "BackoffLimitExceeded": "its pods failed more often than it allows",
    "FailedIndexes": "some of its indexes failed",
    "DeadlineExceeded": "it ran longer than it may",
    "PodFailurePolicy": "a pod failed in a way that another try does not mend",
}


def diagnose_job(job: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """What keeps this Job from having its pods: refused pods, its own failure, suspension."""
    return [one.of(f"job {job['metadata']['name']}") for one in _job(job, events_of(job, events))]


def _job(job: Object, about: Sequence[Object]) -> list[Diagnosis]:
    spec, status = job.get("spec", {}), job.get("status", {})
    failed = _condition(status, "Failed")
    if failed is not None and failed["status"] == "True":
        why = failed.get("reason", "")
        message = failed.get("message") or _JOB_ENDS.get(why, "it failed")
        run = (job["metadata"].get("annotations") or {}).get(RUN_ANNOTATION)
        again = "inv deploy --replace" if run is None else f"inv train --job --resume={run}"
        again = "inv serve" if job["metadata"]["name"] == SERVE else again
        remedy = f"see `inv logs` and `inv status`; `{again}` starts it again"
        return [Diagnosis("deadline" if why == "DeadlineExceeded" else "job-failed", message, remedy, SOON_SEC)]
    if spec.get("suspend"):
        remedy = "see the queue (`kubectl get workloads`), or set its spec.suspend to false"
        return [Diagnosis("suspended", "is suspended: a queue holds it back, or somebody did", remedy, None)]
    messages = [
        one_line(event.get("message", "")) for event in reversed(about) if event.get("reason") == "FailedCreate"
    ]
    if not messages or status.get("active", 0) >= spec.get("parallelism", 1):
        return []  # or whatever was refused once is there now
    # The newest that a rule knows: refusals are repeated with ever longer pauses, and not in the same words each time.
    message = next((message for message in messages if first(_REFUSALS, message)), messages[0])
    rule = first(_REFUSALS, message)
    if rule is None:
        return [Diagnosis("refused", message, "see `kubectl describe job`")]
    patience_sec = 2 * SOON_SEC if rule.cause in ("quota", "service-account") else SOON_SEC
    return [Diagnosis(rule.cause, message, rule.remedy, patience_sec)]


_CLAIMS = (
    Rule(r'storageclass\S* "[^"]+" not found', "class-missing", "name a storage class that exists"),
    Rule("external provisioner", "provisioner-silent", "it does not answer: is the CSI driver installed?"),
    Rule("no persistent volumes available", "no-volume", "`inv deploy` makes it; is cluster.fss.volume_handle set?"),
    Rule("waiting for first consumer", "first-consumer", "it binds when a pod that uses it is scheduled"),
    Rule(r"already bound to a different claim|volume \"[^\"]+\" already bound", "volume-taken", "release that volume"),
)


def diagnose_claim(claim: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """Why a volume claim is not bound."""
    phase, subject = claim.get("status", {}).get("phase"), f"claim {claim['metadata']['name']}"
    if phase == "Bound":
        return []
    for event in reversed(events_of(claim, events)):
        message = one_line(event.get("message", ""))
        if (rule := first(_CLAIMS, message)) is not None:
            patience_sec = None if rule.cause == "first-consumer" else 60.0
            return [Diagnosis(rule.cause, message, rule.remedy, patience_sec, subject)]
    if phase == "Lost":
        remedy = "delete the claim, then `inv deploy`"
        return [Diagnosis("volume-lost", "its volume is gone", remedy, subject=subject)]
    return []


def _condition(status: Object, kind: str) -> Object | None:
    return next((one for one in status.get("conditions") or [] if one["type"] == kind), None)


def _when(event: Object) -> str:
    meta = event.get("metadata", {})
    return str(event.get("lastTimestamp") or event.get("eventTime") or meta.get("creationTimestamp") or "")
