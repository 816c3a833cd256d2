"""Desired objects of a deployment, rendered by `kubectl kustomize` from the manifests and the settings.

Values enter the manifests as data: a kustomization and a Settings resource are written into a temporary folder, and
Kustomize copies the values to the fields that manifests/components/settings names. No manifest is made by string
formatting. Secrets are made in memory and sent on standard input; server-side apply, unlike client-side apply, leaves
no copy of them in an annotation.
"""

import base64
import copy
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from bench.records.scratch_folders import scratch_folder
from remote.cluster.labels import COMPONENT_LABEL, OWNER, OWNER_LABEL, PART_OF_LABEL, Object, job_spec
from remote.cluster.settings import ANY_PRODUCT, PodPlacement
from remote.hosts.command import Secret
from remote.hosts.host_protocol import collapse_whitespace
from remote.hosts.pods.kubectl import Misconfigured, run_kubectl

DIGEST_ANNOTATION = "qlora-fleet/rendered"
IMAGE_PLACEHOLDER = "qlora-fleet-bench"
PROVIDER_COMPONENT = "provider"
JOB_PREFIX = "job-"  # overlays of trainings that run without the operator
WORKERS_OVERLAY = "pods"
_DIGEST_REFERENCE = re.compile(r"^(?P<repository>[^\s@]+)@(?P<digest>sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image by its digest. `size_bytes`: disk space on a node during its first pull, if known."""

    repository: str
    digest: str
    size_bytes: int | None = None

    @classmethod
    def parse(cls, reference: str, size_bytes: int | None = None) -> Self:
        """Parse HOST/REPOSITORY[:TAG]@sha256:... Raises ValueError without a digest: a tag can move."""
        match = _DIGEST_REFERENCE.match(reference)
        if match is None:
            raise ValueError(f"{reference!r} has no digest")
        host, _, path = match["repository"].rpartition("/")
        repository = f"{host}/{path.split(':')[0]}".lstrip("/")
        return cls(repository=repository, digest=match["digest"], size_bytes=size_bytes)

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}"

    @property
    def registry(self) -> str:
        """Host of the registry."""
        return self.repository.split("/", 1)[0]


@dataclass(frozen=True, kw_only=True)
class ManifestValues:
    """Parameters of a deployment; `settings` are those of other sections than cluster, by name."""

    placement: PodPlacement
    image: Image
    settings: Mapping[str, str | int]


