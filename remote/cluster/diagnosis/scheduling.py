"""What the scheduler's one long line means: which resource, label, taint or rule keeps a pod from every node."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+) (Insufficient [^\s,]*[^\s,.]|node\(s\) [^,]*?|Too many pods[^,]*?)(?=,|\. |\.$|$)")
_GPU = "nvidia.com/gpu"


def explain_scheduling(message: str) -> list[tuple[str, str, str]]:
    """(cause, reason, remedy) for each thing that keeps nodes out, the one that keeps out most of them first.

    `message` is that of the condition PodScheduled or of a FailedScheduling event. What follows "preemption:" says why
    nobody would be thrown out for this pod, and is left aside.
    """
    text = " ".join(message.split())
    if "persistentvolumeclaim" in text and "not found" in text:
        return [("claim-missing", text, "`inv deploy` makes it")]
    head = re.split(r"(?:no new claims to deallocate, )?preemption:", text, maxsplit=1)[0].strip()
    parts = [(int(count), what.strip()) for count, what in _PART.findall(head)]
    parts.sort(key=lambda part: -part[0])
    found = [_explain(count, what) for count, what in parts]
    return found or [("unschedulable", head or "the scheduler has not found a node yet", "`inv nodes` says more")]


def _explain(count: int, what: str) -> tuple[str, str, str]:
    nodes = f"{count} node{'s' if count != 1 else ''}"
    if what.startswith("Insufficient "):
        resource = what.removeprefix("Insufficient ")
        if resource == _GPU:
            remedy = "free GPUs or nodes are missing: `inv nodes`; fewer pods with fleet.size, or grow the node pool"
            return "no-gpu", f"no free {_GPU} on {nodes}", remedy
        if resource.endswith("/gpu"):
            return "no-gpu", f"no {resource} on {nodes}", "is that device plugin installed? `inv nodes`"
        setting = {"cpu": "cluster.cpu", "memory": "cluster.memory", "ephemeral-storage": "cluster.scratch"}
        remedy = f"lower {setting[resource]}, or free the nodes" if resource in setting else "free the nodes"
        return f"no-{resource}", f"not enough {resource} on {nodes}", remedy
    rules = (
        (
            "affinity/selector",
            "instance-type",
            "cluster.instance_type (or preemptible) names nodes there are: `inv nodes`",
        ),
        (
            "untolerated taint",
            "taint",
            "remove the taint, or use nodes whose taints the manifest tolerates: `inv nodes`",
        ),
        (
            "anti-affinity",
            "one-per-node",
            "one pod per node, and every node has one: fewer pods with fleet.size, or more nodes",
        ),
        ("unschedulable", "cordoned", "`kubectl uncordon` them"),
        ("volume node affinity", "volume-elsewhere", "the volume is bound to another zone"),
        ("unbound immediate", "claim-unbound", "`inv status` says why the claim is not bound"),
        ("persistentvolumeclaim", "claim-missing", "`inv deploy` makes it"),
        ("max volume count", "volume-count", "use nodes with fewer volumes"),
    )
    for sign, cause, remedy in rules:
        if sign in what:
            return cause, f"{nodes}: {what.removeprefix('node(s) ')}", remedy
    return "unschedulable", f"{nodes}: {what}", "`inv nodes` says more"
