"""Each fault of the checks, made on purpose: what is said, and what mends it."""

import json
import shutil
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.records.result import TrialStatus
from remote.image import vm_jobs
from tasks.doctor.checks import cluster, gpu, machine, nodes, oci, registry, runs, settings, vm
from tasks.doctor.result import CheckResult, CheckStatus, Fault
from tasks.errors import UsageError
from tasks.reports.runs import KnownRun
from tests.unit.remote.cluster.test_nodes import NODE
from tests.unit.tasks.doctor.conftest import Ask, GivenCluster, MakeFacts

A_DIGEST = "sha256:" + "ab" * 32
PODS = "fleet: {kind: pods}\nbench: {profile: gpu}\n"


def is_seen(answer: CheckResult, fault: Fault) -> bool:
    """Whether the answer is this fault, with values for its names."""
    start = fault.what.partition("{")[0]
    return answer.mark is fault.mark and answer.found.startswith(start) and "{" not in answer.found + answer.remedy


# This machine


def package(name: str, *requires: str, version: str = "1.0") -> metadata.Distribution:
    return SimpleNamespace(name=name, version=version, requires=list(requires))  # type: ignore[return-value]


def test_packages_that_conflict_are_named() -> None:
    there = [
        package("torch", version="2.1"),
        package("a", "torch>=2.10", "Missing_One; python_version > '3'", "x; extra == 'y'"),
    ]
    assert [*machine.conflicts(there)] == [
        "a 1.0 requires torch>=2.10, and torch 2.1 is installed",
        "a 1.0 requires Missing_One, and it is not installed",
    ]
    assert [*machine.conflicts([package("a", "B-c>=1"), package("b_c")])] == []


def test_of_several_conflicts_the_first_is_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.metadata, "distributions", lambda: [package("a", "b>=2"), package("c", "d")])
    said = ask("machine packages")
    assert is_seen(said, machine.CONFLICT)
    assert said.found.endswith("a 1.0 requires b>=2, and it is not installed (and 1 more)")


