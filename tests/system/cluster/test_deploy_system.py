"""`inv nodes`, `deploy`, `status`, `shell`, `logs`, `teardown` with real kubectl, on any cluster."""

import base64
import datetime
import json
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.run import PlannedTrial, RunRecord
from remote.cluster.kubectl import Kubectl
from remote.fleet.ledger import Ledger
from remote.hosts.command import Command
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec, JobState, slot_of
from remote.pods.host import PodHost
from remote.pods.pod_index import Pods
from tests.support.kubernetes import Cluster
from tests.support.kubernetes.real_cluster import GivenCluster, gpu_nodes
from tests.system.cluster.conftest import DIGEST, PASSWORD, Operator


def test_a_deployment_comes_up_and_the_same_again_only_reads(operator: Operator) -> None:
    said = operator.inv("deploy", stdin=f"{operator.password}\n")
    assert "2 of 2 pods are up" in said
    pods = operator.objects("pods")
    assert {pod["spec"]["nodeName"] for pod in pods} <= set(gpu_nodes(operator.cluster))
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2, "one per node"
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {operator.image}

    assert operator.changes("deploy") == []
    assert [pod["metadata"]["uid"] for pod in operator.objects("pods")] == [pod["metadata"]["uid"] for pod in pods]
    if isinstance(operator.cluster, Cluster):
        requests = operator.requests_of("deploy")
        assert {request.split()[0] for request in requests} == {"GET"}
        assert len(requests) <= 16, requests


def test_every_task_says_which_cluster_it_talks_to_and_looking_changes_nothing(deployed: Operator) -> None:
    line = f"cluster: {deployed.cluster.context_words}, "
    for words in (("nodes",), ("status",), ("logs",), ("deploy", "--dry-run"), ("teardown", "--dry-run")):
        assert f"{line}namespace {deployed.namespace}" in deployed.inv(*words)
    both, one = deployed.inv("logs"), deployed.inv("logs", "--pod", "1", "--tail", "5")
    assert "bench-0 (" in both
    assert "bench-1 (" in both
    assert "bench-0 (" not in one
    assert "bench-1 (" in one
    assert "logs: --tail: expected a number of lines, found 'x'" in deployed.inv("logs", "--tail", "x", code=2)
    assert "there is no pod '9'; choose bench-" in deployed.inv("logs", "--pod", "9", code=2)
    assert "exit 1" in deployed.inv("logs", "--pod", "0", "--previous", code=1)
    assert deployed.changes("doctor", "--only", "cluster,pods") == []
    said = deployed.inv("doctor", "--only", "cluster,pods")
    assert "2 of 2 pods are up" in said
    assert "may run trials and deploy" in said
    assert "pull secret ocir-secret" in said


def test_before_anything_is_deployed_a_dry_run_prints_the_plan_and_every_task_says_what_to_type(
    operator: Operator,
) -> None:
    assert operator.changes("deploy", "--dry-run") == []
    assert "create     job/bench" in operator.inv("deploy", "--dry-run")
    assert operator.objects("jobs.batch") == []
    assert f"{len(gpu_nodes(operator.cluster))} nodes qualify, 2 are needed" in operator.inv("nodes")
    assert "`inv deploy`" in operator.inv("status", code=1)
    assert "`inv deploy`" in operator.inv("shell", code=2)
    assert "`inv deploy`" in operator.inv("logs", code=2)
    assert "nothing to do" in operator.inv("teardown", "--yes")


def test_what_was_changed_by_hand_is_shown_and_put_right(deployed: Operator) -> None:
    def service() -> Any:
        (found,) = (object for object in deployed.objects("services") if object["metadata"]["name"] == "bench")
        return found["spec"]

    def patch(spec: str) -> None:
        deployed.kubectl("patch", "service", "bench", "--type=merge", f'--patch={{"spec":{spec}}}')

    before = {job["metadata"]["uid"] for job in deployed.objects("jobs.batch")}
    patch('{"publishNotReadyAddresses":false}')
    deployed.set(shm="17Mi")
    said = deployed.inv("deploy", "--dry-run", "--force-conflicts")
    assert "change     service/bench  (spec.publishNotReadyAddresses)" in said
    assert "replace    job/bench  (spec.template.spec.volumes[3].emptyDir.sizeLimit)" in said
    assert "job/bench  spec.template.spec.volumes[3].emptyDir.sizeLimit: 16Mi -> 17Mi\n" in said
    assert "+  publishNotReadyAddresses: true" in said

    # false is what an absent field says, so the API drops it, and nobody owns it: it is put back unasked.
    deployed.set(shm="16Mi")
    assert "change     service/bench  (spec.publishNotReadyAddresses)" in deployed.inv("deploy")
    assert service()["publishNotReadyAddresses"] is True

    # kubectl patch owns that field now; taking it is asked for by name.
    patch('{"selector":{"app.kubernetes.io/name":"else"}}')
    refused = deployed.inv("deploy", code=4)
    assert "conflict" in refused
    assert "--force-conflicts" in refused
    deployed.inv("deploy", "--force-conflicts")
    assert service()["selector"]["app.kubernetes.io/name"] == "bench"
    assert {job["metadata"]["uid"] for job in deployed.objects("jobs.batch")} == before


