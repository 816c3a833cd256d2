"""The nodes: `inv nodes`' own findings, grouped by what they are about."""

from collections.abc import Sequence

from remote.cluster.diagnosis.finding import together
from tasks.cluster.nodes import capacity, check_kinds, found, too_few
from tasks.doctor import examples
from tasks.doctor.answer import Answer, NotAsked, fine, of_error
from tasks.doctor.check import Check
from tasks.doctor.facts import Facts
from tasks.errors import TaskFailed

CAUSES = {
    "health": ("not-ready", "pressure", "cordoned"),
    "taints": ("taint", "not-preemptible"),
    "GPUs": ("device-plugin", "split", "gpu-product", "gpu-shared", "few-gpus", "gpu-taken"),
    "room": ("no-cpu", "no-memory", "disk"),
    "versions": ("kubelet", "driver"),
}
_ASKS = {
    "health": "Are the nodes Ready, without pressure, not cordoned?",
    "taints": "Do our pods tolerate their taints?",
    "GPUs": "Does each allocate whole GPUs of one kind that nobody else holds? Does the device plugin run?",
    "room": "Have they cores, memory, and a disk for the image and cluster.scratch?",
    "versions": "Are kubelet and NVIDIA driver new enough, the driver for the image's CUDA?",
}
assert CAUSES.keys() == _ASKS.keys()  # noqa: S101 - one table in two halves


def enough(facts: Facts) -> Answer:
    reports, settings = facts.nodes.first(), facts.settings
    check_kinds(settings, reports)
    if capacity(reports) < settings.fleet.size:
        raise TaskFailed(too_few(settings, settings.fleet.size, reports))
    return fine(found(settings, settings.fleet.size, reports))


def about(causes: Sequence[str], facts: Facts) -> Answer | list[Answer]:
    """The findings with these causes, one answer for all nodes that have the same."""
    reports = [one for one in facts.nodes.get() if one.is_candidate]
    if not reports:
        raise NotAsked("see nodes enough")
    findings = [finding for one in reports for finding in one.findings if finding.cause in causes]
    said = fine(f"nothing is wrong on {len(reports)} nodes of {facts.settings.cluster.instance_type}")
    return [of_error(line) for line in together(findings)] or said


def _check(name: str) -> Check:
    causes = CAUSES[name]
    return Check(
        subject="nodes",
        name=name,
        asks=_ASKS[name],
        look=lambda facts: about(causes, facts),
        others=lambda: examples.nodes(causes),
    )


CHECKS = (
    Check(
        subject="nodes",
        name="enough",
        asks="Do as many nodes qualify as the fleet has pods, with one kind of GPU?",
        look=enough,
        others=examples.fleet,
    ),
    *(_check(name) for name in CAUSES),
)
