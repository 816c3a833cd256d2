"""Causes and remedies of pods, Jobs and claims that are not ready, from the API's objects and events. Pure.

The patterns in rules.yaml match messages of Kubernetes, recorded from a 1.34 cluster with containerd, and those of
older versions. A message that no rule matches becomes the reason of a finding.

Not covered: a process killed for memory in a pod whose first process survives, which the pod's status does not show;
restarts and probes of containers, which our pods do not have.
"""

import re
from collections.abc import Iterable, Sequence

from remote.cluster.diagnosis.finding import SHORT_PATIENCE_SEC, Diagnosis, first_match
from remote.cluster.diagnosis.node_health import out_of_service_command
from remote.cluster.labels import COMPONENT_LABEL, RUN_ANNOTATION, TRAIN, Object, label
from remote.hosts.host_protocol import collapse_whitespace
from remote.providers import GENERIC, Provider, registry_provider

PULL_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)

# Causes that another pull secret fixes. The kubelet retries after its back-off, which doubles up to 300 s.
LOGIN_CAUSES = ("unauthorized", "forbidden", "wrong-login", "secret-missing")
MAX_BACK_OFF_SEC = 330.0

_NODE_COUNT_AND_PROBLEM = re.compile(
    r"(\d+) (Insufficient [^\s,]*[^\s,.]|node\(s\) [^,]*?|Too many pods[^,]*?)(?=,|\. |\.$|$)"
)


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
    if not parts:  # a problem of the pod, on every node
        reason = head or "the scheduler has not found a node yet"
        return [first_match("scheduling", head).finding(reason, provider.texts)]
    return [
        first_match("scheduling", problem).finding(
            f"{count} node{'s' if count != 1 else ''}: {problem.removeprefix('node(s) ')}", provider.texts
        )
        for count, problem in parts
    ]


def events_of(target: Object, events: Iterable[Object]) -> list[Object]:
    """Select the events about an object, by uid if both have one; oldest first."""
    meta = target["metadata"]

    def is_about(event: Object) -> bool:
        about = event.get("involvedObject", {})
        if meta.get("uid") and about.get("uid"):
            return bool(about["uid"] == meta["uid"])
        return bool(about.get("name") == meta["name"])

    return sorted((event for event in events if is_about(event)), key=_event_time)


def is_ready(pod: Object) -> bool:
    """Return True if the pod is Ready and not being deleted."""
    ready = _condition(pod.get("status", {}), "Ready")
    return ready is not None and ready["status"] == "True" and not pod["metadata"].get("deletionTimestamp")


def diagnose_pod(pod: Object, events: Iterable[Object], provider: Provider = GENERIC) -> list[Diagnosis]:
    """Find why a pod is not Ready, most specific cause first; empty if it is Ready or no cause is known yet."""
    if is_ready(pod):
        return []
    if pod.get("status", {}).get("phase") == "Succeeded":
        return _training_end(pod)
    return [
        finding.with_subject(f"pod {pod['metadata']['name']}")
        for finding in _pod_findings(pod, events_of(pod, events), provider)
    ]


def training_end(pod: Object) -> str | None:
    """Return how the training of this pod has ended, as its pods repeat it from the volume: `FAILED: reason`."""
    for container in pod.get("status", {}).get("containerStatuses") or []:
        message = container.get("state", {}).get("terminated", {}).get("message")
        if message and label(pod, COMPONENT_LABEL) == TRAIN:
            return collapse_whitespace(message)
    return None


def _training_end(pod: Object) -> list[Diagnosis]:
    """Find the end of a training that did not succeed; Kubernetes counts its pods as completed."""
    end, run = training_end(pod), _run_of(pod)
    if end is None or end.startswith("SUCCEEDED"):
        return []
    remedy = f"`inv collect --run={run}` fetches what it wrote, `inv train --resume={run}` goes on"
    return [Diagnosis("training-ended", f"ended {end}", remedy, SHORT_PATIENCE_SEC, f"run {run}")]


def _pod_findings(pod: Object, events: Sequence[Object], provider: Provider) -> list[Diagnosis]:
    status = pod.get("status", {})
    if status.get("reason"):
        return [_ended_by_cluster(status)]
    if pod["metadata"].get("deletionTimestamp"):
        disruption = _condition(status, "DisruptionTarget") or {}
        if disruption.get("reason") != "DeletionByTaintManager":
            return [Diagnosis("terminating", "is being deleted", "wait", None)]
        node = pod["spec"].get("nodeName", "its node")
        remedy = f"wait until {node} returns; if it is really off: `{out_of_service_command(node)}`"
        return [Diagnosis("terminating", f"is being deleted, and {node} does not answer", remedy, None)]
    unscheduled = _condition(status, "PodScheduled")
    if unscheduled is not None and unscheduled["status"] == "False":
        return explain_scheduling(unscheduled.get("message", ""), provider)
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    findings = [
        finding for container in containers for finding in _container_findings(pod, container, events, provider)
    ]
    return findings or _mount_findings(events, provider)


