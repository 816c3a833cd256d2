"""Tests with malformed objects: one line for each, and bounded work."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remote.cluster.diagnosis.nodes import examine
from remote.cluster.diagnosis.readiness import build_fleet
from remote.cluster.plan import is_training, plan
from remote.hosts.pods.kubectl import ClusterError
from tests.unit.remote.cluster.test_nodes import NODE, place, pod

EVENT = {
    "metadata": {"name": "e"},
    "involvedObject": {"name": "p"},
    "reason": "FailedMount",
    "message": "mount failed",
    "lastTimestamp": "2026-01-01T00:00:00Z",
}
LABELS = {"batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/job-completion-index": "0"}
STATE = {"terminated": {"exitCode": 1, "reason": "Error", "message": "m"}}
POD = {
    "metadata": {"name": "p", "labels": LABELS},
    "spec": {"nodeName": "NODE", "containers": [{"name": "main", "image": "h/r"}], "imagePullSecrets": [{"name": "s"}]},
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "main", "state": STATE}],
    },
}
JOB = {
    "kind": "Job",
    "metadata": {"name": "j", "annotations": {"a": "b"}, "labels": {"app.kubernetes.io/managed-by": "x"}},
    "spec": {"completions": 2, "parallelism": 2, "template": {"metadata": {"labels": {"a": "train"}}}},
    "status": {"completedIndexes": "1", "conditions": [{"type": "Failed", "status": "True", "reason": "r"}]},
}
ODD_VALUES = None, -1, float("nan"), 10**400, "x", [None], {"a": 1}, "1-9e9", "gone"
FUNCTIONS: dict[str, tuple[list[dict[str, Any]], Callable[..., object]]] = {
    "node": ([NODE, pod(gpus=1)], lambda node, other: examine([node], [other], place(one_per_node=False))),
    "fleet": ([JOB, POD, EVENT], lambda job, pod, event: build_fleet([job], [pod], [{**pod, "status": {}}], [event])),
    "plan": (
        [JOB],
        lambda live: (plan([{**JOB, "spec": {"a": [1]}}], [live], [live], replace_ended=True), is_training(live)),
    ),
}


def paths_below(value: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in below:
        yield (*above, key)
        yield from paths_below(child, (*above, key))


@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_malformed_object_is_one_line(case: str) -> None:
    objects, function = FUNCTIONS[case]
    errors = list[str]()
    for *above, last in paths_below(objects):
        # The client rejects other objects: tests/integration/remote/cluster/test_kubeconfig.py.
        if len(above) < 2 or (*above[1:], last) == ("metadata", "name"):
            continue
        for value in ODD_VALUES:
            changed: Any = copy.deepcopy(objects)
            parent = changed
            for key in above:
                parent = parent[key]
            parent[last] = value
            if value == "gone":
                del parent[last]
            try:
                function(*changed)
            except ClusterError as error:
                errors.append(str(error))
    assert errors, "nothing odd was tried"
    assert not [line for line in errors if "\n" in line]
