"""What `inv deploy` sends, word for word, and whether Kubernetes would take it.

The golden file of an overlay holds what differs from the overlay `pods` with a shared volume, which is there whole.
After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden

The schemas are Kubernetes' own (kubernetes-validate, strict: unknown fields fail). Pod Security is checked by the rules
of the tests' own cluster, written to the recorded refusals; not covered there: host ports, SELinux, AppArmor, sysctls.
JobSet has no schema here: the Job in it is checked as a Job.
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

from remote.cluster.diagnosis.nodes import GPU
from remote.cluster.labels import is_owned
from remote.cluster.manifests import Image, Values, render
from remote.cluster.plan import plan
from remote.hosts.process import run_program
from remote.serving.pod_transport import PORT
from tasks.adapter.serve import KEY_SECRET
from tasks.cluster.nodes import pod_requirements
from tasks.settings.load import Settings
from tasks.settings.schema import ClusterSection
from tests.support.kubernetes.admission.podsecurity import violations
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

GOLDEN = Path(__file__).with_name("manifests")
BASIC = Values(
    namespace="team-a",
    overlay="pods",
    image=Image.parse("fra.ocir.io/mytenancy/qlora-fleet@sha256:" + "ab" * 32),
    preemptible=False,
    pull_secret="ocir-secret",
    volume_handle="ocid1.filesystem.oc1.eu_frankfurt_1.aaaaexample:10.0.20.5:/export",
    copied={
        "size": 4,
        "least_up": 3,
        "gpus_per_pod": "1",
        "instance_type": "VM.GPU.A10.1",
        "capacity": "200Gi",
        "cpu": "4",
        "memory": "24Gi",
        "shm": "4Gi",
        "scratch": "10Gi",
        "queue": "gpus",
        "model": "/models/mistralai--Mistral-7B-Instruct-v0.3",
        "data": "/shared-data/chats.jsonl",
        "profile": "gpu",
        "order": '{"run_id": "20261122-101500-train-0a1b2c"}',
        "serve": '{"model": "/models/mistralai--Mistral-7B-Instruct-v0.3"}',
        "server_arguments": ["/scratch/serve/base", "--enable-lora"],
        "run_id": "20261122-101500-train-0a1b2c",
        "metrics": '{"host": "", "port": 9400}',
    },
)


SERVER = Image.parse("docker.io/vllm/vllm-openai@sha256:" + "ef" * 32)


def changed(**changes: Any) -> Values:
    copied = {name: changes.pop(name, value) for name, value in BASIC.copied.items()}
    return dataclasses.replace(BASIC, **{"copied": copied, **changes})


VARIANTS = {
    "pods": BASIC,
    "preemptible": changed(overlay="preemptible"),
    "interactive": changed(overlay="interactive"),
    "job-1gpu": changed(overlay="job-1gpu", size=1),
    "job-4gpu": changed(overlay="job-4gpu"),
    "job-4gpu-jobset": changed(overlay="job-4gpu-jobset"),
    "job-4gpu-kueue": changed(overlay="job-4gpu-kueue"),
    "pods-without-fss": changed(volume_handle=None),
    "pods-public-image-on-preemptible-nodes": changed(pull_secret=None, preemptible=True, size=8, least_up=7),
    "pods-two-gpus-each-several-per-node": changed(
        copied={**BASIC.copied, "gpus_per_pod": "2", "gpu": "NVIDIA-A100-SXM4-40GB", "cpu_limit": "8"},
        components=("several-per-node", "gpu-product", "cpu-limit"),
    ),
    "job-4gpu-jobset-with-everything": changed(
        overlay="job-4gpu-jobset", volume_handle=None, pull_secret=None, preemptible=True, components=("metrics",)
    ),
    "serve": changed(overlay="serve", server=SERVER),
    "serve-without-fss": changed(overlay="serve", server=SERVER, volume_handle=None, pull_secret=None),
}
FLEET = [name for name in VARIANTS if not name.startswith("serve")]
VERSIONS = ("1.29", "1.34", "1.37")


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """The library parses two files of a megabyte for each object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", functools.cache(schema_contents))
        yield


