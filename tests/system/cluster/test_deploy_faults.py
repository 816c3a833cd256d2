"""Tests of errors of cluster, credentials, permissions, nodes and images: each is one line with a remedy.

Real `inv`, kubectl and Python client. The responses of the tests' own cluster to each fault are recorded ones.
"""

import json
import threading

from tasks.cli.lock import acquire_lock
from tests.support.cloud_words import CLOUD_WORDS
from tests.system.cluster.conftest import DIGEST, NODES, PASSWORD, Operator


def test_expired_credentials_are_an_error_and_a_restart_of_the_server_is_not(operator: Operator) -> None:
    operator.cluster.faults.expire_credentials()
    assert "credentials of admin" in operator.inv("nodes", code=2)
    operator.cluster.faults.clear()
    operator.cluster.faults.stop_server(1.0)
    assert "nodes qualify" in operator.inv("nodes")


def test_what_a_user_may_not_read_or_grant_is_named_and_stops_nothing_else(operator: Operator) -> None:
    faults = operator.cluster.faults
    # A user who may not grant every permission cannot bind a missing Role, and in a dry run it is missing.
    operator.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}})
    faults.forbid(verb="bind")
    output = operator.inv("deploy", "--dry-run")
    assert "create     rolebinding/qlora-fleet-operator" in output
    assert "dry run: nothing was changed" in output
    faults.forbid(verb="create", resource="networkpolicies*")
    assert "administrator" in operator.inv_unchanged("deploy", stdin=f"{PASSWORD}\n", code=2)
    faults.clear()

    # A run that waits for its pods does not lock out a deployment that restores them, only one that ends them.
    faults.forbid(verb="list", resource="nodes")
    with acquire_lock(operator.results, "bench (run r)"):
        output = operator.inv("deploy", stdin=f"{PASSWORD}\n")
        assert "the nodes cannot be checked" in output
        assert "2 of 2 pods are up" in output
        operator.set_cluster(size=1)
        assert "in use by `inv bench (run r)`" in operator.inv("deploy", code=4)
        operator.set_cluster(size=2)
    assert 'cannot list resource "nodes"' in operator.inv("nodes", code=2)

    # The role `qlora-fleet-operator` has no permission for JobSets, and RBAC refuses before the API reports an unknown
    # kind.
    faults.forbid(verb="list", resource="jobsets*")
    output = operator.inv("status", "--json")
    assert [pod["is_up"] for pod in json.JSONDecoder().raw_decode(output)[0]["pods"]] == [True, True]

    # The doctor finds no fault for a user with that role.
    for verb in ("create", "patch", "delete", "update"):
        faults.forbid(verb=verb, resource="*s")
    allowed = ("pods", "pods/log", "pods/exec", "events", "services", "persistentvolumeclaims", "jobs.batch")
    for resource in {request.partition("?")[0].rpartition("/")[2] for request in operator.cluster.requests()}:
        if resource not in allowed:
            faults.forbid(verb="list", resource=f"{resource}*")
    for resource in ("namespaces", "secrets", "nodes", "resourcequotas"):
        faults.forbid(verb="get", resource=resource)
    output = operator.inv("doctor", "--only", "cluster,nodes,pods")
    assert "may not" not in output.replace("may not create", "")
    assert "✗" not in output


def test_nodes_that_cannot_run_a_pod_are_named_with_the_remedy_and_the_sick_one_is_cordoned_once(
    operator: Operator,
) -> None:
    cluster, (good, without_gpu, lost, sick) = operator.cluster, NODES
    operator.set_cluster(size=len(NODES))
    check = "oke.oraclecloud.com/active-health-checks-gpu-fryer"
    cluster.faults.set_gpus(without_gpu, 0)
    cluster.faults.lose_node(lost)
    cluster.output("label", "node", sick, f"{check}=fail")
    try:
        output = operator.inv_unchanged("deploy", code=1)
        assert f"node {without_gpu}: no nvidia.com/gpu allocatable" in output
        assert f"node {lost}: not Ready since" in output
        assert f"node {sick}: label {check}=fail" in output
        assert f"1 of {len(NODES)} nodes qualify" in output
        assert "set fleet.size to 1" in output
        document, _ = json.JSONDecoder().raw_decode(operator.inv("nodes", "--cordon", "--json", code=1))
        assert document["cordoned"] == [sick]
        assert (document["kind"], document["needed"], document["room"]) == ("nodes", len(NODES), 1)
        assert [node["name"] for node in document["nodes"] if not node["findings"]] == [good]
        assert "no node was cordoned" in operator.inv("nodes", "--cordon", code=1)
    finally:
        cluster.faults.set_gpus(without_gpu, 1)
        cluster.faults.restore_node(lost)
        cluster.output("uncordon", sick)
        cluster.output("label", "node", sick, f"{check}-")
    assert f"{len(NODES)} nodes qualify" in operator.inv("nodes")