def kustomization(values: ManifestValues, manifests: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build (kustomization.yaml, settings.yaml) as data; `manifests` is the path from their folder to manifests/.

    Kustomize copies the settings that manifests/components/settings names, in camelCase. The component
    `PROVIDER_COMPONENT` is in the same folder as they are.
    """
    placement, section, overlay = values.placement, values.placement.section, values.placement.overlay
    components = {
        "emptydir": section.volume.handle is None,
        "settings": True,
        "size": overlay == WORKERS_OVERLAY,
        "job-spec": overlay.startswith(JOB_PREFIX),
        "queue": overlay == "job-4gpu-kueue",
        "any-node": placement.instance_type is None,
        "several-per-node": not section.one_per_node,
        "gpu-product": section.gpu not in (None, ANY_PRODUCT),
        "cpu-limit": section.cpu_limit is not None,
        "public-image": placement.pull_secret is None,
        "jobset": overlay == "job-4gpu-jobset",  # last: it copies the Job after all others have changed it
    }
    used = [f"{manifests}/components/{name}" for name, is_used in components.items() if is_used]
    spec = {
        **vars(section),
        "instance_type": placement.instance_type or "any",  # which the component any-node removes
        "gpus_per_pod": str(section.gpus_per_pod),
        "pull_secret": placement.pull_secret or "none",
        "volume_name": f"qlora-fleet-{section.namespace}",
        **values.settings,
    }
    top = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": section.namespace,
        "resources": [f"{manifests}/overlays/{overlay.removesuffix('-jobset')}", "settings.yaml"],
        "components": [PROVIDER_COMPONENT, *used],
        "images": [{"name": IMAGE_PLACEHOLDER, "newName": values.image.repository, "digest": values.image.digest}],
    }
    settings = {
        "apiVersion": "qlora-fleet/v1",
        "kind": "Settings",
        "metadata": {"name": "settings", "annotations": {"config.kubernetes.io/local-config": "true"}},
        "spec": {_camel_case(name): value for name, value in spec.items() if isinstance(value, (str, int))},
    }
    return top, settings


def provider_component(placement: PodPlacement) -> dict[str, Any]:
    """Build the component with the fields of a provider: the source of the volume, and preemptible nodes."""
    patches: dict[str, list[dict[str, Any]]] = {"PersistentVolume": [], "Job": []}
    handle = placement.section.volume.handle
    for kind, source in (placement.provider.volume_source(handle) or {} if handle is not None else {}).items():
        patches["PersistentVolume"].append({"op": "add", "path": f"/spec/{kind}", "value": source})
    if (key := placement.preemptible_label) is not None:
        pod = "/spec/template/spec"
        escaped = key.replace("~", "~0").replace("/", "~1")
        patches["Job"] += [
            {"op": "add", "path": f"{pod}/nodeSelector/{escaped}", "value": "true"},
            {"op": "add", "path": f"{pod}/tolerations/-", "value": {"key": key, "operator": "Exists"}},
        ]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "patches": [
            {"target": {"kind": kind}, "patch": json.dumps(operations)}
            for kind, operations in patches.items()
            if operations
        ],
    }


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def render(values: ManifestValues, manifests: Path) -> list[dict[str, Any]]:
    """Render the objects of a deployment, each with its digest. Raises ClusterError."""
    with scratch_folder("qlora-fleet-deploy-") as folder:
        # Kustomize accepts only relative paths.
        top, settings = kustomization(values, os.path.relpath(manifests.resolve(), folder.resolve()))
        (folder / "kustomization.yaml").write_text(to_yaml([top]), encoding="utf-8")
        (folder / "settings.yaml").write_text(to_yaml([settings]), encoding="utf-8")
        (folder / PROVIDER_COMPONENT).mkdir()
        component = to_yaml([provider_component(values.placement)])
        (folder / PROVIDER_COMPONENT / "kustomization.yaml").write_text(component, encoding="utf-8")
        completed = run_kubectl(("kubectl", "kustomize", str(folder)), label="kubectl kustomize", timeout_sec=60.0)
        if completed.exit_code != 0:
            stderr = collapse_whitespace(completed.stderr.decode(errors="replace"))
            # Kustomize prints the path first and the error last.
            raise Misconfigured(
                f"{manifests}: cannot be rendered: ...{stderr[-300:]}", remedy="check `git diff manifests/`"
            )
    return [with_digest(resource) for resource in yaml.load_all(completed.stdout, Loader=_LOADER) if resource]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster, if installed


def with_digest(resource: Object) -> dict[str, Any]:
    """Return a copy with the object's digest in an annotation."""
    digest = hashlib.sha256(json.dumps(resource, sort_keys=True).encode()).hexdigest()[:16]
    marked = copy.deepcopy(dict(resource))
    marked["metadata"].setdefault("annotations", {})[DIGEST_ANNOTATION] = digest
    return marked


class _QuotingDumper(yaml.SafeDumper):
    """YAML dumper that quotes every text: Go's parsers take an unquoted 12e34567 for a number."""


_QuotingDumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def to_yaml(objects: Iterable[Any]) -> str:
    """Write one YAML document per object."""
    return yaml.dump_all(objects, Dumper=_QuotingDumper, sort_keys=False)


def pull_secret(
    *, name: str, namespace: str, registry: str, user: str, password: Secret
) -> tuple[dict[str, Any], tuple[Secret, ...]]:
    """Make (the Secret object, every encoding of the password in it, to be masked)."""
    auth = base64.b64encode(f"{user}:{password.reveal()}".encode()).decode()
    login = {"username": user, "password": password.reveal(), "auth": auth}
    config = base64.b64encode(json.dumps({"auths": {registry: login}}).encode()).decode()
    labels = {PART_OF_LABEL: OWNER, OWNER_LABEL: OWNER}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": config},
    }
    return secret, (password, Secret(auth), Secret(config))


READER = "reader"
ARCH_LABEL, ARCH = "kubernetes.io/arch", "amd64"  # the image's
_IDLE_SCRIPT = 'mkdir -p "$HOME" "$TMPDIR"; trap \'exit 143\' TERM; while :; do sleep 3600 & wait $!; done'
_RESOURCE_REQUESTS = {"cpu": "100m", "memory": "512Mi"}


def make_reader_job(workload: Object) -> dict[str, Any] | None:
    """Make a Job of one pod without a GPU, with the image, account and volumes of a Job or JobSet.

    It prefers their nodes, which have the image, and runs on any other if they were given back. None if it mounts no
    claim.
    """
    spec = job_spec(workload)["template"]["spec"]
    if not any("persistentVolumeClaim" in volume for volume in spec.get("volumes") or []):
        return None
    pod = {key: copy.deepcopy(value) for key, value in spec.items() if key not in ("affinity", "subdomain")}
    preferred = [
        {"key": key, "operator": "In", "values": [value]} for key, value in pod.pop("nodeSelector", {}).items()
    ]
    pod["nodeSelector"] = {ARCH_LABEL: ARCH}
    if preferred:
        term = {"weight": 100, "preference": {"matchExpressions": preferred}}
        pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    container = pod["containers"][0]
    container |= {
        "args": ["sh", "-c", _IDLE_SCRIPT],
        "resources": {"requests": _RESOURCE_REQUESTS, "limits": {"memory": "512Mi"}},
    }
    labels = {PART_OF_LABEL: OWNER, OWNER_LABEL: OWNER, COMPONENT_LABEL: READER}
    metadata = {"name": READER, "namespace": workload["metadata"]["namespace"], "labels": labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