@functools.cache
def rendered(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(render(VARIANTS[name], ROOT / "manifests"))


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [copy.deepcopy(one) for one in rendered(name) if one["kind"] == kind]


def job_spec(name: str) -> dict[str, Any]:
    """The spec of the one Job of an overlay, wherever it stands."""
    jobs = [one["spec"]["replicatedJobs"][0]["template"] for one in of_kind(name, "JobSet")] or of_kind(name, "Job")
    return jobs[0]["spec"]


def pod_spec(name: str) -> dict[str, Any]:
    return job_spec(name)["template"]["spec"]


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_sent_is_what_was_agreed(name: str) -> None:
    objects = [one for one in rendered(name) if name == "pods" or one not in rendered("pods")]
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.is_file(), "a new variant: UPDATE_GOLDEN=1 pytest tests/golden, and read what it wrote"
    assert text == golden.read_text()


def test_no_golden_manifest_is_left_of_a_variant_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(VARIANTS)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_object_is_valid_in_every_version(name: str, version: str) -> None:
    for one in rendered(name):
        if one["kind"] == "JobSet":
            job = one["spec"]["replicatedJobs"][0]["template"]
            one = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "of-a-set"}, "spec": job["spec"]}
        kubernetes_validate.validate(one, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    job = of_kind("pods", "Job")[0]
    job["spec"]["template"]["spec"]["nodeSelektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelektor"):
        kubernetes_validate.validate(job, "1.34", strict=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_pods_keep_the_rules_of_a_restricted_namespace(name: str) -> None:
    assert violations("restricted", pod_spec(name)) == []


def _below(*place: str | int, **changes: Any) -> Callable[[Any], None]:
    """These fields changed at a place of a pod's spec."""
    return lambda spec: functools.reduce(operator.getitem, place, spec).update(changes)


_container = functools.partial(_below, "containers", 0, "securityContext")
_pod = functools.partial(_below, "securityContext")

WEAKENED = {
    "root": (_pod(runAsNonRoot=False), "runAsNonRoot"),
    "uid 0": (_pod(runAsUser=0), "runAsUser"),
    "no seccomp": (_pod(seccompProfile={"type": "Unconfined"}), "seccompProfile"),
    "privilege escalation": (_container(allowPrivilegeEscalation=True), "allowPrivilegeEscalation"),
    "privileged": (_container(privileged=True), "privileged"),
    "capabilities kept": (_container(capabilities={}), "capabilities"),
    "IPC_LOCK": (_container(capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]}), "capabilities"),
    "SYS_ADMIN": (_container(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "capabilities"),
    "hostPath": (_below(volumes=[{"name": "more", "hostPath": {"path": "/"}}]), "hostPath"),
    "inline nfs": (_below(volumes=[{"name": "more", "nfs": {"server": "10.0.0.5", "path": "/"}}]), "nfs"),
    "host network": (_below(hostNetwork=True), "host"),
    "host ipc": (_below(hostIPC=True), "host"),
    "host pid": (_below(hostPID=True), "host"),
    "a bare init container": (_below(initContainers=[{"name": "first", "image": "i"}]), "allowPrivilegeEscalation"),
}


@pytest.mark.parametrize(("weaken", "word"), WEAKENED.values(), ids=WEAKENED)
def test_a_weakened_pod_is_refused(weaken: Callable[[Any], None], word: str) -> None:
    spec = pod_spec("pods")
    weaken(spec)
    assert any(word in rule for rule in violations("restricted", spec)), violations("restricted", spec)


@pytest.mark.parametrize("name", FLEET)
def test_every_pod_is_as_the_fleet_needs_it(name: str) -> None:
    spec, job = pod_spec(name), job_spec(name)
    (container,) = spec["containers"]
    assert container["image"] == BASIC.image.reference, "by digest"
    assert "command" not in container, "the image's init process stays PID 1"
    assert container["resources"]["limits"][GPU] == VARIANTS[name].copied["gpus_per_pod"]
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
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert spec["nodeSelector"]["node.kubernetes.io/instance-type"] == "VM.GPU.A10.1"
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"]
    (service,) = of_kind(name, "Service")
    labels = job["template"]["metadata"]["labels"]
    assert service["metadata"]["name"] == spec["subdomain"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= labels.items(), "the Service finds these pods"
    (config,) = of_kind(name, "ConfigMap")
    assert container["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]


@pytest.mark.parametrize("name", ["serve", "serve-without-fss"])
def test_a_server_is_one_gpu_with_probes_limits_and_a_key_that_no_manifest_holds(name: str) -> None:
    spec = pod_spec(name)
    (first,), (server,) = spec["initContainers"], spec["containers"]
    assert (first["image"], server["image"]) == (BASIC.image.reference, SERVER.reference), "by digest"
    assert first["envFrom"] == server["envFrom"]
    assert server["args"] == BASIC.copied["server_arguments"]
    assert of_kind(name, "ConfigMap")[0]["data"]["QLORA_FLEET_SERVE"] == BASIC.copied["serve"]
    assert server["resources"]["limits"] == {"memory": "24Gi", GPU: "1"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"] == {"path": "/health", "port": "http"}
    patience = server["startupProbe"]["periodSeconds"] * server["startupProbe"]["failureThreshold"]
    assert patience >= ClusterSection().ready_timeout_sec, "`inv serve` gives up first, and says why"
    environment = {one["name"]: one for one in server["env"]}
    assert environment["VLLM_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": KEY_SECRET, "key": "key"}}
    assert of_kind(name, "Secret") == of_kind(name, "Ingress") == []
    (service,) = of_kind(name, "Service")
    assert "type" not in service["spec"], "within the cluster alone"
    assert service["spec"]["selector"].items() <= job_spec(name)["template"]["metadata"]["labels"].items()
    assert service["spec"]["ports"][0]["port"] == server["ports"][0]["containerPort"] == PORT


@pytest.mark.parametrize("name", ["pods", "preemptible", "interactive", "pods-without-fss"])
def test_one_lost_worker_never_fails_the_job(name: str) -> None:
    job = job_spec(name)
    assert job["backoffLimitPerIndex"] >= 10
    assert "backoffLimit" not in job
    assert "exit 143" in pod_spec(name)["containers"][0]["args"][2], "an exit with 0 after TERM counts as done"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget"), "a drain"


def test_drained_nodes_give_up_one_worker_at_a_time() -> None:
    for name, size in (("pods", 4), ("pods-public-image-on-preemptible-nodes", 8)):
        (budget,) = of_kind(name, "PodDisruptionBudget")
        labels = job_spec(name)["template"]["metadata"]["labels"]
        assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert budget["spec"]["minAvailable"] == size - 1
    for name in ("interactive", "job-1gpu", "job-4gpu"):
        assert of_kind(name, "PodDisruptionBudget") == []


@pytest.mark.parametrize("name", [name for name in VARIANTS if name.startswith("job-")])
def test_a_training_outlives_lost_pods_and_ends_with_its_own_end(name: str) -> None:
    job = job_spec(name)
    assert job["completions"] == (1 if name == "job-1gpu" else 4)
    assert job["backoffLimit"] >= 10
    ignored, fails = job["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget"), "a drain"
    assert (fails["action"], fails["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert "exec python3 -m bench train" in pod_spec(name)["containers"][0]["args"][2], "a TERM reaches it"
    assert of_kind(name, "ConfigMap")[0]["data"]["QLORA_FLEET_ORDER"] == BASIC.copied["order"]
    assert job["template"]["metadata"]["annotations"]["qlora-fleet/run"] == BASIC.copied["run_id"]
    metrics = BASIC.copied["metrics"] if "metrics" in VARIANTS[name].components else None
    assert of_kind(name, "ConfigMap")[0]["data"].get("QLORA_FLEET_METRICS") == metrics


def test_the_numbers_and_names_are_the_settings() -> None:
    assert job_spec("pods-public-image-on-preemptible-nodes")["completions"] == 8
    spec = pod_spec("pods-public-image-on-preemptible-nodes")
    assert "imagePullSecrets" not in spec
    assert spec["nodeSelector"]["oci.oraclecloud.com/oke-is-preemptible"] == "true"
    (job,) = of_kind("job-4gpu-kueue", "Job")
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    environment = of_kind("pods", "ConfigMap")[0]["data"]
    assert environment["QLORA_FLEET_MODEL"] == BASIC.copied["model"]
    assert environment["QLORA_FLEET_DATA"] == BASIC.copied["data"]


def test_the_volume_is_bound_by_name_and_outlives_the_deployment() -> None:
    (volume,), (claim,) = of_kind("pods", "PersistentVolume"), of_kind("pods", "PersistentVolumeClaim")
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert volume["spec"]["csi"] == {"driver": "fss.csi.oraclecloud.com", "volumeHandle": BASIC.volume_handle}
    assert volume["spec"]["claimRef"]["namespace"] == "team-a"
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"] == "qlora-fleet-team-a"
    assert claim["spec"]["storageClassName"] == volume["spec"]["storageClassName"] == ""
    for name in ("pods-without-fss", "job-4gpu-jobset-with-everything"):
        assert of_kind(name, "PersistentVolume") == of_kind(name, "PersistentVolumeClaim") == []
        shared = next(volume for volume in pod_spec(name)["volumes"] if volume["name"] == "shared")
        assert shared == {"name": "shared", "emptyDir": {"sizeLimit": "10Gi"}}


def test_the_network_is_closed_but_for_dns_and_the_fleet() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind("pods", "NetworkPolicy")}
    closed = policies.pop("deny-by-default")
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in closed
    assert "ingress" not in closed
    ports = {port["port"] for rule in policies["dns"]["egress"] for port in rule["ports"]}
    assert ports == {53}, "pods talk to no API"
    for spec in (closed, *policies.values()):
        assert spec["podSelector"]["matchLabels"] == {"app.kubernetes.io/part-of": "qlora-fleet"}


def test_nobody_gets_more_rights_than_reading_and_exec() -> None:
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
    objects = render(changed(**{setting: other}), ROOT / "manifests")
    actions = {action.title: action.verb.value for action in plan(objects, rendered("pods")).changes}
    assert actions["job/bench"] == "replace"


def test_a_broken_manifest_is_one_line_that_names_it(tmp_path: Path) -> None:
    from remote.cluster.errors import Misconfigured

    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "manifests" / "worker" / "job.yaml").write_text("apiVersion: batch/v1\nkind: [Job\n")
    with pytest.raises(Misconfigured, match=r"cannot be rendered: .*job\.yaml") as caught:
        render(BASIC, tmp_path / "manifests")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", FLEET)
def test_nodes_are_judged_by_what_the_pods_tolerate(name: str) -> None:
    variant = VARIANTS[name]
    cluster = ClusterSection(overlay=variant.overlay, preemptible=variant.preemptible)  # type: ignore[arg-type]
    need = pod_requirements(Settings(root=ROOT, cluster=cluster), variant.image)
    tolerated = pod_spec(name)["tolerations"]
    assert all(toleration in tolerated for toleration in need.tolerations)
    own = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    assert [one for one in tolerated if one["key"] not in own] == list(need.tolerations)


def test_what_prometheus_needs_is_valid_and_left_alone_by_a_deployment() -> None:
    """A PodMonitor and a PrometheusRule have no schema here: their fields are compared with what was written."""
    done = run_program(
        ("kubectl", "kustomize", str(ROOT / "manifests" / "overlays" / "metrics")), label="kustomize", timeout_sec=60.0
    )
    assert done.exit_code == 0, done.stderr
    found = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert set(found) == {"PodMonitor", "NetworkPolicy", "PrometheusRule"}
    for version in VERSIONS:
        kubernetes_validate.validate(found["NetworkPolicy"], version, strict=True)
    (rule,) = found["NetworkPolicy"]["spec"]["ingress"]
    (endpoint,) = found["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"][0]["replacement"] == f"$1:{rule['ports'][0]['port']}"
    for name in ("pods", "job-1gpu", "job-4gpu"):
        labels = job_spec(name)["template"]["metadata"]["labels"]
        for one in found["PodMonitor"]["spec"]["selector"]["matchExpressions"]:
            assert labels[one["key"]] in one["values"], "the workers are found, and the pods of a training"
        assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert not any(map(is_owned, found.values()))