def test_a_controller_that_is_not_installed_is_named(operator: Operator) -> None:
    operator.set_cluster(overlay="job-4gpu-kueue", volume={"handle": "ocid1.filesystem:10.0.0.1:/export"})
    output = operator.inv_unchanged("train", stdin=f"{PASSWORD}\n", code=2)
    assert "Kueue" in output
    assert "; set cluster.overlay" in output


def test_a_failed_pull_ends_the_wait_with_its_cause_late_pods_with_the_command_and_no_output_names_a_cloud(
    operator: Operator,
) -> None:
    """The nodes have the labels of OKE, so that provider generic is the named one, not the found one."""
    faults = operator.cluster.faults
    operator.settings["registry"] = {"user": "team+robot"}
    operator.set_cluster(provider="generic", image=f"registry.example.com/team/{operator.namespace}@{DIGEST}")
    faults.fail_pulls(operator.image, "token-401-wrong-user-form")
    outputs = [operator.inv("nodes"), operator.inv("deploy", stdin=f"{PASSWORD}\n", code=1)]
    remedy = f"`kubectl --namespace={operator.namespace} delete secret registry-login`"
    assert remedy in outputs[-1]
    assert outputs[-1].splitlines()[-1].count("`inv deploy") == 1, "not once more as the command that continues"
    outputs += [operator.inv("status")]
    assert outputs[-1].count(remedy) == 1, "one line for both pods"

    # After another cause, another deployment continues.
    faults.fail_pulls(operator.image, "timeout")
    operator.set_cluster(ready_timeout_sec=1.0)
    outputs += [operator.inv("deploy", code=3)]
    assert "0 of 2 pods are up after" in outputs[-1]
    assert "`inv deploy`" in outputs[-1]
    operator.set_cluster(ready_timeout_sec=60.0)
    process = operator.start("deploy")
    for line in process.stdout or ():
        if "Pull" in line:
            break
    faults.stop_server(3.0)
    faults.repair_pulls(operator.image)
    output, error = process.communicate(timeout=120)
    assert "2 of 2 pods are up" in output, error
    outputs += [output, operator.inv("doctor", "--only", "settings,cluster,nodes,pods"), operator.inv("train", code=2)]
    operator.set_cluster(volume={"handle": "10.0.0.1:/export"}, instance_type="missing")
    outputs += [operator.inv("deploy", "--dry-run"), operator.inv("teardown", "--yes")]
    assert "persistentvolume/" in outputs[-2]
    assert [output for output in outputs if CLOUD_WORDS.search(output)] == []


def test_a_job_that_the_server_refuses_ends_no_pod_and_a_deployment_waits_for_what_a_killed_teardown_deletes(
    deployed: Operator,
) -> None:
    before = {pod["metadata"]["uid"] for pod in deployed.objects("pods")}
    refusal = 'admission webhook "no.example" denied the request: no'
    deployed.cluster.faults.fail_requests(status=403, message=refusal, path="*/jobs", method="POST")
    deployed.set_cluster(memory="65Mi")
    assert refusal in deployed.inv("deploy", code=2)
    assert {pod["metadata"]["uid"] for pod in deployed.objects("pods")} == before
    deployed.set_cluster(memory="64Mi")

    before = {job["metadata"]["uid"] for job in deployed.objects("jobs.batch")}
    hold = '{"metadata": {"finalizers": ["tests/hold"]}}'
    deployed.kubectl("patch", "job", "bench", "--type=merge", f"--patch={hold}")
    deployed.kubectl("delete", "job", "bench", "--wait=false")
    assert "replace    job/bench  (it is being deleted)" in deployed.inv("deploy", "--dry-run")
    release = threading.Timer(
        2.0, deployed.kubectl, ("patch", "job", "bench", "--type=merge", '--patch={"metadata": {"finalizers": null}}')
    )
    release.start()
    assert "2 of 2 pods are up" in deployed.inv("deploy")
    release.join()
    assert before.isdisjoint(job["metadata"]["uid"] for job in deployed.objects("jobs.batch"))
