"""Objects that no API server of Kubernetes has: one line each, and no work without an end."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from remote.cluster.diagnosis.nodes import examine
from remote.cluster.diagnosis.readiness import fleet
from remote.cluster.errors import ClusterError
from remote.cluster.plan import is_training, plan
from tests.unit.remote.cluster.test_nodes import NODE, need, pod

EVENT = {
    "metadata": {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "involvedObject": {"kind": "Pod", "name": "p", "uid": "u"},
    "reason": "FailedMount",
    "message": "mount failed",
    "lastTimestamp": "2026-01-01T00:00:00Z",
}
OURS = {
    "metadata": {
        "name": "p",
        "uid": "u",
        "labels": {"batch.kubernetes.io/job-name": "j", "batch.kubernetes.io/job-completion-index": "0"},
    },
    "spec": {
        "nodeName": "node-3",
        "containers": [{"name": "main", "image": "h/r"}],
        "imagePullSecrets": [{"name": "s"}],
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [
            {
                "name": "main",
                "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "m"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": "m"}},
            }
        ],
    },
}
JOB = {
    "kind": "Job",
    "metadata": {"name": "j", "uid": "j", "annotations": {"a": "b"}, "labels": {"app.kubernetes.io/managed-by": "x"}},
    "spec": {"completions": 2, "parallelism": 2, "template": {"metadata": {"labels": {"a": "train"}}}},
    "status": {
        "active": 1,
        "completedIndexes": "1",
        "conditions": [{"type": "Failed", "status": "True", "reason": "r"}],
    },
}
ODD = (None, 0, -1, 1.5, float("nan"), float("inf"), 10**400, True, "", "x", [], {}, [None], [[]], {"a": 1}, "1-9e9")
ACTS: dict[str, tuple[list[dict[str, Any]], Callable[..., object]]] = {
    "node": ([NODE, pod(gpus=1)], lambda node, other: examine([node], [other], need(one_per_node=False))),
    "fleet": ([JOB, OURS, EVENT], lambda job, one, event: fleet([job], [one], [{**one, "status": {}}], [event])),
    "plan": (
        [JOB, JOB],
        lambda live, _: (plan([{**JOB, "spec": {"a": [1]}}], [live], replace_ended=True), is_training(live)),
    ),
}


def places(value: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in below:
        yield (*above, key)
        yield from places(one, (*above, key))


def changed(objects: Sequence[dict[str, Any]], place: tuple[Any, ...], value: object) -> list[dict[str, Any]]:
    made = copy.deepcopy(list(objects))
    one: Any = made
    for key in place[:-1]:
        one = one[key]
    if value == "gone":
        del one[place[-1]]
    else:
        one[place[-1]] = value
    return made


@pytest.mark.parametrize("what", ACTS)
def test_an_object_that_is_not_as_kubernetes_has_them_is_one_line(what: str) -> None:
    objects, act = ACTS[what]
    act(*copy.deepcopy(objects))
    refused = list[str]()
    for place in places(list(objects)):
        # The client lets no other through: tests/integration/remote/cluster/test_kubeconfig.py.
        if len(place) < 3 or place[1:] == ("metadata", "name"):
            continue
        for value in (*ODD, "gone"):
            try:
                act(*changed(objects, place, value))
            except ClusterError as error:
                refused.append(str(error))
    assert refused, "or nothing odd was tried"
    assert not [line for line in refused if "\n" in line]
