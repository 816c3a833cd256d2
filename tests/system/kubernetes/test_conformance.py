"""The tests' own API server against what a real one was recorded to say: words, exit codes, and the order of requests.

The recordings were made with Kubernetes 1.34 (errors with kubectl 1.34, traffic with 1.32); data/recorded.json holds
what is compared. Not compared: openapi documents, describe's layout, timing.
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
    tolerate = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    defaults = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "tolerations": tolerate}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**defaults, "containers": [main], **spec},
    }


def thing(kind: str, name: str, namespace: str = "err", **more: Any) -> dict[str, Any]:
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
STALE = thing("ConfigMap", "conf", data={"a": "3"})
STALE["metadata"]["resourceVersion"] = "1"
CRD = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "err"}}
TERMINATING = pod("terminating", "ev", container={"command": ["sh", "-c", "trap '' TERM; sleep 100000"]})
TERMINATING["spec"]["terminationGracePeriodSeconds"] = 3600

FILES: dict[str, dict[str, Any]] = {
    "badq": pod("badq", container={"resources": {"limits": {"memory": "lots"}}}),
    "unk": UNKNOWN,
    "typ": pod("typ", terminationGracePeriodSeconds="soon"),
    "cm": thing("ConfigMap", "c2", data={"a": "1"}),
    "sec": thing("Secret", "s2"),
    "ns2": thing("Namespace", "err2"),
    "cmterm": thing("ConfigMap", "c", "err-term"),
    "pss": pod("restricted", "ev-restricted"),
    "pcm": pod("pc", priorityClassName="gpu-high"),
    "quota": pod("q", "ev-quota", container=GPU),
    "rcm": pod("rc", runtimeClassName="nvidia"),
    "sam": pod("sa", serviceAccountName="nobody"),
    "crd": CRD,
    "cmns": thing("ConfigMap", "c", "no-such-namespace"),
    "conf": thing("ConfigMap", "conf", data={"a": "1"}),
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
    """What one test arms does not strike the next."""
    yield
    if "scene" in request.fixturenames:
        request.getfixturevalue("cluster").faults.clear()


@pytest.fixture(scope="module")
def scene(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder to type commands in, in a cluster where everything is as it was when the errors were recorded."""
    folder = tmp_path_factory.mktemp("scene")
    (folder / "err").mkdir()
    for name, manifest in FILES.items():
        (folder / "err" / f"{name}.json").write_text(json.dumps(manifest))
    (folder / "hello.txt").write_text("hello\n")
    cluster.faults.fail_pulls("*pull*", "tag-not-found")
    restricted = thing("Namespace", "ev-restricted")
    restricted["metadata"]["labels"] = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    quota = thing("ResourceQuota", "gpu-quota", "ev-quota", spec={"hard": {"requests.nvidia.com/gpu": "1"}})
    sidecar = {"name": "sidecar", "image": IMAGE, "command": SLEEP}
    two = pod("two")
    two["spec"]["containers"].append(sidecar)
    cluster.apply(
        *(thing("Namespace", name) for name in ("err", "ev", "ev-quota", "err-term", "ctl")),
        restricted,
        quota,
        pod("user", "ev-quota", container=GPU),
        pod("running", container={"command": ["sh", "-c", "sleep 100000"]}),
        pod("pending", nodeSelector={"no": "such"}),
        two,
        pod("finished", container={"command": ["true"]}),
        pod(
            "pullfail", container={"image": "registry.local/pull:1"}, nodeSelector={"kubernetes.io/hostname": "node-0"}
        ),
        pod("bare-2", "ctl", container={"name": "bench"}, nodeSelector={"kubernetes.io/hostname": "node-3"}),
        TERMINATING,
        {**TERMINATING, "metadata": {"name": "stays", "namespace": "err-term"}},
        job("train", ["true"]),
        thing("ConfigMap", "conf", data={"a": "0"}),
    )
    other = json.dumps(thing("ConfigMap", "conf", data={"a": "2"})).encode()
    words = ("apply", "--server-side", "--field-manager=other-tool", "--force-conflicts", "-f", "-")
    assert cluster.kubectl(*words, stdin=other).returncode == 0
    for where in ("err/running", "err/two", "ctl/bare-2", "ev/terminating", "err-term/stays", "ev-quota/user"):
        namespace, _, name = where.partition("/")
        cluster.wait_for_pod(name, namespace)
    cluster.wait_for_pod("finished", "err", phase="Succeeded")
    assert cluster.kubectl("delete", "namespace", "err-term", "--wait=false").returncode == 0
    assert cluster.kubectl("delete", "pod", "-n", "ev", "terminating", "--wait=false").returncode == 0
    cluster.faults.lose_node("node-3", processes_die=False)
    return folder


