"""Tests of `inv nodes`, `deploy`, `status`, `teardown` with real kubectl."""

import base64
import json
import re
import shlex
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

from remote.hosts.command import Command
from remote.hosts.pods.host import PodHost
from remote.hosts.pods.kubectl import Kubectl
from remote.hosts.pods.pod_index import PodIndex
from remote.jobs.job import Agent, Job, JobSpec, JobState, slot_path
from tests.support.hosts.local_fleet import wait_for
from tests.system.cluster.conftest import NODES, OUR_USER, PASSWORD, Operator


def test_a_deployment_comes_up_and_another_and_the_reading_tasks_change_nothing(operator: Operator) -> None:
    assert "create     job/bench" in operator.inv_unchanged("deploy", "--dry-run")
    assert f"{len(NODES)} nodes qualify" in operator.inv("nodes")
    assert "`inv deploy`" in operator.inv("status", code=1)
    assert "`inv deploy`" in operator.inv("logs", code=2)
    assert "nothing to do" in operator.inv("teardown", "--yes")
    output = operator.inv("deploy", stdin=f"{PASSWORD}\n")
    assert "2 of 2 pods are up" in output
    pods = operator.objects("pods")
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(NODES)
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2, "one per node"
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {operator.image}

    operator.inv_unchanged("deploy")
    assert [pod["metadata"]["uid"] for pod in operator.objects("pods")] == [pod["metadata"]["uid"] for pod in pods]

    line = f"cluster: {operator.cluster.context_description}, "
    for arguments in (("nodes",), ("status",), ("logs",), ("deploy", "--dry-run"), ("teardown", "--dry-run")):
        assert f"{line}namespace {operator.namespace}" in operator.inv(*arguments)
    assert all(pod["metadata"]["name"] in operator.inv("logs") for pod in pods)
    document, _ = json.JSONDecoder().raw_decode(operator.inv("logs", "--pod", "1", "--tail", "5", "--json"))
    assert (document["kind"], document["pod"].startswith("bench-1"), bool(document["lines"])) == ("logs", True, True)
    assert "'9'; choose bench-" in operator.inv("logs", "--pod", "9", code=2)

    output = operator.inv_unchanged("doctor", "--only", "cluster,pods")
    assert "2 of 2 pods are up" in output
    assert "may run trials and deploy" in output


def test_a_manual_change_is_reverted_a_setting_replaces_the_pods_and_another_overlay_deletes_them(
    deployed: Operator,
) -> None:
    def service() -> Any:
        (service_object,) = (
            service for service in deployed.objects("services") if service["metadata"]["name"] == "bench"
        )
        return service_object["spec"]

    def patch(spec: str) -> None:
        deployed.kubectl("patch", "service", "bench", "--type=merge", f'--patch={{"spec":{spec}}}')

    before = {job["metadata"]["uid"] for job in deployed.objects("jobs.batch")}
    patch('{"publishNotReadyAddresses":false}')
    deployed.set_cluster(shm="17Mi")
    output = deployed.inv("deploy", "--dry-run")
    assert "change     service/bench  (spec)" in output
    assert "replace    job/bench  (its manifest changed)" in output
    assert '"sizeLimit": "17Mi"' in output
    assert '+  "publishNotReadyAddresses": true' in output

    # The API drops false, which equals an absent field, so no manager owns it; kubectl patch owns the selector.
    patch('{"selector":{"app.kubernetes.io/name":"else"}}')
    deployed.set_cluster(shm="16Mi")
    assert "change     service/bench  (spec)" in deployed.inv("deploy")
    assert service()["publishNotReadyAddresses"] is True
    assert service()["selector"]["app.kubernetes.io/name"] == "bench"
    assert {job["metadata"]["uid"] for job in deployed.objects("jobs.batch")} == before

    before = {pod["metadata"]["uid"] for pod in deployed.objects("pods")}
    deployed.set_cluster(memory="65Mi", size=1)
    # A word of kubectl's command line is a valid password.
    deployed.kubectl("delete", "secret", "ocir-secret")
    output = deployed.inv("deploy", stdin="fleet\n")
    (secret,) = (each for each in deployed.objects("secrets") if each["metadata"]["name"] == "ocir-secret")
    assert b'"fleet"' in base64.b64decode(secret["data"][".dockerconfigjson"])
    assert "replace    job/bench" in output
    assert "1 of 1 pods are up" in output
    (pod,) = deployed.objects("pods")
    assert pod["metadata"]["uid"] not in before
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "65Mi"

    deployed.set_cluster(overlay="interactive")
    output = deployed.inv("deploy")
    assert "delete     job/bench" in output
    assert [job["metadata"]["name"] for job in deployed.objects("jobs.batch")] == ["interactive"]
    assert "fleet" not in deployed.kubectl("exec", "job/interactive", "--", "hostname")


