"""Causes and remedies of pods, Jobs and claims that are not ready, from the API's objects and events. Pure.

The patterns match messages of Kubernetes, recorded from a 1.34 cluster with containerd, and those of older versions. A
message that no rule matches becomes the reason of a finding.

Not covered: a process killed for memory in a pod whose first process survives; the pod's status does not show it.
"""

import re
from collections.abc import Iterable, Sequence

from remote.cluster.diagnosis.finding import DEFAULT_PATIENCE_SEC, SHORT_PATIENCE_SEC, Diagnosis, Rule, first_match
from remote.cluster.diagnosis.image_pull import PULL_REASONS, explain_pull
from remote.cluster.labels import ADAPTER_CONTAINER, RUN_ANNOTATION, SERVE, SERVED_RUN_ANNOTATION, Object
from remote.hosts.base import collapse_whitespace
from remote.hosts.pods.errors import object_errors
from remote.providers import GENERIC, Provider

_NODE_COUNT_AND_PROBLEM = re.compile(
    r"(\d+) (Insufficient [^\s,]*[^\s,.]|node\(s\) [^,]*?|Too many pods[^,]*?)(?=,|\. |\.$|$)"
)
_GPU = "nvidia.com/gpu"
_PATIENCE_SEC = 60.0
_SETTINGS = {"cpu": "cluster.cpu", "memory": "cluster.memory", "ephemeral-storage": "cluster.scratch"}
_RULES = (
    Rule("affinity/selector", "instance-type", "see the nodes' types (`inv nodes`), then set cluster.instance_type"),
    Rule("untolerated taint", "taint", "remove the taint, or use other nodes: `inv nodes`"),
    Rule("anti-affinity", "one-per-node", "every node has its one pod: lower fleet.size, or add nodes"),
    Rule("unschedulable", "cordoned", "run `kubectl uncordon` for them"),
    Rule("volume node affinity", "volume-elsewhere", "the volume is bound to another zone: use nodes there"),
    Rule("unbound immediate", "claim-unbound", "see `inv status` for why the claim is not bound"),
    Rule("persistentvolumeclaim .*not found", "claim-missing", "create it: `inv deploy`"),
    Rule("max volume count", "volume-count", "use nodes with fewer volumes"),
)
_UNKNOWN_RULE = Rule("", "unschedulable", "see `inv nodes`")


def explain_scheduling(message: str, provider: Provider = GENERIC) -> list[Diagnosis]:
    """Explain each reason that excludes nodes, the most frequent first.

    `message` is from the condition PodScheduled or a FailedScheduling event. The part after "preemption:", why no other
    pod is evicted, is ignored.
    """
    head = re.split(r"(?:no new claims to deallocate, )?preemption:", collapse_whitespace(message), maxsplit=1)[
        0
    ].strip()
    parts = sorted(
        ((int(count), problem.strip()) for count, problem in _NODE_COUNT_AND_PROBLEM.findall(head)),
        key=lambda part: -part[0],
    )
    explanations = [_explain(count, problem, provider) for count, problem in parts]
    if not explanations:  # a problem of the pod, on every node
        rule = first_match(_RULES, head) or _UNKNOWN_RULE
        explanations = [(rule.cause, head or "the scheduler has not found a node yet", rule.remedy)]
    return [Diagnosis(*explanation, _PATIENCE_SEC) for explanation in explanations]


def _explain(count: int, problem: str, provider: Provider) -> tuple[str, str, str]:
    """Return (cause, reason, remedy)."""
    nodes = f"{count} node{'s' if count != 1 else ''}"
    if problem.startswith("Insufficient "):
        resource = problem.removeprefix("Insufficient ")
        if resource == _GPU:
            return "no-gpu", f"no free {_GPU} on {nodes}", provider.texts["node-pool"]
        if resource.endswith("/gpu"):
            return "no-gpu", f"no {resource} on {nodes}", "check that its device plugin is installed: `inv nodes`"
        remedy = f"lower {_SETTINGS[resource]}, or free the nodes" if resource in _SETTINGS else "free the nodes"
        return f"no-{resource}", f"not enough {resource} on {nodes}", remedy
    rule = first_match(_RULES, problem) or _UNKNOWN_RULE
    return rule.cause, f"{nodes}: {problem.removeprefix('node(s) ')}", rule.remedy


def events_of(target: Object, events: Iterable[Object]) -> list[Object]:
    """Select the events about an object, by uid if both have one; oldest first."""
    meta = target["metadata"]

    def is_about(event: Object) -> bool:
        about = event.get("involvedObject", {})
        if meta.get("uid") and about.get("uid"):
            return bool(about["uid"] == meta["uid"])
        return bool(about.get("name") == meta["name"])

    return sorted((event for event in events if is_about(event)), key=_event_time)