@pytest.mark.parametrize(
    ("free", "fault"), [(10**8, machine.DISK_FULL), (2 * 10**9, machine.DISK_SMALL), (10**11, None)]
)
def test_a_disk_without_room_for_results(
    free: int, fault: Fault | None, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    said = ask("machine disk")
    assert said.mark is (CheckStatus.FINE if fault is None else fault.mark)
    assert fault is None or said.remedy == fault.remedy


@pytest.mark.parametrize(("theirs", "words"), [(1000.0, "200 s ahead of"), (1400.0, "200 s behind"), (1250.0, "agree")])
def test_a_clock_that_is_wrong(theirs: float, words: str) -> None:
    said = machine.compared(1200.0, theirs, "the cluster")
    assert words in said.found
    assert said.mark is (CheckStatus.FINE if words == "agree" else CheckStatus.WRONG)


@pytest.mark.parametrize(("missing", "fault"), [("ssh", machine.NO_SSH), ("rsync", machine.NO_RSYNC)])
def test_a_program_that_is_missing(missing: str, fault: Fault, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == missing else f"/bin/{name}")
    assert is_seen(ask("machine programs", "build: {host: vm}"), fault)
    assert ask("machine programs").mark is CheckStatus.UNASKED


# Settings

CONTRADICTING = {
    "two repositories": (
        f"cluster: {{image: 'fra.ocir.io/ns/old@{A_DIGEST}'}}\nregistry: {{image: 'fra.ocir.io/ns/new:1'}}",
        settings.TWO_REPOSITORIES,
    ),
    "not in the image": (PODS + "model: {path: /models/org--B}\nimage: {models: [org/A]}", settings.NOT_IN_IMAGE),
    "tiny on pods": ("fleet: {kind: pods}", settings.TINY),
    "no workers": (PODS + "cluster: {overlay: job-4gpu}", settings.OVERLAY),
}
SLOW = {
    "threads of pods": (PODS + "cluster: {cpu: 2}", settings.THREADS_OF_PODS),
    "shared nodes": (PODS + "cluster: {one_per_node: false}", settings.SHARED_NODE),
    "threads here": ("fleet: {size: 4, local: {threads: 8}}", settings.THREADS_HERE),
    "recipe": ("fleet: {size: 1}\ntrain: {recipe: reference}", settings.SLOW_RECIPE),
}


@pytest.mark.parametrize(("text", "fault"), CONTRADICTING.values(), ids=CONTRADICTING)
def test_settings_that_contradict_each_other(text: str, fault: Fault, facts: MakeFacts) -> None:
    (said,) = settings.contradicting(facts(text).settings)
    assert is_seen(said, fault)


@pytest.mark.parametrize(("text", "fault"), SLOW.values(), ids=SLOW)
def test_settings_that_make_steps_slow(text: str, fault: Fault, facts: MakeFacts) -> None:
    (said,) = settings.slowing(facts(text).settings, cores=8)
    assert is_seen(said, fault)


def test_settings_as_shipped_for_a_cluster_contradict_nothing(ask: Ask) -> None:
    text = PODS + "model: {path: /models/org--A}\nimage: {models: [org/A]}"
    assert ask("settings contradictions", text).mark is CheckStatus.FINE
    assert ask("settings slow", text).mark is CheckStatus.FINE


def test_the_files_that_count_are_named(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INVOKE_FLEET_SIZE", "2")
    assert "read: invoke.yaml, f.yaml, and 1 variable INVOKE_*" in ask("settings files", "fleet: {size: 3}").found


def test_a_password_file_that_others_may_read(ask: Ask, project: Path) -> None:
    path = project / "token"
    path.write_text("secret")
    path.chmod(0o644)
    said = ask("settings secrets", f"registry: {{password_file: {path}}}")
    assert (said.mark, said.remedy) == (CheckStatus.WRONG, f"type: chmod 600 {path}")
    assert "others may read it" in said.found
    for section in (f"image: {{sign_key: {path}}}", f"image: {{sign_password_file: {path}}}"):
        assert ask("settings secrets", section).mark is CheckStatus.WRONG
    path.chmod(0o600)
    assert ask("settings secrets", f"hub: {{token_file: {path}}}").mark is CheckStatus.FINE


# The registry, before anybody is asked

NAMES = {
    "no user": ("registry: {image: 'fra.ocir.io/ns/r:1'}", "registry.user: not set"),
    "another tenancy": ("registry: {image: 'fra.ocir.io/ns/r:1', user: other/me}", "does not begin with the tenancy's"),
    "no region": ("registry: {image: 'frankfurt.ocir.io/ns/r:1', user: ns/me}", "is no region key"),
}


@pytest.mark.parametrize(("text", "words"), NAMES.values(), ids=NAMES)
def test_names_that_no_registry_has(text: str, words: str, ask: Ask) -> None:
    said = ask("registry name", text)
    assert said.mark is CheckStatus.WRONG
    assert words in said.found


def test_without_a_password_file_the_registry_is_not_asked(ask: Ask) -> None:
    said = ask("registry login", "registry: {image: 'fra.ocir.io/ns/r:1', user: ns/me}")
    assert (said.mark, "`inv push` asks for the password" in said.found) == (CheckStatus.UNASKED, True)


# The build VM, and what the registry tells it. The real ones: tests/system/image/test_inv_doctor.py


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("unauthorized", registry.LOGIN),
        ("forbidden", registry.MAY_NOT),
        ("transient", registry.SILENT),
        ("protocol", registry.ODD),
    ],
)
def test_each_answer_of_a_registry(kind: str, fault: Fault, ask: Ask, project: Path) -> None:
    (project / "token").touch(mode=0o600)
    (project / "token").write_text("secret")
    given = "registry: {image: 'fra.ocir.io/ns/r:1', user: ns/me, password_file: token}"
    said = ask("registry login", given, on_vm=vm_jobs.JobFailed(kind, "what it says; and more"))
    assert is_seen(said, fault)
    assert said.found.endswith(": what it says")
    assert said.passes is (kind == "transient")
    assert is_seen(ask("registry login", given, on_vm={"digest": None}), registry.NOT_PUSHED)
    assert ask("registry login", given, on_vm={"digest": A_DIGEST}).mark is CheckStatus.FINE


