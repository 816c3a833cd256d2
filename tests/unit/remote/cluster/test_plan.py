"""From what should be in the cluster and what is there to what is done: pure, so tried by the hundred."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.cluster.manifests import DIGEST, Image, Values, kustomization, stamped
from remote.cluster.plan import Verb, differences, is_training, plan
from remote.cluster.quantities import amount

DIGEST_HEX = "sha256:" + "ab" * 32


def thing(kind: str, name: str = "x", **spec: Any) -> dict[str, Any]:
    return stamped(
        {
            "kind": kind,
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "qlora-fleet"}},
            "spec": {"a": 1, **spec},
        }
    )


def in_cluster(one: dict[str, Any]) -> dict[str, Any]:
    """The object as a server keeps it: defaults, an identity and a status of its own."""
    live = copy.deepcopy(one)
    live["metadata"] |= {"uid": "1", "resourceVersion": "7", "creationTimestamp": "2026-11-20T00:00:00Z"}
    live["spec"]["aDefault"] = True
    live["status"] = {}
    return live


@pytest.mark.parametrize(
    "reference",
    ["fra.ocir.io/ns/repo:1.0", "fra.ocir.io/ns/repo", "repo@sha256:12", f"a b@{DIGEST_HEX}", f"@{DIGEST_HEX}", ""],
)
def test_an_image_without_a_whole_digest_is_refused(reference: str) -> None:
    with pytest.raises(ValueError, match="names no digest"):
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


def by_hand(one: dict[str, Any]) -> dict[str, Any]:
    return one | {"spec": one["spec"] | {"a": 5}}


SERVICE, JOB, SPACE, VOLUME = thing("Service"), thing("Job"), thing("Namespace"), thing("PersistentVolume")
THEIRS = {"metadata": SPACE["metadata"] | {"labels": {"team": "a"}}}
BOUND = "spec.a cannot change while it is bound: `inv teardown`, then `inv deploy`"
WAS_THERE = "it was there before: its labels are left as they are"
PLANS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]] = {
    "the same": ([SPACE, SERVICE], [SPACE, SERVICE], ["unchanged  namespace/x", "unchanged  service/x"]),
    "missing": ([SERVICE, JOB], [], ["create     service/x", "create     job/x"]),
    "changed": (
        [thing("Service", a=2), thing("Job", a=2)],
        [SERVICE, JOB],
        ["change     service/x  (spec.a)", "replace    job/x  (spec.a)"],
    ),
    "changed by hand, the digest is the same": ([SERVICE], [by_hand(SERVICE)], ["change     service/x  (spec.a)"]),
    "left the manifest": ([SERVICE], [thing("Service", b=1)], ["change     service/x  (a field left the manifest)"]),
    "no longer part of it: goes first": (
        [thing("Job", "new")],
        [thing("Job", "old"), thing("ConfigMap", "old")],
        [
            "delete     job/old  (no longer part of it)",
            "delete     configmap/old  (no longer part of it)",
            "create     job/new",
        ],
    ),
    "a namespace of others keeps its labels": ([SPACE], [SPACE | THEIRS], [f"leave      namespace/x  ({WAS_THERE})"]),
    "a bound volume": ([thing("PersistentVolume", a=2)], [VOLUME], [f"leave      persistentvolume/x  ({BOUND})"]),
}


@pytest.mark.parametrize("case", PLANS)
def test_what_is_planned(case: str) -> None:
    desired, live, expected = PLANS[case]
    planned = plan(desired, [in_cluster(one) for one in live])
    assert [str(action) for action in planned.actions] == expected
    assert planned.is_empty == all(action.verb in (Verb.KEEP, Verb.LEAVE) for action in planned.actions)
    ended = [action.title for action in planned.actions if action.verb in (Verb.REPLACE, Verb.DELETE)]
    assert [action.title for action in planned.ends_pods] == [title for title in ended if title.startswith("job/")]


@pytest.mark.parametrize("kind", ["Namespace", "PersistentVolume", "PersistentVolumeClaim", "Secret"])
def test_what_holds_data_is_never_deleted_by_a_deployment(kind: str) -> None:
    assert plan([], [in_cluster(thing(kind))]).is_empty


def test_what_somebody_else_made_is_never_deleted() -> None:
    foreign = in_cluster(thing("Job"))
    foreign["metadata"]["labels"] = {"app.kubernetes.io/part-of": "qlora-fleet"}
    assert plan([], [foreign]).is_empty


@pytest.mark.parametrize(("kind", "word"), [("Failed", "failed"), ("Complete", "completed")])
def test_an_ended_job_is_started_again_only_when_asked(kind: str, word: str) -> None:
    live = in_cluster(thing("Job"))
    live["status"] = {"conditions": [{"type": kind, "status": "True"}]}
    assert plan([thing("Job")], [live]).is_empty
    (action,) = plan([thing("Job")], [live], replace_ended=True).actions
    assert (action.verb, action.why) == (Verb.REPLACE, f"it {word}")


def work(component: str, **status: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app.kubernetes.io/component": component}}}
    return {"kind": "Job", "metadata": {"name": "x"}, "spec": {"template": template}, "status": status}


def test_only_work_that_is_going_on_is_in_the_middle_of_it() -> None:
    done = [{"type": "Complete", "status": "True"}]
    assert is_training(work("train", active=1))
    assert not is_training(work("train", active=1, conditions=done))
    assert not is_training(work("train"))
    assert not is_training(work("worker", active=4)), "a worker only waits; what it runs is in a run's ledger"
    assert is_training({"kind": "JobSet", "metadata": {"name": "x"}, "spec": {}, "status": {}})
    assert not is_training({"kind": "JobSet", "metadata": {}, "spec": {}, "status": {"terminalState": "Completed"}})


def test_a_plan_names_the_rights_it_needs() -> None:
    planned = plan([thing("Service"), thing("Job", a=2)], [in_cluster(thing("Job"))], makes_secret=True)
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
def test_only_what_is_desired_and_not_so_is_a_difference(desired: Any, live: Any, paths: list[str]) -> None:
    assert [difference.path for difference in differences(desired, live)] == paths


@pytest.mark.parametrize(
    ("desired", "live", "said"),
    [
        ({"cpu": "200m"}, {"cpu": "100m"}, "cpu: 100m -> 200m"),
        ({"claim": {"name": "shared"}}, {}, 'claim: absent -> {"name": "shared"}'),
        ({"on": False}, {"on": True}, "on: true -> false"),
        ({"a": [1, 2]}, {"a": [1]}, "a: [1] -> [1, 2]"),
        ({"args": "one\ntwo  three"}, {"args": "x" * 200}, f"args: {'x' * 157}... -> one two three"),
    ],
)
def test_a_difference_says_what_was_and_what_becomes(desired: Any, live: Any, said: str) -> None:
    assert [str(difference) for difference in differences(desired, live)] == [said]


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
def test_whatever_the_server_adds_is_no_difference(value: dict[str, Any]) -> None:
    assert list(differences(value, {**value, "added": 1})) == []


@given(st.dictionaries(st.text("xyz", min_size=1), JSON, min_size=1, max_size=3))
def test_a_digest_is_of_the_content_alone(value: dict[str, Any]) -> None:
    one = stamped({"metadata": {"name": "x"}, "spec": value})
    other = stamped({"spec": dict(reversed(value.items())), "metadata": {"name": "x"}})
    assert one["metadata"]["annotations"][DIGEST] == other["metadata"]["annotations"][DIGEST]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("4", 4), ("500m", 0.5), ("1Gi", 2**30), ("1G", 10**9), ("2Ki", 2048), ("1.5Mi", 1572864)],
        *[("1e9", 10**9), ("12E3", 12_000), ("5E", 5 * 10**18), ("2e-3", 0.002)],
        *[("1e999", 2**63 - 1), ("-1e999", 1 - 2**63), ("9" * 100, 2**63 - 1)],  # as Kubernetes takes them
    ],
)
def test_a_quantity_is_a_number(text: str, number: float) -> None:
    assert float(amount(text)) == float(number)


@pytest.mark.parametrize("text", ["", "x", "1Q", "Gi", "--1", "1 Gi", "1e3k", "1e", "e3", "1e9999", "9" * 101])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        amount(text)


def values(**changes: Any) -> Values:
    fields: dict[str, Any] = {"namespace": "n", "overlay": "pods", "image": Image.parse(f"h/r@{DIGEST_HEX}")}
    fields |= {"preemptible": False, "pull_secret": "s", "volume_handle": "a:b:/c", "copied": {"instance_type": "t"}}
    return Values(**(fields | changes))


@pytest.mark.parametrize("nasty", ["/models/it's $HOME `x`", "a: b # c", "{{ x }}", "- 1\n- 2", "ü\u2028"])
def test_values_enter_as_data_whatever_they_hold(nasty: str) -> None:
    _, settings = kustomization(values(copied={"instance_type": nasty}), "..")
    assert settings["spec"]["instanceType"] == nasty


def test_the_jobset_is_copied_after_everything_else() -> None:
    top, _ = kustomization(
        values(overlay="job-4gpu-jobset", volume_handle=None, preemptible=True, pull_secret=None), "m"
    )
    assert top["resources"] == ["m/overlays/job-4gpu", "settings.yaml"]
    names = [component.rsplit("/", 1)[1] for component in top["components"]]
    assert names == ["preemptible", "emptydir", "settings", "order", "public-image", "jobset"]
