"""What the scheduler's one long line means: which resource, label, taint or rule keeps a pod from every node."""

import re

from remote.cluster.diagnosis.finding import Diagnosis, Rule, first
from remote.hosts.host import one_line

_PART = re.compile(r"(\d+) (Insufficient [^\s,]*[^\s,.]|node\(s\) [^,]*?|Too many pods[^,]*?)(?=,|\. |\.$|$)")
_GPU = "nvidia.com/gpu"
_PATIENCE_SEC = 60.0
_SETTINGS = {"cpu": "cluster.cpu", "memory": "cluster.memory", "ephemeral-storage": "cluster.scratch"}
_RULES = (
    Rule("affinity/selector", "instance-type", "see the nodes' types (`inv nodes`), then set cluster.instance_type"),
    Rule("untolerated taint", "taint", "remove the taint, or use other nodes: `inv nodes`"),
    Rule("anti-affinity", "one-per-node", "every node has its one pod: fewer pods with fleet.size, or more nodes"),
    Rule("unschedulable", "cordoned", "`kubectl uncordon` them"),
    Rule("volume node affinity", "volume-elsewhere", "the volume is bound to another zone"),
    Rule("unbound immediate", "claim-unbound", "`inv status` says why the claim is not bound"),
    Rule("persistentvolumeclaim .*not found", "claim-missing", "`inv deploy` makes it"),
    Rule("max volume count", "volume-count", "use nodes with fewer volumes"),
)
_UNKNOWN = Rule("", "unschedulable", "`inv nodes` says more")


def explain_scheduling(message: str) -> list[Diagnosis]:
    """A finding for each thing that keeps nodes out, the one that keeps out most of them first.

    `message` is that of the condition PodScheduled or of a FailedScheduling event. What follows "preemption:" says why
    no other pod is evicted for this one, and is left out.
    """
    head = re.split(r"(?:no new claims to deallocate, )?preemption:", one_line(message), maxsplit=1)[0].strip()
    parts = sorted(((int(count), what.strip()) for count, what in _PART.findall(head)), key=lambda part: -part[0])
    found = [_explain(count, what) for count, what in parts]
    if not found:  # what is wrong with the pod itself, whatever the node
        rule = first(_RULES, head) or _UNKNOWN
        found = [(rule.cause, head or "the scheduler has not found a node yet", rule.remedy)]
    return [Diagnosis(*one, _PATIENCE_SEC) for one in found]


def _explain(count: int, what: str) -> tuple[str, str, str]:
    """(cause, reason, remedy)"""
    nodes = f"{count} node{'s' if count != 1 else ''}"
    if what.startswith("Insufficient "):
        resource = what.removeprefix("Insufficient ")
        if resource == _GPU:
            remedy = "free GPUs or nodes are missing: `inv nodes`; fewer pods with fleet.size, or grow the node pool"
            return "no-gpu", f"no free {_GPU} on {nodes}", remedy
        if resource.endswith("/gpu"):
            return "no-gpu", f"no {resource} on {nodes}", "is that device plugin installed? `inv nodes`"
        remedy = f"lower {_SETTINGS[resource]}, or free the nodes" if resource in _SETTINGS else "free the nodes"
        return f"no-{resource}", f"not enough {resource} on {nodes}", remedy
    rule = first(_RULES, what) or _UNKNOWN
    return rule.cause, f"{nodes}: {what.removeprefix('node(s) ')}", rule.remedy
