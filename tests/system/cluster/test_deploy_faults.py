"""Tests of errors of cluster, credentials, permissions, nodes and images: each is one line with a remedy.

Real `inv`, kubectl and Python client. The responses of the tests' own cluster to each fault are recorded ones.
"""

import json
import re
import shlex
import threading

from tasks.cli.lock import acquire_lock
from tests.system.cluster.conftest import NODES, Operator


def test_expired_credentials_are_reported(operator: Operator) -> None:
    operator.cluster.faults.expire_credentials()
    for arguments in (("nodes",), ("teardown", "--yes")):
        assert "credentials of admin" in operator.inv(*arguments, code=2)


def test_requests_to_a_restarting_server_are_retried_and_an_absent_one_is_a_retryable_error(operator: Operator) -> None:
    operator.cluster.faults.stop_server(1.0)
    assert "nodes qualify" in operator.inv("nodes")
    operator.cluster.faults.stop_server()
    try:
        output = operator.inv("deploy", code=3)
    finally:
        operator.cluster.faults.start_server()
    assert "does not answer" in output
    assert "retry" in output


def test_a_missing_permission_is_reported_before_any_change(operator: Operator) -> None:
    for verb, resource, message in (
        ("create", "pods/exec", "may not create pods/exec in namespace"),
        ("create", "secrets", "may not create secrets in namespace"),
        ("list", "roles*", 'cannot list resource "roles"'),
    ):
        operator.cluster.faults.forbid(verb=verb, resource=resource)
        output = operator.inv_unchanged("deploy", stdin=f"{operator.password}\n", code=2)
        assert message in output
        assert "administrator" in output
        operator.cluster.faults.clear()


def test_a_namespaces_admin_can_run_a_dry_run(operator: Operator) -> None:
    # A user who may not grant every permission cannot bind a missing Role, and in a dry run it is missing.
    operator.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}})
    operator.cluster.faults.forbid(verb="bind")
    output = operator.inv("deploy", "--dry-run")
    assert "create     rolebinding/qlora-fleet-operator" in output
    assert "dry run: nothing was changed" in output
    assert "2 of 2 pods are up" in operator.inv("deploy", stdin=f"{operator.password}\n")


def test_a_run_that_waits_for_its_pods_does_not_lock_out_a_deployment_that_restores_them(operator: Operator) -> None:
    with acquire_lock(operator.results, "bench (run r)"):
        assert "2 of 2 pods are up" in operator.inv("deploy", stdin=f"{operator.password}\n")
        operator.set_cluster(size=1)
        assert "in use by `inv bench (run r)`" in operator.inv("deploy", code=4)


def test_what_a_user_may_not_read_is_named_and_stops_nothing_else(deployed: Operator) -> None:
    faults = deployed.cluster.faults
    faults.fail_requests(status=400, message="a\x1b]0;b", path="*/log", times=50)
    assert "a\\x1b]0;b" in deployed.inv("logs", "--pod", "1", code=1)
    faults.clear()

    # The role `qlora-fleet-operator` has no permission for JobSets, and RBAC refuses before the API reports an unknown
    # kind.
    faults.forbid(verb="list", resource="jobsets*")
    assert "2 of 2 pods are up" in deployed.inv("status")
    output = deployed.inv("status", "--json")
    assert [pod["is_up"] for pod in json.JSONDecoder().raw_decode(output)[0]["pods"]] == [True, True]

    # The doctor finds no fault for a user with that role.
    for verb in ("create", "patch", "delete", "update"):
        faults.forbid(verb=verb, resource="*s")
    allowed = ("pods", "pods/log", "pods/exec", "events", "services", "persistentvolumeclaims", "jobs.batch")
    for resource in {request.partition("?")[0].rpartition("/")[2] for request in deployed.cluster.requests()}:
        if resource not in allowed:
            faults.forbid(verb="list", resource=f"{resource}*")
    for resource in ("namespaces", "secrets", "nodes", "resourcequotas", "csidrivers*"):
        faults.forbid(verb="get", resource=resource)
        faults.forbid(verb="list", resource=resource)
    output = deployed.inv("doctor", "--only", "cluster,nodes,pods")
    assert "may not" not in output.replace("may not create", "")
    assert "✗" not in output


def test_without_permission_to_list_nodes_a_deployment_continues(operator: Operator) -> None:
    operator.cluster.faults.forbid(verb="list", resource="nodes")
    output = operator.inv("deploy", stdin=f"{operator.password}\n")
    assert "the nodes cannot be checked" in output
    assert "2 of 2 pods are up" in output
    assert 'cannot list resource "nodes"' in operator.inv("nodes", code=2)


def test_too_few_nodes_are_reported_before_any_change(operator: Operator) -> None:
    node_count = len(NODES)
    operator.set_cluster(size=node_count + 1)
    output = operator.inv_unchanged("deploy", code=1)
    assert f"{node_count} of {node_count + 1} nodes qualify" in output
    assert f"set fleet.size to {node_count}" in output
    document, _ = json.JSONDecoder().raw_decode(operator.inv("nodes", "--json", code=1))
    assert (document["kind"], document["needed"], document["room"]) == ("nodes", node_count + 1, node_count)
    assert sorted(node["name"] for node in document["nodes"] if node["qualifies"]) == NODES
    assert all(node["findings"] for node in document["nodes"] if not node["qualifies"])


