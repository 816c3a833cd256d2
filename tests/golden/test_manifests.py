"""Golden tests of the manifests that `inv deploy` applies, and of their validity in Kubernetes.

The golden file of an overlay has its differences from the overlay `pods` with a shared volume, whose file is complete.
After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden

The schemas are those of Kubernetes (kubernetes-validate, strict: unknown fields fail). Pod Security is checked by the
rules of the tests' cluster, which follow recorded refusals; they lack host ports, SELinux, AppArmor and sysctls. JobSet
has no schema here: its Job is checked as a Job.
"""

import copy
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import schema_contents

from remote.cluster.manifests import Image, ManifestValues, render
from remote.cluster.plan import plan
from remote.cluster.settings import ClusterSection, VolumeSection
from remote.providers import GENERIC, PROVIDERS, Provider
from tasks.clients.target_cluster import place_pods
from tests.support.documents import blocks
from tests.support.paths import ROOT
from tests.support.pod_security import violations

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

GOLDEN = Path(__file__).with_name("manifests")
OCI = PROVIDERS["oci"]
RUN_ID = "20261122-101500-train-0a1b2c"
SPEC = f'{{"run_id": "{RUN_ID}"}}'
FSS = VolumeSection(handle="ocid1.filesystem.oc1.eu_frankfurt_1.aaaaexample:10.0.20.5:/export")
MODEL = "/models/mistralai--Mistral-7B-Instruct-v0.3"
LOCAL = VolumeSection(handle=None)


def values(
    provider: Provider = OCI, size: int = 4, model: str = MODEL, digest: str = "ab", **section: Any
) -> ManifestValues:
    settings = ClusterSection(**{"namespace": "team-a", "queue": "gpus", "volume": FSS, **section})
    more: dict[str, str | int] = {"size": size, "least_up": size - 1, "profile": "gpu", "job_spec": SPEC}
    more |= {"model": model, "data": "/shared-data/chats.jsonl", "run_id": RUN_ID}
    image = Image.parse("fra.ocir.io/mytenancy/qlora-fleet@sha256:" + digest * 32)
    return ManifestValues(placement=place_pods(settings, provider), image=image, settings=more)


VARIANTS = {
    "pods": values(),
    "interactive": values(overlay="interactive"),
    "job-1gpu": values(overlay="job-1gpu", size=1),
    "job-4gpu": values(overlay="job-4gpu"),
    "job-4gpu-kueue": values(overlay="job-4gpu-kueue"),
    "public-image-on-any-node-and-nfs": values(
        GENERIC, size=8, volume=VolumeSection(handle="10.0.0.5:/export"), pull_secret=None
    ),
    "two-gpus-each-several-per-node-without-volume": values(
        volume=LOCAL, gpus_per_pod=2, gpu="NVIDIA-A100-SXM4-40GB", cpu_limit="8", one_per_node=False
    ),
    "job-4gpu-jobset-with-everything": values(
        overlay="job-4gpu-jobset", volume=LOCAL, pull_secret=None, preemptible=True
    ),
}
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


@pytest.mark.parametrize("name", VARIANTS)
def test_pods_keep_the_rules_of_a_restricted_namespace(name: str) -> None:
    assert violations(pod_spec(name)) == []


WEAKENED: dict[str, dict[str, Any]] = {
    "runAsUser": {"securityContext": {"runAsUser": 0}},
    "hostNetwork": {"hostNetwork": True},
    "volume hostPath": {"volumes": [{"name": "more", "hostPath": {"path": "/"}}]},
    "capabilities.add of bench": {
        "containers": [{"name": "bench", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]
    },
}


@pytest.mark.parametrize("rule", WEAKENED)
def test_a_weakened_pod_is_refused(rule: str) -> None:
    assert rule in violations(pod_spec("pods") | WEAKENED[rule])


def test_the_documented_server_is_a_pod_that_the_namespace_admits() -> None:
    (block,) = (block for block in blocks(ROOT / "docs" / "after.md") if block.info == ("yaml", "serve.yaml"))
    pod = yaml.safe_load(block.text)
    kubernetes_validate.validate(pod, "1.34", strict=True)
    assert violations(pod["spec"]) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_a_lost_pod_or_node_never_fails_the_job(name: str) -> None:
    job, (script,) = job_spec(name), pod_spec(name)["containers"][0]["args"][2:]
    assert job["backoffLimitPerIndex"] >= 10
    assert "podFailurePolicy" not in job, "the pods of a dead node would not be replaced"
    assert "exec python3 -m bench train" in script or "exit 143" in script, "exit 0 after SIGTERM would be a success"
    assert job.get("maxFailedIndexes") == (0 if name.startswith("job-") else None), "other ranks would wait for it"


CHANGES: dict[str, Any] = {"cpu": "3", "memory": "7Gi", "shm": "7Mi", "scratch": "7Gi", "model": "7", "digest": "cd"}
CHANGES |= {"instance_type": "t", "gpus_per_pod": 7}


@pytest.mark.parametrize("setting", CHANGES)
def test_a_changed_setting_changes_the_job(setting: str) -> None:
    objects = render(values(**{setting: CHANGES[setting]}), ROOT / "manifests")
    actions = {action.title: action.verb.value for action in plan(objects, rendered("pods"), []).changes}
    assert actions["job/bench"] == "replace"


def test_a_broken_manifest_is_one_line_that_names_it(tmp_path: Path) -> None:
    from remote.hosts.pods.kubectl import Misconfigured

    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "manifests" / "worker" / "job.yaml").write_text("apiVersion: batch/v1\nkind: [Job\n")
    with pytest.raises(Misconfigured, match=r"cannot be rendered: .*job\.yaml") as caught:
        render(values(), tmp_path / "manifests")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", VARIANTS)
def test_node_requirements_have_the_tolerations_of_the_pods(name: str) -> None:
    placement = VARIANTS[name].placement
    own = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    tolerations = pod_spec(name)["tolerations"]
    assert [toleration for toleration in tolerations if toleration["key"] not in own] == placement.tolerations