@object_errors()
def is_ready(pod: Object) -> bool:
    """Return True if the pod is Ready and not being deleted."""
    ready = _condition(pod.get("status", {}), "Ready")
    return ready is not None and ready["status"] == "True" and not pod["metadata"].get("deletionTimestamp")


@object_errors()
def diagnose_pod(pod: Object, events: Iterable[Object], provider: Provider = GENERIC) -> list[Diagnosis]:
    """Find why a pod is not Ready, most specific cause first; empty if it is Ready or no cause is known yet."""
    if is_ready(pod) or pod.get("status", {}).get("phase") == "Succeeded":
        return []
    return [
        finding.with_subject(f"pod {pod['metadata']['name']}")
        for finding in _pod_findings(pod, events_of(pod, events), provider)
    ]


def _pod_findings(pod: Object, events: Sequence[Object], provider: Provider) -> list[Diagnosis]:
    status = pod.get("status", {})
    if status.get("reason"):
        return [_ended_by_cluster(status)]
    if pod["metadata"].get("deletionTimestamp"):
        remedy = "wait; on a dead node it stays until the node returns, or use `kubectl delete pod --force`"
        return [Diagnosis("terminating", "is being deleted", remedy, None)]
    unscheduled = _condition(status, "PodScheduled")
    if unscheduled is not None and unscheduled["status"] == "False":
        return explain_scheduling(unscheduled.get("message", ""), provider)
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    findings = [
        finding for container in containers for finding in _container_findings(pod, container, events, provider)
    ]
    return findings or _mount_findings(events, provider) or _readiness_findings(pod, events)


def _container_findings(
    pod: Object, container: Object, events: Sequence[Object], provider: Provider
) -> list[Diagnosis]:
    state, last = container.get("state", {}), container.get("lastState", {})
    waiting, terminated = state.get("waiting"), state.get("terminated") or last.get("terminated")
    if waiting:
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in PULL_REASONS:
            messages = [message, *(event.get("message", "") for event in reversed(events))]
            cause, explanation, remedy, may_pass = explain_pull(reason, messages, pod["spec"], provider)
            return [Diagnosis(cause, explanation, remedy, DEFAULT_PATIENCE_SEC if may_pass else SHORT_PATIENCE_SEC)]
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            rule = first_match(_CONFIG_RULES, message) or Rule("", "container-config", "see `kubectl describe pod`")
            return [Diagnosis(rule.cause, f"{reason}: {message}", rule.remedy, SHORT_PATIENCE_SEC)]
        if reason != "CrashLoopBackOff":
            return []  # ContainerCreating, PodInitializing: the events have the cause
    if terminated and (waiting or state.get("terminated")) and terminated.get("exitCode") != 0:
        return [_crash(pod["metadata"]["name"], container, terminated, events)]
    return []


_REPLACED = "a replacement starts on a free node: `inv nodes`"
_POD_END_REASONS = {
    "Evicted": ("evicted", "raise cluster.scratch or cluster.memory, or free the node's disk"),
    "DeadlineExceeded": ("deadline", "its Job's deadline passed; raise activeDeadlineSeconds in the manifest"),
    "Preempting": ("ended", "a pod of higher priority preempted it; wait, or set a priority for these pods"),
    "NodeLost": ("ended", f"its node is gone; {_REPLACED}"),
}


def _ended_by_cluster(status: Object) -> Diagnosis:
    reason, message = status["reason"], collapse_whitespace(status.get("message", "")).rstrip(".")
    cause, remedy = _POD_END_REASONS.get(reason, ("ended", _REPLACED))
    return Diagnosis(cause, f"{reason}: {message}" if message else reason, remedy, None)


_CONFIG_RULES = (
    Rule("image will run as root", "runs-as-root", "build the image with `USER 1000`; image/Dockerfile does"),
    Rule('configmap "[^"]+" not found', "configmap-missing", "create it: `inv deploy`"),
    Rule('secret "[^"]+" not found', "secret-missing", "create it; the pull secret: `inv deploy`"),
    Rule("couldn't find key", "key-missing", "add the key to that ConfigMap or Secret"),
)