def _container_findings(
    pod: Object, container: Object, events: Sequence[Object], provider: Provider
) -> list[Diagnosis]:
    state = container.get("state", {})
    if waiting := state.get("waiting"):
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in PULL_REASONS:
            messages = [message, *(event.get("message", "") for event in reversed(events))]
            return [_explain_pull(reason, messages, pod, provider)]
        if reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
            return [first_match("container", message).finding(f"{reason}: {message}")]
    terminated = state.get("terminated")  # while it waits, the events have the cause
    if terminated and terminated.get("exitCode") != 0:
        code, pod_name = terminated.get("exitCode"), pod["metadata"]["name"]
        rule = first_match("exit", f"{terminated.get('reason') or '-'} {code} {terminated.get('message', '')}")
        number = f" with exit {code}" if rule.cause == "crash" else ""
        return [rule.finding(f"container {container['name']}{rule.problem}{number}", {"pod": pod_name})]
    return []


def _explain_pull(reason: str, messages: Sequence[str], pod: Object, provider: Provider) -> Diagnosis:
    """Explain a container that waits with `reason`, one of `PULL_REASONS`.

    `messages`: the container's own, then those of the pod's events, newest first. `provider`: that of the nodes.

    Some causes are indistinguishable: a registry with Basic authentication answers 401 to a wrong password, to a
    missing secret and to no secret. With token authentication a wrong user or password fails at the token, and a
    missing or foreign secret at the manifest.
    """
    spec, namespace = pod["spec"], pod["metadata"].get("namespace", "default")
    image = next((container["image"] for container in spec.get("containers", [])), "the image")
    texts = {**registry_provider(image.partition("/")[0]).texts, "registry-network": provider.texts["registry-network"]}
    texts["renew"] = "set cluster.pull_secret and registry.user, then `inv deploy`"
    if secret := " ".join(each["name"] for each in spec.get("imagePullSecrets") or ()):
        login = f"`inv deploy` with the {texts['password']} on standard input"
        texts["renew"] = f"renew it: `kubectl --namespace={namespace} delete secret {secret}`, then {login}"
    text = "\n".join(message for message in messages if _is_about_pull(message))
    rule = first_match("pull", text)
    if not rule.cause:
        last = next((collapse_whitespace(message) for message in messages if message), reason)
        return Diagnosis("pull", f"{image}: {last}", "see `kubectl describe pod`")
    match = re.search(rule.pattern, text)
    names = match.groupdict().get("names") if match else None
    return rule.finding(f"{image}: {rule.problem}" + (f" ({names})" if names else ""), texts)


def _is_about_pull(message: str) -> bool:
    return any(sign in message for sign in ("pull", "image name", "resolve reference", "authorize", "layer", "copy"))


def _ended_by_cluster(status: Object) -> Diagnosis:
    reason, message = status["reason"], collapse_whitespace(status.get("message", "")).rstrip(".")
    return first_match("ended", reason).finding(f"{reason}: {message}" if message else reason)


def _mount_findings(events: Sequence[Object], provider: Provider) -> list[Diagnosis]:
    for event in reversed(events):
        message = collapse_whitespace(event.get("message", ""))
        if event.get("reason") in ("FailedMount", "FailedAttachVolume"):
            return [first_match("mount", message).finding(message, provider.texts)]
        if event.get("reason") == "FailedCreatePodSandBox":
            return [Diagnosis("sandbox", message, "its network plugin or runtime fails: wait, or replace the node")]
    return []


def diagnose_job(job: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """Find why a Job lacks its pods: rejected pods, its own failure, suspension."""
    return [
        finding.with_subject(f"job {job['metadata']['name']}") for finding in _job_findings(job, events_of(job, events))
    ]


def _job_findings(job: Object, events: Sequence[Object]) -> list[Diagnosis]:
    spec, status = job.get("spec", {}), job.get("status", {})
    failed = _condition(status, "Failed")
    if failed is not None and failed["status"] == "True":
        rule, run = first_match("failed-job", failed.get("reason", "")), _run_of(job)
        restart = "inv deploy --force" if run is None else f"inv train --resume={run}"
        return [rule.finding(failed.get("message") or rule.problem, {"restart": restart})]
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
    message = next((message for message in messages if first_match("job", message).cause), messages[0])
    rule = first_match("job", message)
    return [rule.finding(message) if rule.cause else Diagnosis("refused", message, "see `kubectl describe job`")]


def diagnose_claim(claim: Object, events: Iterable[Object]) -> list[Diagnosis]:
    """Find why a volume claim is not bound."""
    phase, subject = claim.get("status", {}).get("phase"), f"claim {claim['metadata']['name']}"
    if phase == "Bound":
        return []
    for event in reversed(events_of(claim, events)):
        message = collapse_whitespace(event.get("message", ""))
        if (rule := first_match("claim", message)).cause:
            return [rule.finding(message).with_subject(subject)]
    if phase == "Lost":
        remedy = "delete the claim, then `inv deploy`"
        return [Diagnosis("volume-lost", "its volume is gone", remedy, subject=subject)]
    return []


def _run_of(resource: Object) -> str | None:
    run: str | None = (resource["metadata"].get("annotations") or {}).get(RUN_ANNOTATION)
    return run


def _condition(status: Object, kind: str) -> Object | None:
    return next((condition for condition in status.get("conditions") or [] if condition["type"] == kind), None)


def _event_time(event: Object) -> str:
    meta = event.get("metadata", {})
    return str(event.get("lastTimestamp") or event.get("eventTime") or meta.get("creationTimestamp") or "")
