"""Parser of the scheduler's message: the resource, label, taint or rule that excludes each group of nodes."""

import re

from remote.cluster.diagnosis.finding import Diagnosis, Rule, first_match
from remote.hosts.base import collapse_whitespace
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