def plain(text: str) -> str:
    """Without what differs from one run to the next: log lines with a time, exec ids."""
    lines = [line for line in text.splitlines() if not re.match(r"[EWI]\d{4} ", line)]
    return re.sub(r"[0-9a-f]{64}", "ID", "\n".join(lines).strip())


@pytest.mark.parametrize("case", sorted(RECORDED["errors"]))
def test_kubectl_is_told_no_in_the_recorded_words(cluster: Cluster, scene: Path, tmp_path: Path, case: str) -> None:
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
    done = subprocess.run(argv, cwd=scene, env=environment, capture_output=True, text=True, timeout=120, check=False)
    said, expected = plain(done.stderr), plain(recorded["stderr"])
    if case.startswith("422-immutable-job"):
        said = said[: len(expected)]  # the whole template follows, in Go's own words
    elif case == "409-server-side-apply-conflict":
        said = said.splitlines()[0]
    if case in ("401-bad-token", "409-server-side-apply-conflict"):
        said, expected = said.removeprefix("error: "), expected.removeprefix("error: ")  # 1.34 says it, 1.32 does not
    assert said == expected
    assert done.returncode == recorded["exit_code"]
    assert done.stdout == recorded["stdout"]


@pytest.mark.parametrize("how", sorted(RECORDED["endings"]))
def test_kubectl_ends_as_recorded_when_an_exec_ends_wrongly(cluster: Cluster, scene: Path, how: str) -> None:
    del scene
    cluster.faults.exec(how, pod="running")
    words = ("exec", "-n", "err", "running", "--", "sh", "-c", "echo partial output; sleep 0.3; exit 7")
    done = cluster.kubectl(*words)
    last = (done.stderr.decode().splitlines() or [""])[-1]
    found = {"exit_code": done.returncode, "stdout": done.stdout.decode(), "last_line": last}
    assert found == RECORDED["endings"][how]


def requests_of(cluster: Cluster, start: int) -> list[str]:
    """Requests since `start`, as the recordings keep them."""
    found = []
    for request in cluster.requests()[start:]:
        method, _, where = request.partition(" ")
        path, _, query = where.partition("?")
        if not path.startswith("/openapi/") and path != "/version":  # some builds of kubectl ask for it first
            found.append(f"{method} {path}" + ("?watch" if "watch=true" in query else ""))
    return found


@pytest.fixture(scope="module")
def untainted() -> Iterator[Cluster]:
    with Cluster(nodes=4, tainted=False) as made:
        yield made


def test_apply_diff_and_delete_go_the_recorded_way_request_by_request(untainted: Cluster, tmp_path: Path) -> None:
    base = yaml.safe_dump_all(RECORDED["base"]).encode()
    changed_objects = json.loads(json.dumps(RECORDED["base"]))
    changed_objects[5]["spec"]["template"]["spec"]["containers"][0]["command"] = ["true"]
    changed = yaml.safe_dump_all(changed_objects).encode()

    def run(case: str, *words: str, stdin: bytes = base) -> None:
        recorded = RECORDED["commands"][case]
        start = len(untainted.requests())
        done = subprocess.run(
            ("kubectl", f"--cache-dir={tmp_path / case}", *words, "-f", "-"),
            input=stdin,
            env=untainted.environment,
            capture_output=True,
            timeout=120,
            check=False,
        )
        first = (done.stderr.decode().splitlines() or [""])[0]
        assert done.stdout.decode() == recorded["stdout"], done.stderr.decode()
        assert done.returncode == recorded["exit_code"]
        assert first.replace("STDIN", "base")[:80] == recorded["stderr"].removeprefix("error: ")[:80]
        if case in ("apply-k-create", "apply-k-unchanged", "apply-k-server-side-create"):
            assert requests_of(untainted, start) == recorded["requests"]

    untainted.kubectl("delete", "namespace", "gpu-bench", "--ignore-not-found")
    run("apply-k-dry-run-server-namespace-missing", "apply", "--dry-run=server")
    run("apply-k-create", "apply")
    run("apply-k-unchanged", "apply")
    run("diff-k-unchanged", "diff")
    recorded = RECORDED["commands"]["apply-k-changed-immutable-job"]
    done = untainted.kubectl("apply", "-f", "-", stdin=changed)
    assert done.returncode == recorded["exit_code"]
    assert done.stderr.decode()[:60] == recorded["stderr"][:60]
    run("delete-k", "delete")
    run("apply-k-server-side-create", "apply", "--server-side")
    run("apply-k-server-side-unchanged", "apply", "--server-side")