def _crash(pod: str, container: Object, terminated: Object, events: Sequence[Object]) -> Diagnosis:
    code, message, count = terminated.get("exitCode"), terminated.get("message", ""), container.get("restartCount", 0)
    subject, restarts = f"container {container['name']}", f", {count} restarts" if count else ""
    log = f"see `inv logs --pod {pod}`"
    if container["name"] == ADAPTER_CONTAINER:
        log = f"see `kubectl logs {pod} --container={ADAPTER_CONTAINER}`"
    if terminated.get("reason") == "OOMKilled":
        cause, reason = "out-of-memory", f" was killed: it used more memory than its limit{restarts}"
        remedy = "raise cluster.memory (it includes /dev/shm, but not GPU memory)"
    elif "executable file not found" in message or code == 127:
        cause, reason = "command-missing", ": the image does not have its program"
        remedy = "cluster.image must be an image that `inv build` made"
    elif "exec format error" in message:
        cause, reason = "wrong-architecture", ": the image is for another processor"
        remedy = "build it for the nodes' architecture (amd64)"
    elif any("failed liveness probe" in event.get("message", "") for event in events):
        cause, reason, remedy = "liveness", f" was killed: its liveness probe failed{restarts}", log
    elif code == 143:
        cause, reason, remedy = "terminated", " got SIGTERM (143)", "wait for its replacement"
    elif code == 137:
        cause, reason, remedy = "killed", f" was killed (137){restarts}", f"{log}; 137 means out of memory, or deleted"
    else:
        cause, reason, remedy = "crash", f" ended with exit {code}{restarts}", log
    return Diagnosis(cause, f"{subject}{reason}", remedy, SHORT_PATIENCE_SEC)


_MOUNT_RULES = (
    Rule(
        "not found in the list of registered CSI drivers",
        "csi-driver-missing",
        "{volume-driver}",
    ),
    Rule("waiting for external-attacher", "csi-driver-missing", "install that CSI driver in this cluster"),
    Rule('secret "[^"]+" not found', "secret-missing", "create that Secret"),
    Rule('configmap "[^"]+" not found', "configmap-missing", "create it: `inv deploy`"),
    Rule("references non-existent config key", "key-missing", "add the key to that ConfigMap"),
    Rule("hostPath type check failed", "hostpath", "Pod Security refuses hostPath volumes; use the claim"),
    Rule(
        r"mount failed|mount\.nfs|[Cc]onnection timed out|DeadlineExceeded|access denied",
        "nfs",
        "{volume-mount}",
    ),
)


def _mount_findings(events: Sequence[Object], provider: Provider) -> list[Diagnosis]:
    for event in reversed(events):
        message = collapse_whitespace(event.get("message", ""))
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            rule = first_match(_MOUNT_RULES, message) or Rule("", "mount", "see `kubectl describe pod`")
            return [Diagnosis(rule.cause, message, rule.remedy.format_map(provider.texts))]
        if event.get("reason") == "FailedCreatePodSandBox":
            part = "network plugin" if re.search(r"network for sandbox|cni|CNI", message) else "container runtime"
            return [Diagnosis("sandbox", message, f"the node's {part} fails: wait for it, or replace the node")]
    return []


def _readiness_findings(pod: Object, events: Sequence[Object]) -> list[Diagnosis]:
    if pod["status"].get("phase") != "Running":
        return []
    for event in reversed(events):
        if event.get("reason") == "NodeNotReady":
            node = pod["spec"].get("nodeName", "its node")
            return [Diagnosis("node-not-ready", f"{node} does not answer", f"after 30 s {_REPLACED}")]
        if event.get("reason") == "Unhealthy":
            message = collapse_whitespace(event.get("message", ""))
            log_remedy = f"`inv logs --pod {pod['metadata']['name']}`"
            # The server is loading its model: its startup probe limits the time.
            patience_sec = None if message.startswith("Startup probe failed") else DEFAULT_PATIENCE_SEC
            return [Diagnosis("not-ready", message, log_remedy, patience_sec)]
    return []


_REFUSAL_RULES = (
    Rule(
        r"must specify [^;]*limits\.cpu",
        "quota-limit",
        "the namespace's quota counts limits: set cluster.cpu_limit, then `inv deploy`",
    ),
    Rule("exceeded quota", "quota", "free some of the quota, or ask for more: `kubectl describe resourcequota`"),
    Rule("violates PodSecurity", "pod-security", "use manifests/ as shipped, or relax the namespace's rules"),
    Rule("serviceaccount .* not found", "service-account", "create it: `inv deploy`"),
    Rule("no PriorityClass", "priority-class", "create that PriorityClass, or remove it from the manifest"),
    Rule("RuntimeClass .* not found", "runtime-class", "create that RuntimeClass, or remove it from the manifest"),
    Rule("is forbidden", "forbidden", "the cluster's admission control rejects the pods; its message has the reason"),
)
_JOB_FAILURES = {
    "BackoffLimitExceeded": "its pods failed more often than it allows",
    "FailedIndexes": "some of its indexes failed",
    "DeadlineExceeded": "its deadline passed",
    "PodFailurePolicy": "a pod failed in a way that a retry does not fix",
}


