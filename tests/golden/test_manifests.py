"""Golden tests of the manifests that `inv deploy` applies, and of their validity in Kubernetes.

The golden file of an overlay has its differences from the overlay `pods` with a shared volume, whose file is complete.
After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden

The schemas are those of Kubernetes (kubernetes-validate, strict: unknown fields fail). Pod Security is checked by the
rules of the tests' cluster, which follow recorded refusals; they lack host ports, SELinux, AppArmor and sysctls. JobSet
has no schema here: its Job is checked as a Job.
"""

import copy
import dataclasses
import functools
import operator
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import schema_contents

from remote.cluster.manifests import Image, ManifestValues, render
from remote.cluster.plan import plan
from remote.cluster.settings import GPU_RESOURCE, ClusterSection
from remote.providers import GENERIC, PROVIDERS
from tasks.clients.target_cluster import place_pods
from tests.support.documents import blocks
from tests.support.paths import ROOT
from tests.support.pod_security import violations

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

GOLDEN = Path(__file__).with_name("manifests")
OCI = PROVIDERS["oci"]
BASIC = ManifestValues(
    namespace="team-a",
    overlay="pods",
    image=Image.parse("fra.ocir.io/mytenancy/qlora-fleet@sha256:" + "ab" * 32),
    preemptible_label=None,
    pull_secret="ocir-secret",
    volume_source=OCI.volume_source("ocid1.filesystem.oc1.eu_frankfurt_1.aaaaexample:10.0.20.5:/export"),
    extra_settings={
        "size": 4,
        "least_up": 3,
        "gpus_per_pod": "1",
        "instance_type": "VM.GPU.A10.1",
        "cpu": "4",
        "memory": "24Gi",
        "shm": "4Gi",
        "scratch": "10Gi",
        "queue": "gpus",
        "model": "/models/mistralai--Mistral-7B-Instruct-v0.3",
        "data": "/shared-data/chats.jsonl",
        "profile": "gpu",
        "job_spec": '{"run_id": "20261122-101500-train-0a1b2c"}',
        "run_id": "20261122-101500-train-0a1b2c",
    },
)


def with_changes(**changes: Any) -> ManifestValues:
    extra_settings = {name: changes.pop(name, value) for name, value in BASIC.extra_settings.items()}
    return dataclasses.replace(BASIC, **{"extra_settings": extra_settings, **changes})


VARIANTS = {
    "pods": BASIC,
    "interactive": with_changes(overlay="interactive"),
    "job-1gpu": with_changes(overlay="job-1gpu", size=1),
    "job-4gpu": with_changes(overlay="job-4gpu"),
    "job-4gpu-jobset": with_changes(overlay="job-4gpu-jobset"),
    "job-4gpu-kueue": with_changes(overlay="job-4gpu-kueue"),
    "any-node-on-nfs": with_changes(
        volume_source=GENERIC.volume_source("10.0.0.5:/export"), components=("any-node",), instance_type="any"
    ),
    "pods-without-fss": with_changes(volume_source=None),
    "pods-public-image-on-preemptible-nodes": with_changes(
        pull_secret=None, preemptible_label=OCI.preemptible_label, size=8, least_up=7
    ),
    "pods-two-gpus-each-several-per-node": with_changes(
        extra_settings={**BASIC.extra_settings, "gpus_per_pod": "2", "gpu": "NVIDIA-A100-SXM4-40GB", "cpu_limit": "8"},
        components=("several-per-node", "gpu-product", "cpu-limit"),
    ),
    "job-4gpu-jobset-with-everything": with_changes(
        overlay="job-4gpu-jobset",
        volume_source=None,
        pull_secret=None,
        preemptible_label=OCI.preemptible_label,
    ),
}
FLEET = [name for name in VARIANTS if not name.startswith("any-node")]
VERSIONS = ("1.29", "1.34", "1.37")


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Cache the library's schemas: it parses two files of a megabyte per object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", functools.cache(schema_contents))
        yield