def test_nodes_that_cannot_run_a_pod_are_named_with_the_remedy_and_the_sick_one_is_cordoned_once(
    operator: Operator,
) -> None:
    cluster, (_, without_gpu, lost, sick) = operator.cluster, NODES
    operator.set_cluster(size=len(NODES))
    check = "oke.oraclecloud.com/active-health-checks-gpu-fryer"
    cluster.faults.set_gpus(without_gpu, 0)
    cluster.faults.lose_node(lost)
    cluster.output("label", "node", sick, f"{check}=fail")
    try:
        output = operator.inv("nodes", code=1)
        assert f"node {without_gpu}: no nvidia.com/gpu allocatable" in output
        assert f"node {lost}: not Ready since" in output
        assert f"node {sick}: label {check}=fail" in output
        assert f"1 of {len(NODES)} nodes qualify" in output
        document, _ = json.JSONDecoder().raw_decode(operator.inv("nodes", "--cordon", "--json", code=1))
        assert document["cordoned"] == [sick]
        assert {node["name"]: node["health"] for node in document["nodes"]}[sick] == "sick"
        assert "no node was cordoned" in operator.inv("nodes", "--cordon", code=1)
    finally:
        cluster.faults.set_gpus(without_gpu, 1)
        cluster.faults.restore_node(lost)
        cluster.output("uncordon", sick)
        cluster.output("label", "node", sick, f"{check}-")
    assert f"{len(NODES)} nodes qualify" in operator.inv("nodes")


def test_a_volume_without_its_csi_driver_is_refused_before_any_change(operator: Operator) -> None:
    operator.set_cluster(volume={"handle": "ocid1.filesystem:10.0.0.1:/export"})
    name = "fss.csi.oraclecloud.com"
    driver = next(iter(operator.cluster.objects("csidrivers.storage.k8s.io")))
    operator.cluster.output("delete", "csidriver", name)
    try:
        assert name in operator.inv_unchanged("deploy", stdin=f"{operator.password}\n", code=2)
    finally:
        made = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}}
        operator.cluster.apply({**made, "spec": driver["spec"]})


def test_a_controller_that_is_not_installed_is_named(operator: Operator) -> None:
    operator.set_cluster(overlay="job-4gpu-kueue", volume={"handle": "ocid1.filesystem:10.0.0.1:/export"})
    output = operator.inv_unchanged("train", stdin=f"{operator.password}\n", code=2)
    assert "Kueue" in output
    assert "; set cluster.overlay" in output


def test_a_failed_pull_ends_the_wait_with_its_cause(operator: Operator) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "token-401-wrong-user-form")
    output = operator.inv("deploy", stdin=f"{operator.password}\n", code=1)
    assert "NAMESPACE/oracleidentitycloudservice/USER" in output
    assert f"`kubectl --namespace={operator.namespace} delete secret ocir-secret`" in output
    assert output.splitlines()[-1].count("`inv deploy") == 1, "not once more as the command that continues"
    assert operator.inv("status").count(" delete secret ocir-secret`") == 1, "one line for both pods"
    # After the repair, another deployment continues.
    operator.cluster.faults.repair_pulls(operator.image)
    assert "2 of 2 pods are up" in operator.inv("deploy")


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
        3.0, deployed.kubectl, ("patch", "job", "bench", "--type=merge", '--patch={"metadata": {"finalizers": null}}')
    )
    release.start()
    assert "2 of 2 pods are up" in deployed.inv("deploy")
    release.join()
    assert before.isdisjoint(job["metadata"]["uid"] for job in deployed.objects("jobs.batch"))


def test_late_pods_end_a_deployment_with_the_command_that_continues_and_an_absent_server_is_waited_for(
    operator: Operator,
) -> None:
    operator.cluster.faults.fail_pulls(operator.image, "timeout")
    operator.set_cluster(ready_timeout_sec=1.0)
    output = operator.inv("deploy", stdin=f"{operator.password}\n", code=3)
    assert "0 of 2 pods are up after" in output
    assert "`inv deploy`" in output
    operator.set_cluster(ready_timeout_sec=60.0)
    process = operator.start("deploy", "--plain")
    for line in process.stdout or ():
        if "Pull" in line:
            break
    operator.cluster.faults.stop_server(3.0)
    operator.cluster.faults.repair_pulls(operator.image)
    output, error = process.communicate(timeout=120)
    assert "2 of 2 pods are up" in output, error


def phases(operator: Operator, index: int) -> dict[str, str]:
    """Return the phase of each pod of a worker by its name, "going" for one that is being deleted."""
    pods = [pod for pod in operator.objects("pods") if pod["metadata"]["name"].startswith(f"bench-{index}-")]
    return {
        pod["metadata"]["name"]: "going" if "deletionTimestamp" in pod["metadata"] else pod["status"]["phase"]
        for pod in pods
    }


def test_the_worker_of_a_dead_node_is_replaced_and_its_pod_ended_by_the_printed_command(deployed: Operator) -> None:
    cluster = deployed.cluster
    ((name, _),) = phases(deployed, 0).items()
    node = next(pod["spec"]["nodeName"] for pod in deployed.objects("pods") if pod["metadata"]["name"] == name)
    cluster.faults.lose_node(node)
    cluster.wait_until(lambda: sorted(phases(deployed, 0).values()) == ["Running", "going"], "the replacement")
    assert phases(deployed, 0)[name] == "going", "it is listed until its node returns"
    assert "2 of 2 pods are up" in deployed.inv("status")

    (command,) = re.findall(r"`kubectl (taint [^`]+)`", deployed.inv("nodes"))
    assert f" {node} " in command
    cluster.output(*shlex.split(command))
    cluster.wait_until(lambda: name not in phases(deployed, 0), "the old pod to go")
    cluster.faults.restore_node(node)
    (command,) = re.findall(r"kubectl (taint node \S+ \S+-)", deployed.inv("nodes"))
    cluster.output(*shlex.split(command))
    assert f"{len(NODES)} nodes qualify" in deployed.inv("nodes")
