"""The tests' own API server compared with recordings of a real one: messages, exit codes, and the order of requests.

The recordings were made with Kubernetes 1.34 (errors with kubectl 1.34, traffic with 1.32); they are in
data/recorded.json. Not compared: openapi documents, describe's layout, timing.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubernetes import Cluster
from tests.support.kubernetes.store.resources import document

RECORDED: dict[str, Any] = document("recorded.json")
IMAGE = "registry.local/busybox:1"
GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
SLEEP = ["sh", "-c", "sleep 100000"]


def pod(name: str, namespace: str = "err", *, container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": IMAGE, "command": SLEEP, **(container or {})}
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    defaults = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "tolerations": tolerations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**defaults, "containers": [main], **spec},
    }


def make_object(kind: str, name: str, namespace: str = "err", **more: Any) -> dict[str, Any]:
    made = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}
    if kind == "Namespace":
        del made["metadata"]["namespace"]
    return made


def job(name: str, command: list[str], namespace: str = "err", **spec: Any) -> dict[str, Any]:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": IMAGE, "command": command}]}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


UNKNOWN = pod("unk", nodeSelektor={"a": "b"})
UNKNOWN["spec"]["containers"][0]["comand"] = ["true"]
BAD_VOLUME = pod("badvol", container={"volumeMounts": [{"name": "nope", "mountPath": "/x"}]})
TWICE = {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "2"}}}
STALE = make_object("ConfigMap", "conf", data={"a": "3"})
STALE["metadata"]["resourceVersion"] = "1"
CRD = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "err"}}
TERMINATING = pod("terminating", "ev", container={"command": ["sh", "-c", "trap '' TERM; sleep 100000"]})
TERMINATING["spec"]["terminationGracePeriodSeconds"] = 3600

FILES: dict[str, dict[str, Any]] = {
    "badq": pod("badq", container={"resources": {"limits": {"memory": "lots"}}}),
    "unk": UNKNOWN,
    "typ": pod("typ", terminationGracePeriodSeconds="soon"),
    "cm": make_object("ConfigMap", "c2", data={"a": "1"}),
    "sec": make_object("Secret", "s2"),
    "ns2": make_object("Namespace", "err2"),
    "cmterm": make_object("ConfigMap", "c", "err-term"),
    "pss": pod("restricted", "ev-restricted"),
    "pcm": pod("pc", priorityClassName="gpu-high"),
    "quota": pod("q", "ev-quota", container=GPU),
    "rcm": pod("rc", runtimeClassName="nvidia"),
    "sam": pod("sa", serviceAccountName="nobody"),  # vocabulary: recorded name
    "crd": CRD,
    "cmns": make_object("ConfigMap", "c", "no-such-namespace"),
    "conf": make_object("ConfigMap", "conf", data={"a": "1"}),
    "confrv": STALE,
    "job2": job("train", ["false"]),
    "podch": pod("running", container={"command": ["sh", "-c", "sleep 5"]}),
    "badres": pod("badres", container=TWICE),
    "badname": pod("bad_name"),
    "badvol": BAD_VOLUME,
    "term": {**TERMINATING, "metadata": {**TERMINATING["metadata"], "labels": {"again": "yes"}}},
    "pssjob": job("warned", ["true"], "ev-restricted"),
}
DENIED = {
    "403-apply-create": {"verb": "create", "resource": "configmaps"},
    "403-apply-get-forbidden": {"verb": "get", "resource": "secrets"},
    "403-apply-server-side": {"verb": "patch", "resource": "configmaps"},
    "403-create-namespace": {"verb": "get", "resource": "namespaces"},
    "403-delete-pod": {"verb": "delete", "resource": "pods"},
    "403-exec": {"verb": "*", "resource": "pods/exec"},
    "403-get-nodes": {"verb": "list", "resource": "nodes"},
    "403-get-pods-other-namespace": {"verb": "list", "resource": "pods", "namespace": "default"},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=4, users=("admin", "dev"), toleration_scale=1000.0) as made:
        yield made


@pytest.fixture(autouse=True)
def _as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """Clear the faults of a test before the next one."""
    yield
    if "scene" in request.fixturenames:
        request.getfixturevalue("cluster").faults.clear()


@pytest.fixture(scope="module")
def scene(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working folder for commands, in a cluster with the objects that existed when the errors were recorded."""
    folder = tmp_path_factory.mktemp("scene")
    (folder / "err").mkdir()
    for name, manifest in FILES.items():
        (folder / "err" / f"{name}.json").write_text(json.dumps(manifest))
    (folder / "hello.txt").write_text("hello\n")
    cluster.faults.fail_pulls("*pull*", "tag-not-found")
    restricted = make_object("Namespace", "ev-restricted")
    restricted["metadata"]["labels"] = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    quota = make_object("ResourceQuota", "gpu-quota", "ev-quota", spec={"hard": {"requests.nvidia.com/gpu": "1"}})
    sidecar = {"name": "sidecar", "image": IMAGE, "command": SLEEP}
    two_containers = pod("two")
    two_containers["spec"]["containers"].append(sidecar)
    cluster.apply(
        *(make_object("Namespace", name) for name in ("err", "ev", "ev-quota", "err-term", "ctl")),
        restricted,
        quota,
        pod("user", "ev-quota", container=GPU),
        pod("running", container={"command": ["sh", "-c", "sleep 100000"]}),
        pod("pending", nodeSelector={"no": "such"}),
        two_containers,
        pod("finished", container={"command": ["true"]}),
        pod(
            "pullfail", container={"image": "registry.local/pull:1"}, nodeSelector={"kubernetes.io/hostname": "node-0"}
        ),
        pod("bare-2", "ctl", container={"name": "bench"}, nodeSelector={"kubernetes.io/hostname": "node-3"}),
        TERMINATING,
        {**TERMINATING, "metadata": {"name": "stays", "namespace": "err-term"}},
        job("train", ["true"]),
        make_object("ConfigMap", "conf", data={"a": "0"}),
    )
    other = json.dumps(make_object("ConfigMap", "conf", data={"a": "2"})).encode()
    argv = ("apply", "--server-side", "--field-manager=other-tool", "--force-conflicts", "-f", "-")
    assert cluster.kubectl(*argv, stdin=other).returncode == 0
    for pod_path in (
        "err/running",
        "err/two",
        "ctl/bare-2",
        "ev/terminating",
        "err-term/stays",
        "ev-quota/user",
    ):
        namespace, _, name = pod_path.partition("/")
        cluster.wait_for_pod(name, namespace)
    cluster.wait_for_pod("finished", "err", phase="Succeeded")
    assert cluster.kubectl("delete", "namespace", "err-term", "--wait=false").returncode == 0
    assert cluster.kubectl("delete", "pod", "-n", "ev", "terminating", "--wait=false").returncode == 0
    cluster.faults.lose_node("node-3", processes_die=False)
    return folder


