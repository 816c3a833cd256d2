"""Tests of the plan from desired and live objects."""

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cluster.manifests import DIGEST_ANNOTATION, Image, ManifestValues, kustomization, with_digest
from remote.cluster.plan import Verb, differences, is_training, plan
from remote.cluster.quantities import parse_quantity

DIGEST_HEX = "sha256:" + "ab" * 32


def make_object(kind: str, name: str = "x", **spec: Any) -> dict[str, Any]:
    return with_digest(
        {
            "kind": kind,
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "qlora-fleet"}},
            "spec": {"a": 1, **spec},
        }
    )


def as_live(resource: dict[str, Any]) -> dict[str, Any]:
    """Return the object as a server stores it: with defaults, an identity and a status."""
    live = copy.deepcopy(resource)
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "creationTimestamp": "2026-11-20T00:00:00Z"}
    live["spec"]["aDefault"] = True
    live["status"] = {}
    return live


@pytest.mark.parametrize(
    "reference",
    ["fra.ocir.io/ns/repo:1.0", "fra.ocir.io/ns/repo", "repo@sha256:12", f"a b@{DIGEST_HEX}", f"@{DIGEST_HEX}", ""],
)
def test_an_image_without_a_whole_digest_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(reference))):
        Image.parse(reference)


@pytest.mark.parametrize(
    ("reference", "repository", "registry"),
    [
        (f"fra.ocir.io/ns/repo@{DIGEST_HEX}", "fra.ocir.io/ns/repo", "fra.ocir.io"),
        (f"fra.ocir.io/ns/repo:1.0@{DIGEST_HEX}", "fra.ocir.io/ns/repo", "fra.ocir.io"),
        (f"localhost:5000/a/b@{DIGEST_HEX}", "localhost:5000/a/b", "localhost:5000"),
    ],
)
def test_an_image_is_its_repository_and_digest(reference: str, repository: str, registry: str) -> None:
    image = Image.parse(reference)
    assert (image.repository, image.digest, image.registry) == (repository, DIGEST_HEX, registry)
    assert image.reference == f"{repository}@{DIGEST_HEX}"


def changed_by_hand(resource: dict[str, Any]) -> dict[str, Any]:
    return resource | {"spec": resource["spec"] | {"a": 5}}


