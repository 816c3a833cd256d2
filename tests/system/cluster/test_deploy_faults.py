"""What can be wrong with cluster, credentials, rights, nodes, images and quotas: one line that says what to do.

Real `inv`, kubectl and Python client. The answers of the tests' own cluster to each fault are recorded ones.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from remote.cluster.client import Cluster as Reader
from remote.cluster.diagnosis import pods as diagnosis
from remote.cluster.kubeconfig import resolve
from tasks.cli.lock import acquire_lock
from tasks.cluster import wait as waiting
from tasks.errors import TaskFailed
from tasks.settings.load import Sections, Settings
from tests.support.kubernetes.real_cluster import AnyCluster, GivenCluster, gpu_nodes, may_break_nodes
from tests.system.cluster.conftest import DIGEST, OUR_USER, Operator

CHANGES = ("POST", "PATCH", "PUT", "DELETE")


def nothing_changed(requests: list[str]) -> bool:
    return not [r for r in requests if r.startswith(CHANGES) and "selfsubjectaccessreviews" not in r]


def test_a_missing_context_is_said_with_those_there_are(operator: Operator) -> None:
    operator.set(context="nowhere")
    known = operator.cluster.context
    said = operator.inv("status", code=2)
    assert f"there is no context 'nowhere'; there are {known}; set cluster.context" in said


def test_a_missing_kubeconfig_is_said_with_how_to_make_one(operator: Operator) -> None:
    operator.set(kubeconfig="none.yaml")
    assert "oci ce cluster create-kubeconfig" in operator.inv("deploy", "--dry-run", code=2)


def test_without_kubectl_a_deployment_says_what_to_install(operator: Operator) -> None:
    operator.path = str(operator.project)
    assert "install kubectl" in operator.inv("deploy", code=2)


@pytest.mark.parametrize("words", [("nodes",), ("deploy",), ("teardown", "--yes"), ("logs",)])
def test_expired_credentials_are_said_by_every_task(words: tuple[str, ...], operator: Operator) -> None:
    operator.cluster.faults.expire_credentials()
    assert "does not accept the credentials of admin" in operator.inv(*words, code=2)


def test_a_server_that_restarts_is_asked_again_and_one_that_stays_away_is_worth_another_try(operator: Operator) -> None:
    operator.cluster.faults.server_gone(1.0)
    assert "nodes qualify" in operator.inv("nodes")
    operator.cluster.faults.server_gone()
    try:
        said = operator.inv("deploy", code=3)
    finally:
        operator.cluster.faults.server_back()
    assert "does not answer" in said
    assert "the same again" in said


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"verb": "create", "resource": "pods/exec"}, "may not create pods/exec in namespace"),
        ({"verb": "get", "resource": "pods/exec"}, "may not get pods/exec in namespace"),
        ({"verb": "patch", "resource": "jobs*"}, "may not patch jobs in namespace"),
        ({"verb": "create", "resource": "secrets"}, "may not create secrets in namespace"),
        ({"verb": "list", "resource": "*s"}, "may not list persistentvolumeclaims, serviceaccounts, configmaps, "),
    ],
)
def test_a_missing_right_is_named_before_anything_is_changed(
    rule: dict[str, str], words: str, operator: Operator
) -> None:
    operator.cluster.faults.forbid(**rule)
    before = len(operator.cluster.requests())
    said = operator.inv("deploy", stdin=f"{operator.password}\n", code=2)
    assert words in said
    assert "administrator" in said
    assert nothing_changed(operator.cluster.requests()[before:])


def test_a_namespaces_admin_may_look_at_a_deployment_before_making_it(operator: Operator) -> None:
    """Who may not grant every right cannot bind a Role that is not there, as it is not in a dry run."""
    operator.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}})
    operator.cluster.faults.forbid(verb="bind")
    said = operator.inv("deploy", "--dry-run")
    assert "create     rolebinding/qlora-fleet-operator" in said
    assert "dry run: nothing was changed" in said
    assert "2 of 2 pods are up" in operator.inv("deploy", stdin=f"{operator.password}\n")


def test_a_run_that_waits_for_its_pods_does_not_lock_out_what_brings_them_back(operator: Operator) -> None:
    with acquire_lock(operator.results, "bench (run r)"):
        assert "2 of 2 pods are up" in operator.inv("deploy", stdin=f"{operator.password}\n")
        operator.set(size=1)
        assert "in use by `inv bench (run r)`" in operator.inv("deploy", code=4)


def test_a_shell_without_one_of_the_rights_to_exec_names_it(deployed: Operator) -> None:
    for verb in ("get", "create"):
        deployed.cluster.faults.forbid(verb=verb, resource="pods/exec")
        assert f"may not {verb} pods/exec" in deployed.inv("shell", code=2)
        deployed.cluster.faults.clear()


def test_who_has_no_right_to_a_controller_that_is_not_there_sees_the_pods(deployed: Operator) -> None:
    """As the role `qlora-fleet-operator` has none to JobSets: RBAC refuses before the API says that it knows none."""
    deployed.cluster.faults.forbid(verb="list", resource="jobsets*")
    assert "2 of 2 pods are up" in deployed.inv("status")
    said = deployed.inv("status", "--json")
    assert [pod["is_up"] for pod in json.JSONDecoder().raw_decode(said)[0]["pods"]] == [True, True]


def test_without_the_right_to_see_nodes_a_deployment_goes_on(operator: Operator) -> None:
    operator.cluster.faults.forbid(verb="list", resource="nodes")
    said = operator.inv("deploy", stdin=f"{operator.password}\n")
    assert "the nodes cannot be checked" in said
    assert "2 of 2 pods are up" in said
    assert 'cannot list resource "nodes"' in operator.inv("nodes", code=2)


def test_too_few_nodes_are_said_before_anything_is_changed(operator: Operator) -> None:
    there = len(gpu_nodes(operator.cluster))
    operator.set(size=there + 1)
    assert operator.changes("deploy", code=1) == []
    said = operator.inv("deploy", code=1)
    assert f"{there} of {there + 1} nodes qualify" in said
    assert f"set fleet.size to {there}" in said
    said = operator.inv("nodes", "--json", code=1)
    assert f"{there} of {there + 1} nodes qualify" in said
    found, _ = json.JSONDecoder().raw_decode(said)
    assert (found["kind"], found["needed"], found["room"]) == ("nodes", there + 1, there)
    assert sorted(one["name"] for one in found["nodes"] if one["qualifies"]) == gpu_nodes(operator.cluster)
    assert all(one["findings"] for one in found["nodes"] if not one["qualifies"])


@contextmanager
def spoiled_node(cluster: AnyCluster, node: str, how: str) -> Iterator[None]:
    may_break_nodes(cluster)
    faults, said, taint = cluster.faults, cluster.said, ("taint", "node", node)
    spoil, mend = {
        "cordoned": (partial(said, "cordon", node), partial(said, "uncordon", node)),
        "no GPU": (partial(faults.set_gpus, node, 0), partial(faults.set_gpus, node, 1)),
        "lost": (partial(faults.lose_node, node), partial(faults.find_node, node)),
        "tainted": (partial(said, *taint, "team=b:NoSchedule"), partial(said, *taint, "team-")),
    }[how]
    try:
        spoil()
        cluster.wait_until(lambda: is_ready(cluster, node) is (how != "lost"), f"{node} to be given up if it is lost")
        yield
    finally:
        mend()
        cluster.wait_until(lambda: is_ready(cluster, node), f"{node} to be ready")


def is_ready(cluster: AnyCluster, node: str) -> bool:
    (found,) = (object for object in cluster.objects("nodes") if object["metadata"]["name"] == node)
    return {c["type"]: c["status"] for c in found["status"]["conditions"]}["Ready"] == "True"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cordoned", "node NODE: cordoned: it takes no new pods; kubectl uncordon NODE"),
        ("no GPU", "node NODE: no nvidia.com/gpu allocatable: no device plugin runs on it"),
        ("lost", "node NODE: not Ready since"),
        ("tainted", "node NODE: taint team=b:NoSchedule is not tolerated; kubectl taint node NODE team:NoSchedule-"),
    ],
)
def test_a_node_that_cannot_take_a_pod_is_named_with_the_remedy(how: str, words: str, operator: Operator) -> None:
    nodes = gpu_nodes(operator.cluster)
    operator.set(size=len(nodes))
    with spoiled_node(operator.cluster, nodes[1], how):
        said = operator.inv("nodes", code=1)
    assert words.replace("NODE", nodes[1]) in said
    assert f"{len(nodes) - 1} of {len(nodes)} nodes qualify" in said


def test_a_volume_whose_csi_driver_is_missing_is_refused_before_anything_is_changed(operator: Operator) -> None:
    if isinstance(operator.cluster, GivenCluster):
        pytest.skip("the drivers of the cluster that --kubeconfig names are left alone")
    operator.set(fss={"volume_handle": "ocid1.filesystem:10.0.0.1:/export"})
    name = "fss.csi.oraclecloud.com"
    driver = next(object for object in operator.cluster.objects("csidrivers.storage.k8s.io"))
    operator.cluster.said("delete", "csidriver", name)
    try:
        assert operator.changes("deploy", stdin=f"{operator.password}\n", code=2) == []
        assert f"no CSI driver {name}: have it installed" in operator.inv("deploy", code=2, stdin="x\n")
    finally:
        made = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}}
        operator.cluster.apply({**made, "spec": driver["spec"]})


def test_a_drained_node_gives_up_its_worker_one_at_a_time_and_at_no_cost(deployed: Operator) -> None:
    may_break_nodes(deployed.cluster)
    before = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in deployed.objects("pods")}
    node, other = before.values()
    drain = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=60s")
    try:
        deployed.cluster.said("drain", node, *drain)
        deployed.cluster.said("drain", other, *drain)  # waits until the first one's replacement is Ready
        for name in (node, other):
            deployed.cluster.said("uncordon", name)
        deployed.cluster.wait_until(lambda: "2 of 2 pods are up" in deployed.inv("status"), "both replacements")
    finally:
        for name in (node, other):
            deployed.cluster.kubectl("uncordon", name)
    (job,) = deployed.objects("jobs.batch")
    assert not job["status"].get("failed"), "a drain counts towards no limit"
    assert not set(before) & {pod["metadata"]["name"] for pod in deployed.objects("pods")}


def test_a_cluster_that_looks_like_production_is_not_changed_unasked(operator: Operator, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(operator.cluster.kubeconfig_text(context="oke-prod-fra"))
    operator.inv("deploy", stdin=f"{operator.password}\n")
    operator.set(kubeconfig=str(kubeconfig), size=1)
    said = operator.inv("deploy", code=4)
    assert f"ATTENTION: another cluster or namespace than last time (context {operator.cluster.context}" in said
    assert "oke-prod-fra, namespace" in said
    assert "--yes" in said
    assert len(operator.objects("pods")) == 2
    operator.inv("status")  # looking is not changing
    operator.inv("deploy", "--dry-run")
    operator.inv("deploy", "--yes")
    assert json.loads((operator.results / "cluster.json").read_text())["context"] == "oke-prod-fra"
    operator.inv("deploy")  # and now it is the usual one


def test_the_registrys_user_name_is_looked_at_before_anything_is_sent(operator: Operator) -> None:
    operator.set(image=f"fra.ocir.io/ns/{operator.namespace}@{DIGEST}", registry_user="me")
    assert "does not begin with the tenancy's namespace, ns/" in operator.inv("deploy", code=2)
    operator.set(registry_user=None)
    assert "set registry.user" in operator.inv("deploy", code=2)
    operator.set(registry_user=OUR_USER)
    assert operator.changes("deploy", code=2) == []
    assert f"no auth token for {OUR_USER} at fra.ocir.io on standard input" in operator.inv("deploy", code=2)


@pytest.mark.parametrize(("overlay", "name"), [("job-4gpu-jobset", "JobSet"), ("job-4gpu-kueue", "Kueue")])
def test_a_controller_that_is_not_installed_is_named(overlay: str, name: str, operator: Operator) -> None:
    operator.set(overlay=overlay, fss={"volume_handle": "ocid1.filesystem:10.0.0.1:/export"})
    assert operator.changes("train", "--job", stdin=f"{operator.password}\n", code=2) == []
    said = operator.inv("train", "--job", stdin=f"{operator.password}\n", code=2)
    assert f"{name}: its controller" in said


def test_an_image_that_cannot_be_pulled_ends_the_wait_with_its_cause(operator: Operator) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "token-401-wrong-user-form")
    said = operator.inv("deploy", stdin=f"{operator.password}\n", code=1)
    assert "the registry refuses user name or password of the pull secret" in said
    assert "NAMESPACE/oracleidentitycloudservice/USER" in said
    assert "`inv deploy --renew-secret`" in said
    assert operator.inv("status").count("the registry refuses") == 1, "said of both pods at once"
    # Mended, the same again goes on.
    operator.cluster.faults.mend_pulls(operator.image)
    assert "2 of 2 pods are up" in operator.inv("deploy")


def wait_here(operator: Operator) -> None:
    """The task's own wait, in this process, so that its patience can be shortened."""
    sections = Sections.model_validate(operator.settings)
    settings = Settings(root=operator.project, **{name: getattr(sections, name) for name in Sections.model_fields})
    cluster = settings.cluster.model_copy(update={"ready_timeout_sec": 60.0})
    target = resolve(kubeconfig=str(operator.cluster.kubeconfig), context=None, namespace=operator.namespace)
    reader = Reader(target)
    try:
        job = {"kind": "Job", "metadata": {"name": "bench"}}
        waiting.wait_for_pods(settings.model_copy(update={"cluster": cluster}), reader, [job], plain=True)
    finally:
        reader.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up at the second look at any finding."""
    for name in ("SOON_SEC", "PATIENT_SEC"):
        monkeypatch.setattr(diagnosis, name, 0.5)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("basic-401-no-secret", "asks for a login (401)"),
        ("timeout", "does not answer the node"),
        ("x509-unknown-ca", "does not trust the registry's certificate"),
    ],
)
def test_each_cause_of_a_failing_pull_is_told(cause: str, words: str, operator: Operator) -> None:
    operator.cluster.faults.fail_pulls(operator.image, cause)
    operator.set(ready_timeout_sec=1.0)
    operator.inv("deploy", stdin=f"{operator.password}\n", code=3)
    with pytest.raises(TaskFailed) as caught:
        wait_here(operator)
    assert words in str(caught.value)
    assert words in operator.inv("status")


@pytest.mark.usefixtures("hasty")
def test_a_quota_that_is_used_up_is_told(operator: Operator) -> None:
    operator.inv("deploy", "--partial", stdin=f"{operator.password}\n")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpu-quota"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
    }
    operator.kubectl("apply", "-f", "-", stdin=json.dumps(quota).encode())
    # Not waited for: a pod of an index stays until its replacement has been made, which the quota forbids.
    operator.kubectl("delete", "pods", "--all", "--grace-period=0", "--force", "--wait=false")
    with pytest.raises(TaskFailed) as caught:
        wait_here(operator)
    assert "exceeded quota: gpu-quota" in str(caught.value)


def test_pods_that_do_not_come_in_time_leave_the_command_that_goes_on_and_a_server_that_is_away_is_waited_for(
    operator: Operator,
) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "timeout")
    operator.set(ready_timeout_sec=1.0)
    said = operator.inv("deploy", stdin=f"{operator.password}\n", code=3)
    assert "0 of 2 pods are up after" in said
    assert "`inv deploy`" in said
    operator.cluster.faults.server_gone(3.0)
    operator.cluster.faults.mend_pulls(operator.image)
    wait_here(operator)