def plain(text: str) -> str:
    """Remove the parts that differ from run to run: log lines with a time, exec ids."""
    lines = [line for line in text.splitlines() if not re.match(r"[EWI]\d{4} ", line)]
    return re.sub(r"[0-9a-f]{64}", "ID", "\n".join(lines).strip())


@pytest.mark.parametrize("case", sorted(RECORDED["errors"]))
def test_kubectl_fails_with_the_recorded_message(cluster: Cluster, scene: Path, tmp_path: Path, case: str) -> None:
    recorded = RECORDED["errors"][case]
    user = "dev" if case[:3] in ("401", "403") and case in (*DENIED, "401-bad-token") else "admin"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig_text(user, namespace="err"))
    if case in DENIED:
        cluster.faults.forbid(user="dev", **DENIED[case])
    if case.startswith("401"):
        cluster.faults.expire_credentials("dev")
    environment = {**cluster.environment, "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(tmp_path / "cache")}
    argv = ("kubectl", *recorded["argv"])
    completed = subprocess.run(
        argv, cwd=scene, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    stderr, expected = plain(completed.stderr), plain(recorded["stderr"])
    if case.startswith("422-immutable-job"):
        stderr = stderr[: len(expected)]  # the whole template follows, in Go's format
    elif case == "409-server-side-apply-conflict":
        stderr = stderr.splitlines()[0]
    if case in ("401-bad-token", "409-server-side-apply-conflict"):
        # kubectl 1.34 prints this prefix, 1.32 does not.
        stderr, expected = stderr.removeprefix("error: "), expected.removeprefix("error: ")
    assert stderr == expected
    assert completed.returncode == recorded["exit_code"]
    assert completed.stdout == recorded["stdout"]


@pytest.mark.parametrize("ending", sorted(RECORDED["endings"]))
def test_kubectl_ends_as_recorded_when_an_exec_ends_wrongly(cluster: Cluster, scene: Path, ending: str) -> None:
    del scene
    cluster.faults.exec(ending, pod="running")
    argv = ("exec", "-n", "err", "running", "--", "sh", "-c", "echo partial output; sleep 0.3; exit 7")
    completed = cluster.kubectl(*argv)
    last = (completed.stderr.decode().splitlines() or [""])[-1]
    actual = {"exit_code": completed.returncode, "stdout": completed.stdout.decode(), "last_line": last}
    assert actual == RECORDED["endings"][ending]


def requests_of(cluster: Cluster, start: int) -> list[str]:
    """Return the requests since `start` in the format of the recordings."""
    requests = []
    for request in cluster.requests()[start:]:
        method, _, request_target = request.partition(" ")
        path, _, query = request_target.partition("?")
        if not path.startswith("/openapi/") and path != "/version":  # some builds of kubectl request it first
            requests.append(f"{method} {path}" + ("?watch" if "watch=true" in query else ""))
    return requests


@pytest.fixture(scope="module")
def untainted() -> Iterator[Cluster]:
    with Cluster(nodes=4, tainted=False) as made:
        yield made


def test_apply_diff_and_delete_send_the_recorded_requests(untainted: Cluster, tmp_path: Path) -> None:
    base = yaml.safe_dump_all(RECORDED["base"]).encode()
    changed_objects = json.loads(json.dumps(RECORDED["base"]))
    changed_objects[5]["spec"]["template"]["spec"]["containers"][0]["command"] = ["true"]
    changed = yaml.safe_dump_all(changed_objects).encode()

    def run(case: str, *arguments: str, stdin: bytes = base) -> None:
        recorded = RECORDED["commands"][case]
        start = len(untainted.requests())
        completed = subprocess.run(
            ("kubectl", f"--cache-dir={tmp_path / case}", *arguments, "-f", "-"),
            input=stdin,
            env=untainted.environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
        first = (completed.stderr.decode().splitlines() or [""])[0]
        assert completed.stdout.decode() == recorded["stdout"], completed.stderr.decode()
        assert completed.returncode == recorded["exit_code"]
        assert first.replace("STDIN", "base")[:80] == recorded["stderr"].removeprefix("error: ")[:80]
        if case in ("apply-k-create", "apply-k-unchanged", "apply-k-server-side-create"):
            assert requests_of(untainted, start) == recorded["requests"]

    untainted.kubectl("delete", "namespace", "gpu-bench", "--ignore-not-found")
    run("apply-k-dry-run-server-namespace-missing", "apply", "--dry-run=server")
    run("apply-k-create", "apply")
    run("apply-k-unchanged", "apply")
    run("diff-k-unchanged", "diff")
    recorded = RECORDED["commands"]["apply-k-changed-immutable-job"]
    completed = untainted.kubectl("apply", "-f", "-", stdin=changed)
    assert completed.returncode == recorded["exit_code"]
    assert completed.stderr.decode()[:60] == recorded["stderr"][:60]
    run("delete-k", "delete")
    run("apply-k-server-side-create", "apply", "--server-side")
    run("apply-k-server-side-unchanged", "apply", "--server-side")


@pytest.mark.parametrize("case", ["exec-stdin", "cp-to", "cp-from", "delete-pod-nowait"])
def test_a_command_on_a_pod_sends_the_recorded_requests(untainted: Cluster, tmp_path: Path, case: str) -> None:
    recorded = RECORDED["commands"][case]
    existing = untainted.pod("bench-0", "gpu-bench")
    if existing is not None and existing["metadata"].get("deletionTimestamp"):
        untainted.wait_until(lambda: untainted.pod("bench-0", "gpu-bench") is None, "the last test's pod to go")
        existing = None
    if existing is None:
        pods = [obj for obj in RECORDED["base"] if obj["kind"] in ("ConfigMap", "Pod")]
        untainted.apply(make_object("Namespace", "gpu-bench"), *pods)
    untainted.wait_for_pod("bench-0", "gpu-bench")
    (tmp_path / "hello.txt").write_text("hello\n")
    untainted.kubectl("exec", "-n", "gpu-bench", "bench-0", "--", "sh", "-c", "echo hello > /tmp/hello.txt")
    start = len(untainted.requests())
    completed = subprocess.run(
        ("kubectl", f"--cache-dir={tmp_path / 'cache'}", *recorded["argv"]),
        cwd=tmp_path,
        input=b"hello from stdin\n",
        env=untainted.environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == recorded["exit_code"]
    if case != "cp-from":  # its message depends on the version of tar
        assert completed.stdout.decode() == recorded["stdout"]
    assert requests_of(untainted, start) == recorded["requests"]
    if case == "cp-from":
        assert (tmp_path / "hello.back").read_text() == "hello\n"


JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "job-active": ({"command": SLEEP}, {}),
    "job-complete": ({"command": ["true"]}, {}),
    "job-failed-backoff": (
        {"command": ["sh", "-c", "test $JOB_COMPLETION_INDEX = 1 && sleep 100000"]},
        {"backoffLimit": 0},
    ),
    "job-failed-index": (
        {"command": ["sh", "-c", "exit $JOB_COMPLETION_INDEX"]},
        {"backoffLimitPerIndex": 0},
    ),
    "job-failed-deadline": ({"command": SLEEP}, {"activeDeadlineSeconds": 2}),
    "job-suspended": ({"command": ["true"]}, {"suspend": True}),
    "job-some-succeeded": ({"command": ["sh", "-c", "test $JOB_COMPLETION_INDEX = 0 || sleep 100000"]}, {}),
}


@pytest.mark.parametrize("case", sorted(JOBS))
def test_a_job_reaches_the_recorded_status(untainted: Cluster, case: str) -> None:
    container, spec = JOBS[case]
    recorded = {key: value for key, value in RECORDED["jobs"][case].items() if key != "uncountedTerminatedPods"}
    indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, **spec}
    made = job(case, container["command"], "default", **indexed)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    untainted.apply(made)

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if not k.endswith("Time")}
        return [timeless(v) for v in value] if isinstance(value, list) else value

    def status() -> dict[str, Any]:
        (live_job,) = (obj for obj in untainted.objects("jobs.batch") if obj["metadata"]["name"] == case)
        return {k: v for k, v in timeless(live_job.get("status", {})).items() if k != "uncountedTerminatedPods"}

    untainted.wait_until(lambda: status() == recorded, f"{case} to be {recorded}")
    untainted.kubectl("delete", "job", case)


ANTI_AFFINITY = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "spread"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
SCHEDULING: dict[str, dict[str, Any]] = {
    "cpu": {"container": {"resources": {"requests": {"cpu": "1000"}}}},
    "memory": {"container": {"resources": {"requests": {"memory": "10Ti"}}}},
    "ephemeral-storage": {"container": {"resources": {"requests": {"ephemeral-storage": "900Ti"}}}},
    "device-plugin-missing": {"container": {"resources": {"limits": {"amd.com/gpu": "1"}}}},
    "node-selector-mismatch": {"nodeSelector": {"no": "such"}},
    "taint-not-tolerated": {"tolerations": []},
    "no-gpu-left": {"container": GPU},
    "anti-affinity-4": {"affinity": ANTI_AFFINITY},
}


@pytest.fixture(scope="module")
def crowded() -> Iterator[Cluster]:
    """Four nodes whose GPUs are all in use, and on each a pod with anti-affinity."""
    with Cluster(nodes=4) as made:
        for index in range(4):
            other = pod(f"spread-{index}", "default", container=GPU, affinity=ANTI_AFFINITY)
            other["metadata"]["labels"] = {"app": "spread"}
            made.apply(other)
            made.wait_for_pod(f"spread-{index}")
        yield made


@pytest.mark.parametrize("case", sorted(SCHEDULING))
def test_an_unschedulable_pod_has_the_recorded_message(crowded: Cluster, case: str) -> None:
    made = pod(case, "default", **SCHEDULING[case])
    made["metadata"]["labels"] = {"app": "spread" if "affinity" in case and "anti" in case else "other"}
    crowded.apply(made)

    def messages() -> list[str]:
        events = [event for event in crowded.objects("events") if event["involvedObject"]["name"] == case]
        return [event["message"] for event in events if event["reason"] == "FailedScheduling"]

    assert crowded.wait_until(messages, "a FailedScheduling event") == [RECORDED["scheduling"][case]]


PYTHON_CLIENT = """
import sys
from kubernetes import client, config, stream, watch
config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
print("running" in {pod.metadata.name for pod in core.list_namespaced_pod("err").items})
print(sorted(node.metadata.name for node in core.list_node().items))
seen = watch.Watch().stream(core.list_namespaced_pod, "err", timeout_seconds=1)
print("running" in [event["object"].metadata.name for event in seen])
options = {"command": ["sh", "-c", "echo out; echo err >&2; exit 7"], "stderr": True, "stdout": True}
completed = stream.stream(core.connect_get_namespaced_pod_exec, "running", "err", _preload_content=False, **options)
completed.run_forever(timeout=60)
print([completed.read_stdout(), completed.read_stderr(), completed.returncode])
"""


def test_the_python_client_lists_watches_and_runs_commands(cluster: Cluster, scene: Path) -> None:
    """The client runs in its own process, because it leaves its sockets to the garbage collector."""
    del scene
    argv = (sys.executable, "-c", PYTHON_CLIENT, str(cluster.kubeconfig))
    completed = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    nodes = [f"node-{index}" for index in range(4)]
    assert completed.stdout.splitlines() == ["True", str(nodes), "True", str(["out\n", "err\n", 7])], completed.stderr