@functools.cache
def rendered(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(render(VARIANTS[name], ROOT / "manifests"))


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [copy.deepcopy(resource) for resource in rendered(name) if resource["kind"] == kind]


def job_spec(name: str) -> dict[str, Any]:
    """Return the spec of the overlay's Job, also inside a JobSet."""
    jobs = [job_set["spec"]["replicatedJobs"][0]["template"] for job_set in of_kind(name, "JobSet")] or of_kind(
        name, "Job"
    )
    return jobs[0]["spec"]


def pod_spec(name: str) -> dict[str, Any]:
    return job_spec(name)["template"]["spec"]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_manifests_equal_the_golden_files(name: str) -> None:
    objects = [resource for resource in rendered(name) if name == "pods" or resource not in rendered("pods")]
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.is_file(), "a new variant: run UPDATE_GOLDEN=1 pytest tests/golden, and review the file"
    assert text == golden.read_text()


def test_every_golden_manifest_has_a_variant() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(VARIANTS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_object_is_valid_in_every_version(name: str, version: str) -> None:
    for resource in rendered(name):
        if resource["kind"] == "JobSet":
            job = resource["spec"]["replicatedJobs"][0]["template"]
            resource = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "of-a-set"}, "spec": job["spec"]}
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_misspelt_field_is_an_error() -> None:
    job = of_kind("pods", "Job")[0]
    job["spec"]["template"]["spec"]["nodeSelektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelektor"):
        kubernetes_validate.validate(job, "1.34", strict=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_pods_keep_the_rules_of_a_restricted_namespace(name: str) -> None:
    assert violations(pod_spec(name)) == []


def changed_at(*path: str | int, **changes: Any) -> Callable[[Any], None]:
    """Return a function that changes these fields at a path of a pod's spec."""
    return lambda spec: functools.reduce(operator.getitem, path, spec).update(changes)


changed_container = functools.partial(changed_at, "containers", 0, "securityContext")
changed_pod = functools.partial(changed_at, "securityContext")

WEAKENED = {
    "root": (changed_pod(runAsNonRoot=False), "runAsNonRoot"),
    "uid 0": (changed_pod(runAsUser=0), "runAsUser"),
    "no seccomp": (changed_pod(seccompProfile={"type": "Unconfined"}), "seccompProfile"),
    "privilege escalation": (changed_container(allowPrivilegeEscalation=True), "allowPrivilegeEscalation"),
    "privileged": (changed_container(privileged=True), "privileged"),
    "capabilities kept": (changed_container(capabilities={}), "capabilities"),
    "IPC_LOCK": (changed_container(capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]}), "capabilities"),
    "SYS_ADMIN": (changed_container(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "capabilities"),
    "hostPath": (changed_at(volumes=[{"name": "more", "hostPath": {"path": "/"}}]), "hostPath"),
    "inline nfs": (changed_at(volumes=[{"name": "more", "nfs": {"server": "10.0.0.5", "path": "/"}}]), "nfs"),
    "host network": (changed_at(hostNetwork=True), "host"),
    "host ipc": (changed_at(hostIPC=True), "host"),
    "host pid": (changed_at(hostPID=True), "host"),
    "a bare init container": (changed_at(initContainers=[{"name": "first", "image": "i"}]), "allowPrivilegeEscalation"),
}


@pytest.mark.parametrize(("weaken", "word"), WEAKENED.values(), ids=WEAKENED)
def test_a_weakened_pod_is_refused(weaken: Callable[[Any], None], word: str) -> None:
    spec = pod_spec("pods")
    weaken(spec)
    assert any(word in rule for rule in violations(spec)), violations(spec)