@pytest.mark.parametrize("case", ["exec-stdin", "cp-to", "cp-from", "delete-pod-nowait"])
def test_a_command_on_a_pod_asks_for_what_was_recorded(untainted: Cluster, tmp_path: Path, case: str) -> None:
    recorded = RECORDED["commands"][case]
    found = untainted.pod("bench-0", "gpu-bench")
    if found is not None and found["metadata"].get("deletionTimestamp"):
        untainted.wait_until(lambda: untainted.pod("bench-0", "gpu-bench") is None, "the last test's pod to go")
        found = None
    if found is None:
        pods = [obj for obj in RECORDED["base"] if obj["kind"] in ("ConfigMap", "Pod")]
        untainted.apply(thing("Namespace", "gpu-bench"), *pods)
    untainted.wait_for_pod("bench-0", "gpu-bench")
    (tmp_path / "hello.txt").write_text("hello\n")
    untainted.kubectl("exec", "-n", "gpu-bench", "bench-0", "--", "sh", "-c", "echo hello > /tmp/hello.txt")
    start = len(untainted.requests())
    done = subprocess.run(
        ("kubectl", f"--cache-dir={tmp_path / 'cache'}", *recorded["argv"]),
        cwd=tmp_path,
        input=b"hello from stdin\n",
        env=untainted.environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == recorded["exit_code"]
    assert case == "cp-from" or done.stdout.decode() == recorded["stdout"]  # each tar says it in its own words
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
def test_a_job_comes_to_the_recorded_status(untainted: Cluster, case: str) -> None:
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
        (found,) = (obj for obj in untainted.objects("jobs.batch") if obj["metadata"]["name"] == case)
        return {k: v for k, v in timeless(found.get("status", {})).items() if k != "uncountedTerminatedPods"}

    untainted.wait_until(lambda: status() == recorded, f"{case} to be {recorded}")
    untainted.kubectl("delete", "job", case)


ALONE = {
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
    "anti-affinity-4": {"affinity": ALONE},
}


@pytest.fixture(scope="module")
def crowded() -> Iterator[Cluster]:
    """Four nodes whose GPUs are all taken, and on each a pod that wants to be alone."""
    with Cluster(nodes=4) as made:
        for index in range(4):
            other = pod(f"spread-{index}", "default", container=GPU, affinity=ALONE)
            other["metadata"]["labels"] = {"app": "spread"}
            made.apply(other)
            made.wait_for_pod(f"spread-{index}")
        yield made


@pytest.mark.parametrize("case", sorted(SCHEDULING))
def test_a_pod_that_finds_no_node_is_told_why_in_the_recorded_words(crowded: Cluster, case: str) -> None:
    made = pod(case, "default", **SCHEDULING[case])
    made["metadata"]["labels"] = {"app": "spread" if "affinity" in case and "anti" in case else "other"}
    crowded.apply(made)

    def told() -> list[str]:
        events = [event for event in crowded.objects("events") if event["involvedObject"]["name"] == case]
        return [event["message"] for event in events if event["reason"] == "FailedScheduling"]

    assert crowded.wait_until(told, "a FailedScheduling event") == [RECORDED["scheduling"][case]]


PYTHON_CLIENT = """
import sys
from kubernetes import client, config, stream, watch
config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
print("running" in {found.metadata.name for found in core.list_namespaced_pod("err").items})
print(sorted(node.metadata.name for node in core.list_node().items))
seen = watch.Watch().stream(core.list_namespaced_pod, "err", timeout_seconds=1)
print("running" in [event["object"].metadata.name for event in seen])
how = {"command": ["sh", "-c", "echo out; echo err >&2; exit 7"], "stderr": True, "stdout": True}
done = stream.stream(core.connect_get_namespaced_pod_exec, "running", "err", _preload_content=False, **how)
done.run_forever(timeout=60)
print([done.read_stdout(), done.read_stderr(), done.returncode])
"""


def test_the_python_client_lists_watches_and_runs_commands(cluster: Cluster, scene: Path) -> None:
    """In a process of its own, since the client leaves its sockets to the garbage collector."""
    del scene
    argv = (sys.executable, "-c", PYTHON_CLIENT, str(cluster.kubeconfig))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    nodes = [f"node-{index}" for index in range(4)]
    assert done.stdout.splitlines() == ["True", str(nodes), "True", str(["out\n", "err\n", 7])], done.stderr