def test_another_job_on_the_vm_is_named_with_what_ends_it(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vm_jobs, "starter", lambda _: "ann on laptop")
    said = ask("vm slot", on_vm=SimpleNamespace(folder="/home/me/jobs/push-r-1"))
    assert (said.mark, said.remedy) == (CheckStatus.CAREFUL, "wait, or `inv push --cancel`")
    assert said.found.startswith("/home/me/jobs/push-r-1 runs there, of ann on laptop:")
    assert ask("vm slot", on_vm=None).mark is CheckStatus.FINE


def test_an_image_without_models_is_told(ask: Ask) -> None:
    assert is_seen(ask("vm models", on_vm=None), vm.NO_MODELS)


# The cluster


def quota_of(**hard: str) -> dict[str, Any]:
    return {"resourcequotas": [{"metadata": {"name": "q"}, "status": {"hard": hard, "used": {}}}]}


def pod_that_is_ready(status: str) -> dict[str, Any]:
    return {"pods": [{"status": {"conditions": [{"type": "Ready", "status": status}]}}]}


GOING = {"metadata": {"name": "ours", "deletionTimestamp": "now"}}
CLUSTERS: dict[str, tuple[str, GivenCluster, Fault, str]] = {
    "old": ("reachable", GivenCluster(said=("v1.27.3", None)), cluster.OLD, PODS),
    "no right to run": ("rights", GivenCluster(denied=[("create", "pods/exec")]), cluster.MAY_NOT_RUN, PODS),
    "no right to deploy": ("rights", GivenCluster(denied=[("patch", "jobs")]), cluster.MAY_NOT_DEPLOY, PODS),
    "no namespace": ("namespace", GivenCluster(there=None), cluster.NO_NAMESPACE, PODS),
    "going": ("namespace", GivenCluster(there=GOING), cluster.TERMINATING, PODS),
    "no secret": ("pull secret", GivenCluster(), cluster.NO_SECRET, PODS),
    "quota of GPUs": ("quota", GivenCluster(objects=quota_of(**{"requests.nvidia.com/gpu": "2"})), cluster.QUOTA, PODS),
    "quota of limits": ("quota", GivenCluster(objects=quota_of(**{"limits.cpu": "99"})), cluster.QUOTA_LIMITS, PODS),
    "no volume": ("storage", GivenCluster(), cluster.NO_VOLUME, PODS),
    "no driver": ("storage", GivenCluster(), cluster.NO_CSI, PODS + "cluster: {fss: {volume_handle: 'o:1.2.3.4:/x'}}"),
    "no controller": ("controller", GivenCluster(), cluster.NO_CONTROLLER, PODS + "cluster: {overlay: job-4gpu-kueue}"),
    "no DNS": ("DNS", GivenCluster(objects=pod_that_is_ready("False")), cluster.NO_DNS, PODS),
}


@pytest.mark.parametrize(("check", "given", "fault", "text"), CLUSTERS.values(), ids=CLUSTERS)
def test_each_fault_of_a_cluster(check: str, given: GivenCluster, fault: Fault, text: str, ask: Ask) -> None:
    assert is_seen(ask(f"cluster {check}", text, cluster=given), fault)


def test_a_cluster_with_everything(ask: Ask) -> None:
    names = ("ocir-secret", cluster.FSS_DRIVER, "kueue.x-k8s.io")
    given = GivenCluster(names=names, objects={**pod_that_is_ready("True"), **quota_of(pods="9")})
    text = PODS + "cluster: {overlay: job-4gpu-kueue, fss: {volume_handle: 'o:1.2.3.4:/x'}}"
    checks = [check.title for check in cluster.CHECKS if check.name != "kubectl"]  # which starts a process
    assert {title: ask(title, text, cluster=given).mark for title in checks} == dict.fromkeys(checks, CheckStatus.FINE)


def test_a_cluster_that_nobody_means_is_left_alone(ask: Ask) -> None:
    said = ask("cluster reachable")
    assert (said.mark, "fleet.kind is local" in said.found) == (CheckStatus.UNASKED, True)

    missing = ("cluster: {kubeconfig: nowhere}", "cluster")
    assert "not there" in ask("cluster reachable", *missing).found
    assert ask("cluster rights", *missing).found == "see cluster reachable"