def diagnose_job(job: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """Find why a Job lacks its pods: rejected pods, its own failure, suspension."""
    return [
        finding.with_subject(f"job {job['metadata']['name']}") for finding in _job_findings(job, events_of(job, events))
    ]


def _job_findings(job: Object, events: Sequence[Object]) -> list[Diagnosis]:
    spec, status = job.get("spec", {}), job.get("status", {})
    failed = _condition(status, "Failed")
    if failed is not None and failed["status"] == "True":
        reason = failed.get("reason", "")
        message = failed.get("message") or _JOB_FAILURES.get(reason, "it failed")
        run = (job["metadata"].get("annotations") or {}).get(RUN_ANNOTATION)
        restart_command = "inv deploy --force" if run is None else f"inv train --job --resume={run}"
        restart_command = _serve_command(job) if job["metadata"]["name"] == SERVE else restart_command
        remedy = f"see `inv logs` and `inv status`; restart it: `{restart_command}`"
        return [
            Diagnosis("deadline" if reason == "DeadlineExceeded" else "job-failed", message, remedy, SHORT_PATIENCE_SEC)
        ]
    if spec.get("suspend"):
        remedy = "see the queue (`kubectl get workloads`), or set its spec.suspend to false"
        return [Diagnosis("suspended", "is suspended, by a queue or a user", remedy, None)]
    messages = [
        collapse_whitespace(event.get("message", ""))
        for event in reversed(events)
        if event.get("reason") == "FailedCreate"
    ]
    if not messages or status.get("active", 0) >= spec.get("parallelism", 1):
        return []  # the refused pods exist now
    # The newest message that a rule matches: refusals are repeated after growing pauses, with varying messages.
    message = next((message for message in messages if first_match(_REFUSAL_RULES, message)), messages[0])
    rule = first_match(_REFUSAL_RULES, message)
    if rule is None:
        return [Diagnosis("refused", message, "see `kubectl describe job`")]
    patience_sec = 2 * SHORT_PATIENCE_SEC if rule.cause in ("quota", "service-account") else SHORT_PATIENCE_SEC
    return [Diagnosis(rule.cause, message, rule.remedy, patience_sec)]


def _serve_command(job: Object) -> str:
    """Return the command that deployed a server's Job: only a server of an adapter has --enable-lora."""
    containers = job.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    arguments = [argument for container in containers for argument in container.get("args", [])]
    run = (job["metadata"].get("annotations") or {}).get(SERVED_RUN_ANNOTATION)
    is_merged = bool(arguments) and "--enable-lora" not in arguments
    return "inv serve" + (" --merged" if is_merged else "") + ("" if run is None else f" --run={run}")


_CLAIM_RULES = (
    Rule(r'storageclass\S* "[^"]+" not found', "class-missing", "use an existing storage class"),
    Rule(
        "external provisioner",
        "provisioner-silent",
        "the provisioner does not answer: check that the CSI driver is installed",
    ),
    Rule("no persistent volumes available", "no-volume", "create it: set cluster.volume.handle, then `inv deploy`"),
    Rule("waiting for first consumer", "first-consumer", "wait: it binds when a pod that uses it is scheduled"),
    Rule(r"already bound to a different claim|volume \"[^\"]+\" already bound", "volume-taken", "release that volume"),
)


def diagnose_claim(claim: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """Find why a volume claim is not bound."""
    phase, subject = claim.get("status", {}).get("phase"), f"claim {claim['metadata']['name']}"
    if phase == "Bound":
        return []
    for event in reversed(events_of(claim, events)):
        message = collapse_whitespace(event.get("message", ""))
        if (rule := first_match(_CLAIM_RULES, message)) is not None:
            patience_sec = None if rule.cause == "first-consumer" else 60.0
            return [Diagnosis(rule.cause, message, rule.remedy, patience_sec, subject)]
    if phase == "Lost":
        remedy = "delete the claim, then `inv deploy`"
        return [Diagnosis("volume-lost", "its volume is gone", remedy, subject=subject)]
    return []


def _condition(status: Object, kind: str) -> Object | None:
    return next((condition for condition in status.get("conditions") or [] if condition["type"] == kind), None)


def _event_time(event: Object) -> str:
    meta = event.get("metadata", {})
    return str(event.get("lastTimestamp") or event.get("eventTime") or meta.get("creationTimestamp") or "")
