"""Tests of the plan from desired and live objects."""

import copy
import re
from typing import Any

import pytest

from remote.cluster.manifests import DIGEST_ANNOTATION, Image, ManifestValues, kustomization, with_digest
from remote.cluster.plan import Verb, comparable, describe_change, identity, is_training, plan
from remote.cluster.quantities import parse_quantity
from remote.cluster.settings import ClusterSection
from remote.providers import PROVIDERS
from tasks.clients.target_cluster import place_pods
from tests.support.cases import Case, load_cases

DIGEST_HEX = "sha256:" + "ab" * 32


def make_object(kind: str, name: str = "x", **spec: Any) -> dict[str, Any]:
    return with_digest(
        {
            "kind": kind,
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "qlora-fleet"}},
            "spec": {"a": 1, **spec},
        }
    )


def make_live(
    kind: str,
    *,
    by_hand: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
    ended: str | None = None,
    deleted: bool = False,
    **fields: Any,
) -> dict[str, Any]:
    """Return an object as a server stores it: with defaults, an identity and a status."""
    live = make_object(kind, **fields)
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "creationTimestamp": "2026-11-20T00:00:00Z"}
    live["metadata"] |= {} if labels is None else {"labels": labels}
    live["metadata"] |= {"deletionTimestamp": "2026-11-20T00:00:00Z"} if deleted else {}
    live["spec"] |= {"aDefault": True, **(by_hand or {})}
    return live | {"status": {"conditions": [{"type": ended, "status": "True"}]} if ended else {}}


def test_an_image_is_its_repository_and_whole_digest() -> None:
    image = Image.parse(f"localhost:5000/a/b:1.0@{DIGEST_HEX}")
    assert (image.repository, image.digest, image.registry) == ("localhost:5000/a/b", DIGEST_HEX, "localhost:5000")
    for reference in ("fra.ocir.io/ns/repo:1.0", "repo@sha256:12", f"a b@{DIGEST_HEX}", f"@{DIGEST_HEX}"):
        with pytest.raises(ValueError, match=re.escape(repr(reference))):
            Image.parse(reference)


def applied(desired: dict[str, Any], live: dict[str, Any]) -> dict[str, Any]:
    """Return what a server stores after an apply: our fields, and its own."""
    stored = copy.deepcopy(live)
    stored["spec"] |= desired["spec"]
    stored["metadata"] |= {"annotations": desired["metadata"]["annotations"], "resourceVersion": "8"}
    return stored


@pytest.mark.parametrize("case", load_cases(__file__, "plans.yaml"))
def test_the_plan(case: Case) -> None:
    desired = [make_object(**fields) for fields in case.get("desired", [])]
    live = [make_live(**fields) for fields in case.get("live", [])]
    by_name = {identity(resource): resource for resource in live}
    compared = [] if case.get("forbidden") else comparable(desired, live)
    stored = [applied(dict(resource), by_name[identity(resource)]) for resource in compared]
    planned = plan(desired, live, stored, replace_ended=case.get("replace_ended", False))
    assert [str(action) for action in planned.actions] == case["expected"]
    assert planned.is_empty == all(action.verb in (Verb.KEEP, Verb.LEAVE) for action in planned.actions)
    ended = [
        action.title
        for action in planned.actions
        if action.verb in (Verb.REPLACE, Verb.DELETE) and "being deleted" not in action.reason
    ]
    assert [action.title for action in planned.pod_ending_actions] == [
        title for title in ended if title.startswith("job/")
    ]


def make_job(component: str, **status: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app.kubernetes.io/component": component}}}
    return {"kind": "Job", "metadata": {"name": "x"}, "spec": {"template": template}, "status": status}


def test_only_a_job_with_work_to_do_is_a_training() -> None:
    done = [{"type": "Complete", "status": "True"}]
    # A pod that runs, one that is drained, and the back-off before the replacement of one that failed.
    assert all(is_training(make_job("train", **{count: 1})) for count in ("active", "terminating", "failed"))
    queued = make_job("train", conditions=[{"type": "Suspended", "status": "True"}])
    assert is_training({**queued, "spec": {**queued["spec"], "suspend": True}})
    assert not is_training(make_job("train", active=1, conditions=done))
    assert not is_training(make_job("train")), "no pod of it could be created"
    assert not is_training(make_job("worker", active=4)), "a worker only waits; the ledger of a run has its trials"
    assert is_training({"kind": "JobSet", "metadata": {"name": "x"}, "spec": {}, "status": {}})
    assert not is_training({"kind": "JobSet", "metadata": {}, "spec": {}, "status": {"terminalState": "Completed"}})


def test_a_replaced_job_is_described_by_its_changed_lines() -> None:
    desired = make_object("Job", template={"image": "b", "grace": 30})
    live = make_live("Job", template={"image": "a", "grace": 30}, by_hand={"parallelism": 3})
    (action,) = plan([desired], [live], []).actions
    text = describe_change(action)
    changes = [line for line in text.splitlines() if line[0] in "+-" and line[1:4] not in ("++ ", "-- ")]
    assert [line.strip("+-").split(":")[0].strip() for line in changes] == [f'"{DIGEST_ANNOTATION}"'] * 2 + [
        '"image"'
    ] * 2


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("4", 4), ("500m", 0.5), ("1Gi", 2**30), ("1G", 10**9), ("2Ki", 2048), ("1.5Mi", 1572864)],
        *[("1e9", 10**9), ("12E3", 12_000), ("5E", 5 * 10**18), ("2e-3", 0.002)],
        *[("1e999", 2**63 - 1), ("-1e999", 1 - 2**63), ("9" * 100, 2**63 - 1)],  # as in Kubernetes
    ],
)
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert float(parse_quantity(text)) == float(number)


@pytest.mark.parametrize("text", ["", "x", "1Q", "Gi", "--1", "1 Gi", "1e3k", "1e", "e3", "1e9999", "9" * 101])
def test_an_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        parse_quantity(text)


def values(model: str = "m", **section: Any) -> ManifestValues:
    placement = place_pods(ClusterSection(namespace="n", **section), PROVIDERS["oci"])
    return ManifestValues(placement=placement, image=Image.parse(f"h/r@{DIGEST_HEX}"), settings={"model": model})


@pytest.mark.parametrize("nasty", ["/models/it's $HOME `x`", "a: b # c", "{{ x }}", "- 1\n- 2", "ü\u2028"])
def test_values_enter_as_data_whatever_they_hold(nasty: str) -> None:
    _, settings = kustomization(values(model=nasty), "..")
    assert settings["spec"]["model"] == nasty


def test_the_jobset_is_copied_after_everything_else() -> None:
    top, _ = kustomization(values(overlay="job-4gpu-jobset", preemptible=True, pull_secret=None), "m")
    assert top["resources"] == ["m/overlays/job-4gpu", "settings.yaml"]
    names = [component.rpartition("/")[2] for component in top["components"]]
    assert names == ["provider", "emptydir", "settings", "job-spec", "public-image", "jobset"]