def test_a_changed_setting_makes_the_pods_new_and_another_overlay_takes_them_away(deployed: Operator) -> None:
    before = {pod["metadata"]["uid"] for pod in deployed.objects("pods")}
    deployed.set(memory="65Mi", size=1)
    said = deployed.inv("deploy")
    assert "replace    job/bench" in said
    assert "1 of 1 pods are up" in said
    (pod,) = deployed.objects("pods")
    assert pod["metadata"]["uid"] not in before
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "65Mi"

    deployed.set(overlay="interactive")
    said = deployed.inv("deploy")
    assert "delete     job/bench" in said
    assert [job["metadata"]["name"] for job in deployed.objects("jobs.batch")] == ["interactive"]
    assert "fleet" not in deployed.inv("shell", stdin="hostname\n").splitlines()[-1]


def test_the_password_is_in_the_secret_and_nowhere_else(operator: Operator, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    spy = bin_folder / "kubectl"
    spy.write_text(f'#!/bin/sh\ncat /proc/$$/cmdline /proc/$$/environ >> {seen}\nexec {shutil.which("kubectl")} "$@"\n')
    spy.chmod(spy.stat().st_mode | stat.S_IXUSR)
    operator.path = f"{bin_folder}:{operator.path}"
    said = operator.inv("deploy", stdin=f"{operator.password}\n")

    (secret,) = (object for object in operator.objects("secrets") if object["metadata"]["name"] == "ocir-secret")
    config = secret["data"].pop(".dockerconfigjson")
    password, registry = operator.password, operator.image.split("/", 1)[0]
    login = json.loads(base64.b64decode(config))["auths"][registry]
    assert (login["username"], login["password"]) == (operator.registry_user, password)
    forms = [password, config, login["auth"], json.dumps(password)[1:-1]]
    files = [path.read_text(errors="replace") for path in operator.project.rglob("*") if path.is_file()]
    requests = operator.cluster.requests() if isinstance(operator.cluster, Cluster) else []
    everything = [said, seen.read_text(errors="replace"), json.dumps(secret), *files, *requests]
    assert "kubectl\0" in everything[1], "the spy saw kubectl"
    assert [form for form in forms for text in everything if form in text] == []
    assert "last-applied" not in json.dumps(secret)


def test_a_secret_that_the_server_refuses_is_not_printed(operator: Operator) -> None:
    operator.cluster.faults.answer(path="*/secrets/*", nth=2, times=9, status=500, message=f"cannot store {PASSWORD}")
    said = operator.inv("deploy", stdin=f"{operator.password}\n", code=1)
    assert PASSWORD not in said
    assert "***" in said


def test_an_existing_secret_is_left_until_it_is_renewed(deployed: Operator) -> None:
    deployed.set(size=1)
    deployed.inv("deploy")  # nothing on standard input, and nothing is asked
    # A word of kubectl's own command line, which is no reason to refuse it.
    deployed.inv("deploy", "--renew-secret", stdin="fleet\n")
    (secret,) = (object for object in deployed.objects("secrets") if object["metadata"]["name"] == "ocir-secret")
    assert b'"fleet"' in base64.b64decode(secret["data"][".dockerconfigjson"])


def test_a_namespace_that_was_there_keeps_its_labels(operator: Operator) -> None:
    operator.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}})
    said = operator.inv("deploy", stdin=f"{operator.password}\n")
    assert f"leave      namespace/{operator.namespace}" in said
    (found,) = (n for n in operator.cluster.objects("namespaces") if n["metadata"]["name"] == operator.namespace)
    assert "pod-security.kubernetes.io/enforce" not in found["metadata"]["labels"]
    assert operator.changes("deploy") == []


def test_the_pushed_image_is_taken_from_its_file(operator: Operator) -> None:
    del operator.settings["cluster"]["image"]
    operator.inv("deploy", code=2)
    operator.results.mkdir()
    pushed = {"repository": "fra.ocir.io/ns/pushed", "digest": DIGEST, "size_bytes": 1, "compressed_bytes": 1}
    (operator.results / "image.json").write_text(json.dumps(pushed))
    assert f"image: fra.ocir.io/ns/pushed@{DIGEST}" in operator.inv("deploy", "--dry-run")


def test_a_shell_runs_in_the_pod_that_was_asked_for_which_is_what_the_manifest_promises(deployed: Operator) -> None:
    said = deployed.inv("shell", "--pod", "1", stdin="echo on $HOSTNAME as $(id -u); exit 7\n", code=7)
    assert "on bench-1 as 1000" in said
    assert "there is no pod 'nine'; choose bench-" in deployed.inv("shell", "--pod", "nine", code=2)
    script = """
    touch /x 2>/dev/null && echo ROOT-WRITABLE
    for place in /scratch /tmp /dev/shm /workspace/results; do touch $place/x && echo writable $place; done
    echo $HOME $TMPDIR $HF_HUB_OFFLINE; test -d "$TMPDIR" && echo has-tmp; cat /proc/1/comm
    """
    said = deployed.inv("shell", "--pod", "0", stdin=script)
    assert [line for line in said.splitlines() if line.startswith("writable")] == [
        f"writable {place}" for place in ("/scratch", "/tmp", "/dev/shm", "/workspace/results")
    ]
    assert "/scratch/home /scratch/tmp 1" in said
    assert "has-tmp" in said