def test_the_password_is_in_the_secret_and_nowhere_else(operator: Operator, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    spy = bin_folder / "kubectl"
    spy.write_text(f'#!/bin/sh\ncat /proc/$$/cmdline /proc/$$/environ >> {seen}\nexec {shutil.which("kubectl")} "$@"\n')
    spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
    operator.path = f"{bin_folder}:{operator.path}"
    fault = {"path": "*/secrets/*", "nth": 2, "times": 1, "status": 500, "message": f"cannot store {PASSWORD}"}
    operator.cluster.faults.fail_requests(**fault)
    output = operator.inv("deploy", stdin=f"{PASSWORD}\n", code=1)
    assert "***" in output, "a secret that the server refuses is not printed"
    output += operator.inv("deploy", stdin=f"{PASSWORD}\n")

    (secret,) = (
        candidate for candidate in operator.objects("secrets") if candidate["metadata"]["name"] == "ocir-secret"
    )
    config = secret["data"].pop(".dockerconfigjson")
    login = json.loads(base64.b64decode(config))["auths"][operator.image.split("/", 1)[0]]
    assert (login["username"], login["password"]) == (OUR_USER, PASSWORD)
    forms = [PASSWORD, config, login["auth"], json.dumps(PASSWORD)[1:-1]]
    files = [path.read_text(errors="replace") for path in operator.project.rglob("*") if path.is_file()]
    everything = [output, seen.read_text(errors="replace"), json.dumps(secret), *files, *operator.cluster.requests()]
    assert "kubectl\0" in everything[1], "the spy saw kubectl"
    assert [form for form in forms for text in everything if form in text] == []
    assert "last-applied" not in json.dumps(secret)


def phases(operator: Operator, index: int) -> dict[str, str]:
    """Return the phase of each pod of a worker by its name, "going" for one that is being deleted."""
    pods = [pod for pod in operator.objects("pods") if pod["metadata"]["name"].startswith(f"bench-{index}-")]
    return {
        pod["metadata"]["name"]: "going" if "deletionTimestamp" in pod["metadata"] else pod["status"]["phase"]
        for pod in pods
    }


def test_a_pod_is_as_in_the_manifest_the_pod_of_a_dead_node_is_replaced_and_teardown_deletes_only_ours(
    deployed: Operator,
) -> None:
    script = """
    touch /x 2>/dev/null && echo ROOT-WRITABLE
    for folder in /scratch /tmp /dev/shm /workspace/results; do touch $folder/x && echo writable $folder; done
    echo $HOME $TMPDIR $HF_HUB_OFFLINE $(id -u); test -d "$TMPDIR" && echo has-tmp; cat /proc/1/comm
    """
    output = deployed.kubectl("exec", "-i", "job/bench", "--", "bash", stdin=script.encode())
    assert [line for line in output.splitlines() if line.startswith("writable")] == [
        f"writable {path}" for path in ("/scratch", "/tmp", "/dev/shm", "/workspace/results")
    ]
    assert "/scratch/home /scratch/tmp 1 1000\n" in output
    assert "has-tmp" in output

    cluster = deployed.cluster
    ((lost, _),) = phases(deployed, 0).items()
    node = next(pod["spec"]["nodeName"] for pod in deployed.objects("pods") if pod["metadata"]["name"] == lost)
    cluster.faults.lose_node(node)
    cluster.wait_until(lambda: sorted(phases(deployed, 0).values()) == ["Running", "going"], "the replacement")
    assert phases(deployed, 0)[lost] == "going", "it is listed until its node returns"
    assert "2 of 2 pods are up" in deployed.inv("status")
    (command,) = re.findall(r"`kubectl (taint [^`]+)`", deployed.inv("nodes"))
    assert f" {node} " in command
    cluster.output(*shlex.split(command))
    cluster.wait_until(lambda: lost not in phases(deployed, 0), "the old pod to go")
    cluster.faults.restore_node(node)
    (command,) = re.findall(r"kubectl (taint node \S+ \S+-)", deployed.inv("nodes"))
    cluster.output(*shlex.split(command))
    assert f"{len(NODES)} nodes qualify" in deployed.inv("nodes")

    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "foreign"}, "data": {"a": "b"}}
    deployed.kubectl("apply", "-f", "-", stdin=json.dumps(foreign).encode())
    assert "--yes" in deployed.inv("teardown", code=4)
    assert len(deployed.objects("pods")) == 2
    deployed.inv("teardown", "--yes")
    # The cluster removes the pods of a deleted Job on its own.
    wait_for(lambda: not deployed.objects("pods"), "the removal of all pods", 60.0)
    for key in ("jobs.batch", "services", "secrets", "roles.rbac.authorization.k8s.io"):
        assert deployed.objects(key) == []
    assert [each["metadata"]["name"] for each in deployed.objects("configmaps")] == ["foreign"]
    assert deployed.namespace in [resource["metadata"]["name"] for resource in deployed.cluster.objects("namespaces")]


def test_another_operators_trial_stops_a_command_that_would_end_it(deployed: Operator) -> None:
    host = PodHost(
        name="worker-1",
        index=1,
        pods=PodIndex(
            Kubectl(namespace=deployed.namespace, kubeconfig=str(deployed.cluster.kubeconfig)),
            "app.kubernetes.io/name=bench",
        ),
        workdir="/scratch/qlora-fleet",
        container="bench",
        python=(sys.executable,),
    )
    deployed.settings["fleet"]["pods"] = {"python": sys.executable}
    job = Job(Agent(host), "/scratch/qlora-fleet/runs/their-run/baseline.1", slot=slot_path(host))
    job.start(JobSpec(command=Command(argv=("sleep", "600")), deadline_sec=600.0, grace_sec=1.0))
    for arguments in (("teardown", "--yes"), ("deploy",)):
        deployed.set_cluster(memory="65Mi", size=1)  # which is not the size of their deployment
        output = deployed.inv(*arguments, code=4)
        assert "worker-1 runs baseline.1 of run their-run" in output
        assert "nothing was changed" in output
    assert job.status().state is JobState.RUNNING
    job.cancel(grace_sec=1.0)
    assert "deleted" in deployed.inv("teardown", "--yes")