@pytest.mark.parametrize("name", FLEET)
def test_every_pod_fulfils_the_fleets_requirements(name: str) -> None:
    spec, job = pod_spec(name), job_spec(name)
    (container,) = spec["containers"]
    assert container["image"] == BASIC.image.reference, "by digest"
    assert "command" not in container, "the image's init process stays PID 1"
    assert container["resources"]["limits"][GPU_RESOURCE] == VARIANTS[name].extra_settings["gpus_per_pod"]
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(mounts.values()) == set(volumes)
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert {"/scratch", "/tmp", "/workspace/results"} <= set(mounts)
    assert spec["automountServiceAccountToken"] is False
    if "several-per-node" in VARIANTS[name].components:
        assert "affinity" not in spec
    else:
        (rule,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
    seconds = {t["key"]: t.get("tolerationSeconds") for t in spec["tolerations"]}
    assert seconds["node.kubernetes.io/not-ready"] == seconds["node.kubernetes.io/unreachable"] == 30
    assert {"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["nodeSelector"]["node.kubernetes.io/instance-type"] == "VM.GPU.A10.1"
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    (service,) = of_kind(name, "Service")
    labels = job["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == spec["subdomain"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= labels.items(), "the Service selects these pods"
    (config,) = of_kind(name, "ConfigMap")
    assert container["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]


def test_the_documented_server_is_a_pod_that_the_namespace_admits() -> None:
    (block,) = (block for block in blocks(ROOT / "docs" / "after.md") if block.info == ("yaml", "serve.yaml"))
    pod = yaml.safe_load(block.text)
    kubernetes_validate.validate(pod, "1.34", strict=True)
    assert violations(pod["spec"]) == []


@pytest.mark.parametrize("name", ["pods", "interactive", "pods-without-fss"])
def test_a_lost_worker_never_fails_the_job(name: str) -> None:
    job = job_spec(name)
    assert job["backoffLimitPerIndex"] >= 10
    assert "backoffLimit" not in job
    assert "exit 143" in pod_spec(name)["containers"][0]["args"][2], "exit 0 after SIGTERM would count as completed"
    assert "podFailurePolicy" not in job, "the pods of a dead node would not be replaced"


def test_drained_nodes_evict_one_worker_at_a_time() -> None:
    for name, size in (("pods", 4), ("pods-public-image-on-preemptible-nodes", 8)):
        (budget,) = of_kind(name, "PodDisruptionBudget")
        labels = job_spec(name)["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert budget["spec"]["minAvailable"] == size - 1
    for name in ("interactive", "job-1gpu", "job-4gpu"):
        assert of_kind(name, "PodDisruptionBudget") == []


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("job-")])
def test_a_training_survives_lost_pods_and_nodes_and_ends_by_itself(name: str) -> None:
    job = job_spec(name)
    assert job["completions"] == (1 if name == "job-1gpu" else 4)
    assert job["backoffLimitPerIndex"] >= 10
    assert job["maxFailedIndexes"] == 0, "the other ranks would wait for the one that cannot begin"
    assert "podFailurePolicy" not in job, "the pods of a dead node would not be replaced"
    assert "exec python3 -m bench train" in pod_spec(name)["containers"][0]["args"][2], "SIGTERM reaches it"
    assert of_kind(name, "ConfigMap")[0]["data"]["QLORA_FLEET_JOB_SPEC"] == BASIC.extra_settings["job_spec"]
    assert job["template"]["metadata"]["annotations"]["qlora-fleet/run"] == BASIC.extra_settings["run_id"]


def test_the_volume_is_bound_by_name_and_outlives_the_deployment() -> None:
    (volume,), (claim,) = of_kind("pods", "PersistentVolume"), of_kind("pods", "PersistentVolumeClaim")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert BASIC.volume_source is not None
    assert volume["spec"]["csi"] == BASIC.volume_source["csi"]
    (generic,) = of_kind("any-node-on-nfs", "PersistentVolume")
    assert generic["spec"]["nfs"] == {"server": "10.0.0.5", "path": "/export"}
    assert pod_spec("any-node-on-nfs")["nodeSelector"] == {}
    assert volume["spec"]["claimRef"]["namespace"] == "team-a"
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"] == "qlora-fleet-team-a"
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    for name in ("pods-without-fss", "job-4gpu-jobset-with-everything"):
        assert of_kind(name, "PersistentVolume") == of_kind(name, "PersistentVolumeClaim") == []
        shared = next(volume for volume in pod_spec(name)["volumes"] if volume["name"] == "shared")
        assert shared == {"name": "shared", "emptyDir": {"sizeLimit": "10Gi"}}


def test_the_network_is_closed_but_for_dns_and_the_fleet() -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("pods", "NetworkPolicy")}
    closed = policies.pop("deny-by-default")
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in closed
    assert "ingress" not in closed
    ports = {port["port"] for rule in policies["dns"]["egress"] for port in rule["ports"]}
    assert ports == {53}, "pods do not use the API"
    for spec in (closed, *policies.values()):
        assert spec["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "qlora-fleet"}


def test_the_role_allows_only_reading_and_exec() -> None:
    (role,) = of_kind("pods", "Role")
    for rule in role["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "secrets" not in rule["resources"]
        if rule["resources"] != ["pods/exec"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
    assert ["get", "create"] in [rule["verbs"] for rule in role["rules"]], "pods/exec needs both"
    (account,) = of_kind("pods", "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    (binding,) = of_kind("pods", "RoleBinding")
    assert [subject["kind"] for subject in binding["subjects"]] == ["Group"], "the pods' account has no role"


@pytest.mark.parametrize(
    "setting", ["cpu", "memory", "shm", "scratch", "model", "instance_type", "gpus_per_pod", "image"]
)
def test_a_changed_setting_changes_the_job(setting: str) -> None:
    other = Image.parse("fra.ocir.io/mytenancy/qlora-fleet@sha256:" + "cd" * 32) if setting == "image" else "7"
    objects = render(with_changes(**{setting: other}), ROOT / "manifests")
    actions = {action.title: action.verb.value for action in plan(objects, rendered("pods"), []).changes}
    assert actions["job/bench"] == "replace"


def test_a_broken_manifest_is_one_line_that_names_it(tmp_path: Path) -> None:
    from remote.hosts.pods.kubectl import Misconfigured

    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "manifests" / "worker" / "job.yaml").write_text("apiVersion: batch/v1\nkind: [Job\n")
    with pytest.raises(Misconfigured, match=r"cannot be rendered: .*job\.yaml") as caught:
        render(BASIC, tmp_path / "manifests")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FLEET)
def test_node_requirements_have_the_tolerations_of_the_pods(name: str) -> None:
    variant = VARIANTS[name]
    cluster = ClusterSection(
        provider="oci",
        overlay=variant.overlay,  # type: ignore[arg-type]
        preemptible=variant.preemptible_label is not None,
    )
    placement = place_pods(cluster, PROVIDERS["oci"])
    tolerated = pod_spec(name)["tolerations"]
    assert all(toleration in tolerated for toleration in placement.tolerations)
    own = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert [toleration for toleration in tolerated if toleration["key"] not in own] == placement.tolerations