@pytest.mark.parametrize(
    ("ours", "skewed"), [("v1.33.9", False), ("v1.35.0", False), ("v1.32.1", True), ("v2.34.0", True)]
)
def test_kubectl_beside_the_server(ours: str, skewed: bool, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json.dumps({"clientVersion": {"gitVersion": ours}}).encode()
    monkeypatch.setattr(cluster, "run_program", lambda *_, **__: SimpleNamespace(stdout=said))
    assert is_seen(ask("cluster kubectl", PODS, cluster=GivenCluster()), cluster.SKEWED) is skewed


# Nodes and pods


def test_findings_of_nodes_are_grouped_by_what_they_are_about(ask: Ask) -> None:
    bad = {**NODE, "spec": {"unschedulable": True, "taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}}
    given = GivenCluster(objects={"nodes": [bad]})
    text = "fleet: {kind: pods, size: 1}\ncluster: {memory: 16Gi}"
    said = {check.name: ask(check.title, text, cluster=given) for check in nodes.CHECKS}
    assert {name: one.mark for name, one in said.items()} == {
        **dict.fromkeys(("enough", "health", "taints"), CheckStatus.WRONG),
        **dict.fromkeys(("GPUs", "room", "versions"), CheckStatus.FINE),
    }
    assert said["health"].remedy == "kubectl uncordon node-3"
    assert said["taints"].remedy == "kubectl taint node node-3 team:NoSchedule-"
    assert "0 of 1 nodes qualify" in said["enough"].found


def test_no_node_of_the_type_is_one_line_and_not_five(ask: Ask) -> None:
    text, given = PODS + "cluster: {instance_type: BM.GPU4.8}", GivenCluster(objects={"nodes": [NODE]})
    marks = [ask(check.title, text, cluster=given).mark for check in nodes.CHECKS]
    assert marks == [CheckStatus.WRONG, *[CheckStatus.UNASKED] * 5]


def test_nothing_deployed_is_no_fault(ask: Ask) -> None:
    said = ask("pods up", PODS, cluster=GivenCluster())
    assert (said.mark, "`inv deploy`" in said.found) == (CheckStatus.UNASKED, True)


# Runs, GPU, tenancy, VM

RUNS: dict[str, tuple[dict[str, int] | None, list[Fault]]] = {
    "all well": ({TrialStatus.SUCCEEDED.value: 4}, []),
    "out of memory": ({TrialStatus.SUCCEEDED.value: 3, TrialStatus.OUT_OF_MEMORY.value: 1}, [runs.OUT_OF_MEMORY]),
    "failed and lost": ({TrialStatus.FAILED.value: 1, TrialStatus.LOST.value: 3}, [runs.FAILED, runs.INTERRUPTED]),
    "stopped halfway": ({TrialStatus.SUCCEEDED.value: 2}, [runs.INTERRUPTED]),
    "damaged": (None, [runs.DAMAGED]),
}


@pytest.mark.parametrize(("ends", "faults"), RUNS.values(), ids=RUNS)
def test_how_the_newest_run_ended(ends: dict[str, int] | None, faults: list[Fault]) -> None:
    said = runs.said_of(KnownRun(run_id="r1", state="damaged: x", planned=4, ends=ends))
    listed = [said] if isinstance(said, CheckResult) else said
    remedies = [one.remedy for one in listed if one.mark is not CheckStatus.FINE]
    assert remedies == [fault.remedy.format(run="r1") for fault in faults]


def test_a_laptop_without_gpu_that_needs_none(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DEVICE_FILE", Path("/nowhere"))
    assert [ask("gpu usable", text).mark for text in ("{}", PODS)] == [CheckStatus.UNASKED] * 2


def test_what_nobody_configured_is_not_asked(ask: Ask) -> None:
    assert {ask(one.title).mark for one in (*vm.CHECKS, *registry.CHECKS, *oci.CHECKS)} == {CheckStatus.UNASKED}


def test_credentials_of_the_tenancy_that_cannot_be_used(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """`access` itself, with Oracle's SDK: the tests of tasks/oci."""

    def refused(_: object) -> None:
        raise UsageError("~/.oci/config: no profile DEFAULT; there are OTHER; set tenancy.profile")

    monkeypatch.setattr(oci.importlib, "import_module", lambda _: SimpleNamespace(access=refused))
    said = ask("tenancy login", "{}", "tenancy")
    assert (said.mark, said.remedy) == (CheckStatus.WRONG, "there are OTHER; set tenancy.profile")
    assert ask("tenancy login").mark is CheckStatus.UNASKED