def test_a_pod_that_is_lost_is_replaced_and_status_says_so(deployed: Operator) -> None:
    lost = next(pod["metadata"]["name"] for pod in deployed.objects("pods") if "bench-0" in pod["metadata"]["name"])
    deployed.kubectl("delete", "pod", lost)

    def replaced() -> bool:
        said = deployed.inv("status")
        return "2 of 2 pods are up" in said and lost not in said

    deployed.cluster.wait_until(replaced, "a replacement")


def test_teardown_takes_away_what_was_made_and_nothing_else(deployed: Operator) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "somebody-elses"}, "data": {"a": "b"}}
    deployed.kubectl("apply", "-f", "-", stdin=json.dumps(foreign).encode())
    asked = deployed.inv("teardown", code=4)
    assert "--yes" in asked
    assert len(deployed.objects("pods")) == 2
    deployed.inv("teardown", "--yes")
    left: dict[str, list[str]] = {
        key: [object["metadata"]["name"] for object in deployed.objects(key)]
        for key in ("pods", "jobs.batch", "services", "secrets", "configmaps", "roles.rbac.authorization.k8s.io")
    }
    # The cluster's own, such as kube-root-ca.crt, are others' too.
    others = left.pop("configmaps")
    assert "somebody-elses" in others
    assert [name for name in others if name.startswith("bench-")] == []
    assert {key: names for key, names in left.items() if names} == {}
    assert deployed.namespace in [object["metadata"]["name"] for object in deployed.cluster.objects("namespaces")]


def write_run(operator: Operator, make_trial: Any) -> str:
    """A run that was planned over these pods and never collected."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    cluster, folder = operator.cluster, operator.results / "run-1"
    folder.mkdir(parents=True)
    RunRecord(
        run_id="run-1",
        created_at=now,
        suite="test",
        profile="tiny",
        spread="shard",
        fleet_kind="pods",
        workers=["worker-0"],
        planned=[PlannedTrial(trial_id="small", trial=make_trial(), worker="worker-0")],
        settings={},
        provenance={"cluster": {"context": cluster.context, "server": cluster.server, "namespace": operator.namespace}},
    ).write(folder)
    Ledger.create(folder / LEDGER_FILE, ["small"])
    return "run run-1: 1 of 1 trials have not ended; `inv bench --resume=run-1` resumes it"


@pytest.mark.parametrize("words", [("teardown", "--yes"), ("deploy",)])
def test_results_that_were_not_collected_stop_what_would_lose_them(
    words: tuple[str, ...], deployed: Operator, make_trial: Any
) -> None:
    reason = write_run(deployed, make_trial)
    deployed.set(size=1)
    before = [pod["metadata"]["uid"] for pod in deployed.objects("pods")]
    foreseen = deployed.inv(words[0], "--dry-run")
    assert f"job/bench would be deleted with results in its pods: {reason}" in foreseen
    refused = deployed.inv(*words, code=4)
    assert reason in refused
    assert "nothing was changed" in refused
    assert [pod["metadata"]["uid"] for pod in deployed.objects("pods")] == before
    assert f"discarded: {reason}" in deployed.inv(*words, "--discard-results")


def test_another_operators_trial_stops_what_would_end_it(deployed: Operator) -> None:
    if isinstance(deployed.cluster, GivenCluster):
        pytest.skip("a job in a pod needs this machine's Python there, and --kubeconfig names another cluster")
    host = PodHost(
        name="worker-1",
        index=1,
        pods=Pods(
            Kubectl(namespace=deployed.namespace, kubeconfig=str(deployed.cluster.kubeconfig)),
            "app.kubernetes.io/name=bench",
        ),
        workdir="/scratch/qlora-fleet",
        container="bench",
        python=(sys.executable,),
    )
    deployed.settings["fleet"]["pods"] = {"python": sys.executable}
    job = Job(Agent(host), "/scratch/qlora-fleet/runs/their-run/baseline.1", slot=slot_of(host))
    job.start(JobSpec(command=Command(argv=("sleep", "600")), deadline_sec=600.0, grace_sec=1.0))
    for words in (("teardown", "--yes"), ("deploy",)):
        deployed.set(memory="65Mi")
        said = deployed.inv(*words, code=4)
        assert "worker-1 runs baseline.1 of run their-run" in said
        assert "nothing was changed" in said
    assert job.status().state is JobState.RUNNING
    job.cancel(grace_sec=1.0)
    assert "deleted" in deployed.inv("teardown", "--yes")