SERVICE, JOB, NAMESPACE, VOLUME = (
    make_object("Service"),
    make_object("Job"),
    make_object("Namespace"),
    make_object("PersistentVolume"),
)
FOREIGN_LABELS = {"metadata": NAMESPACE["metadata"] | {"labels": {"team": "a"}}}
BOUND_REASON = "spec.a cannot change while it is bound: `inv teardown`, then `inv deploy`"
EXISTED_REASON = "it existed before: its labels are not changed"
PLANS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]] = {
    "unchanged": ([NAMESPACE, SERVICE], [NAMESPACE, SERVICE], ["unchanged  namespace/x", "unchanged  service/x"]),
    "missing": ([SERVICE, JOB], [], ["create     service/x", "create     job/x"]),
    "changed": (
        [make_object("Service", a=2), make_object("Job", a=2)],
        [SERVICE, JOB],
        ["change     service/x  (spec.a)", "replace    job/x  (spec.a)"],
    ),
    "changed by hand, the digest is the same": (
        [SERVICE],
        [changed_by_hand(SERVICE)],
        ["change     service/x  (spec.a)"],
    ),
    "left the manifest": (
        [SERVICE],
        [make_object("Service", b=1)],
        ["change     service/x  (a field left the manifest)"],
    ),
    "no longer part of it: goes first": (
        [make_object("Job", "new")],
        [make_object("Job", "old"), make_object("ConfigMap", "old")],
        [
            "delete     job/old  (no longer part of it)",
            "delete     configmap/old  (no longer part of it)",
            "create     job/new",
        ],
    ),
    "a namespace of others keeps its labels": (
        [NAMESPACE],
        [NAMESPACE | FOREIGN_LABELS],
        [f"leave      namespace/x  ({EXISTED_REASON})"],
    ),
    "a bound volume": (
        [make_object("PersistentVolume", a=2)],
        [VOLUME],
        [f"leave      persistentvolume/x  ({BOUND_REASON})"],
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_the_plan(case: str) -> None:
    desired, live, expected = PLANS[case]
    planned = plan(desired, [as_live(resource) for resource in live])
    assert [str(action) for action in planned.actions] == expected
    assert planned.is_empty == all(action.verb in (Verb.KEEP, Verb.LEAVE) for action in planned.actions)
    ended = [action.title for action in planned.actions if action.verb in (Verb.REPLACE, Verb.DELETE)]
    assert [action.title for action in planned.pod_ending_actions] == [
        title for title in ended if title.startswith("job/")
    ]


def test_an_unchanged_volume_without_a_class_is_kept_although_the_server_drops_the_empty_text() -> None:
    volume, claim = (make_object(kind, storageClassName="") for kind in ("PersistentVolume", "PersistentVolumeClaim"))
    live_volume, live_claim = as_live(volume), as_live(claim)
    del live_volume["spec"]["storageClassName"]  # the field of a claim is a pointer, and keeps it
    assert [action.verb for action in plan([volume, claim], [live_volume, live_claim]).actions] == [Verb.KEEP] * 2
    live_volume["spec"]["storageClassName"] = live_claim["spec"]["storageClassName"] = "fast"
    assert [action.verb for action in plan([volume, claim], [live_volume, live_claim]).actions] == [Verb.LEAVE] * 2


@pytest.mark.parametrize("kind", ["Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret"])
def test_an_object_with_data_is_never_deleted_by_a_deployment(kind: str) -> None:
    assert plan([], [as_live(make_object(kind))]).is_empty


def test_a_foreign_object_is_never_deleted() -> None:
    foreign = as_live(make_object("Job"))
    foreign["metadata"]["labels"] = {"app.kubernetes.io/part-of": "qlora-fleet"}
    assert plan([], [foreign]).is_empty


@pytest.mark.parametrize(("kind", "word"), [("Failed", "failed"), ("Complete", "completed")])
def test_an_ended_job_is_started_again_only_when_asked(kind: str, word: str) -> None:
    live = as_live(make_object("Job"))
    live["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    assert plan([make_object("Job")], [live]).is_empty
    (action,) = plan([make_object("Job")], [live], replace_ended=True).actions
    assert (action.verb, action.reason) == (Verb.REPLACE, f"it {word}")


def make_job(component: str, **status: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app.kubernetes.io/component": component}}}
    return {"kind": "Job", "metadata": {"name": "x"}, "spec": {"template": template}, "status": status}


def test_only_a_running_job_is_a_training() -> None:
    done = [{"type": "Complete", "status": "True"}]
    assert is_training(make_job("train", active=1))
    assert not is_training(make_job("train", active=1, conditions=done))
    assert not is_training(make_job("train"))
    assert not is_training(make_job("worker", active=4)), "a worker only waits; the ledger of a run has its trials"
    assert is_training({"kind": "JobSet", "metadata": {"name": "x"}, "spec": {}, "status": {}})
    assert not is_training({"kind": "JobSet", "metadata": {}, "spec": {}, "status": {"terminalState": "Completed"}})


def test_a_plan_names_the_rights_it_needs() -> None:
    planned = plan([make_object("Service"), make_object("Job", a=2)], [as_live(make_object("Job"))], makes_secret=True)
    rights = {"Service": ("create", "patch"), "Job": ("create", "delete", "patch"), "Secret": ("create", "patch")}
    assert set(planned.permissions) == {(right, kind) for kind, several in rights.items() for right in several}


def test_a_secret_to_write_is_something_to_do() -> None:
    assert not plan([], [], makes_secret=True).is_empty


@pytest.mark.parametrize(
    ("desired", "live", "paths"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"]),
        ({"a": 1}, {}, ["a"]),
        ({"a": {}}, {}, []),
        ({"a": []}, {}, []),
        ({"a": None}, {}, []),
        ({"a": [1, 2]}, {"a": [1]}, ["a"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1]"]),
        ({"a": [{"x": 1}]}, {"a": [{"x": 1, "y": 2}]}, []),
        ({"a": {"b": 1}}, {"a": 5}, ["a"]),
        ({"a": [1]}, {"a": 5}, ["a"]),
        ({"cpu": "1"}, {"cpu": "1000m"}, []),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}, []),
        ({"memory": "1G"}, {"memory": "1Gi"}, ["memory"]),
        ({"name": "bench"}, {"name": "bench"}, []),
        ({"name": "bench"}, {"name": "bench2"}, ["name"]),
        ({"on": False}, {"on": True}, ["on"]),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}, {"key": "a", "x": 1}]}, []),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, ["tolerations"]),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": None}, ["tolerations"]),
    ],
)
def test_only_desired_fields_can_differ(desired: Any, live: Any, paths: list[str]) -> None:
    assert [difference.path for difference in differences(desired, live)] == paths


@pytest.mark.parametrize(
    ("desired", "live", "text"),
    [
        ({"cpu": "200m"}, {"cpu": "100m"}, "cpu: 100m -> 200m"),
        ({"claim": {"name": "shared"}}, {}, 'claim: absent -> {"name": "shared"}'),
        ({"on": False}, {"on": True}, "on: true -> false"),
        ({"a": [1, 2]}, {"a": [1]}, "a: [1] -> [1, 2]"),
        ({"args": "one\ntwo  three"}, {"args": "x" * 200}, f"args: {'x' * 157}... -> one two three"),
    ],
)
def test_a_difference_says_what_was_and_what_becomes(desired: Any, live: Any, text: str) -> None:
    assert [str(difference) for difference in differences(desired, live)] == [text]


JSON = st.recursive(
    st.booleans() | st.integers(1, 9) | st.text("abc", min_size=1, max_size=3),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), below, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(differences(value, copy.deepcopy(value))) == []


@given(st.dictionaries(st.text("xyz", min_size=1), JSON, max_size=3))
def test_a_field_that_the_server_adds_is_not_a_difference(value: dict[str, Any]) -> None:
    assert list(differences(value, {**value, "added": 1})) == []


@given(st.dictionaries(st.text("xyz", min_size=1), JSON, min_size=1, max_size=3))
def test_a_digest_depends_only_on_the_content(value: dict[str, Any]) -> None:
    first = with_digest({"metadata": {"name": "x"}, "spec": value})
    other = with_digest({"spec": dict(reversed(value.items())), "metadata": {"name": "x"}})
    assert first["metadata"]["annotations"][DIGEST_ANNOTATION] == other["metadata"]["annotations"][DIGEST_ANNOTATION]


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


def values(**changes: Any) -> ManifestValues:
    fields: dict[str, Any] = {"namespace": "n", "overlay": "pods", "image": Image.parse(f"h/r@{DIGEST_HEX}")}
    fields |= {
        "preemptible_label": None,
        "pull_secret": "s",
        "volume_source": {"nfs": {"server": "s", "path": "/c"}},
        "extra_settings": {"instance_type": "t"},
    }
    return ManifestValues(**(fields | changes))


@pytest.mark.parametrize("nasty", ["/models/it's $HOME `x`", "a: b # c", "{{ x }}", "- 1\n- 2", "ü\u2028"])
def test_values_enter_as_data_whatever_they_hold(nasty: str) -> None:
    _, settings = kustomization(values(extra_settings={"instance_type": nasty}), "..")
    assert settings["spec"]["instanceType"] == nasty


def test_the_jobset_is_copied_after_everything_else() -> None:
    top, _ = kustomization(
        values(overlay="job-4gpu-jobset", volume_source=None, preemptible_label="spot", pull_secret=None), "m"
    )
    assert top["resources"] == ["m/overlays/job-4gpu", "settings.yaml"]
    names = [component.rpartition("/")[2] for component in top["components"]]
    assert names == ["provider", "emptydir", "settings", "order", "public-image", "jobset"]
