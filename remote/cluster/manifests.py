"""Desired objects of a deployment, rendered by `kubectl kustomize` from the manifests and the settings.

Values enter the manifests as data: a kustomization and a Settings resource are written into a temporary folder, and
Kustomize copies the values to the fields that manifests/components/settings names. No manifest is made by string
formatting.
"""

import copy
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

from remote.cluster.errors import ClusterError, Misconfigured
from remote.cluster.kubectl import not_installed_error, to_yaml
from remote.cluster.labels import SERVE, Object
from remote.hosts.host import CommandTimedOut, collapse_whitespace
from remote.hosts.process import CannotStart, run_program
from remote.hosts.tempdirs import scratch_folder

DIGEST_ANNOTATION = "qlora-fleet/rendered"
IMAGE_PLACEHOLDER, SERVER_PLACEHOLDER = "qlora-fleet-bench", "qlora-fleet-server"
JOB_PREFIX = "job-"  # overlays of trainings that run without the operator
_SIZED_OVERLAYS = ("pods", "preemptible")
_DIGEST_REFERENCE = re.compile(r"^(?P<repository>[^\s@]+)@(?P<digest>sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image by its digest. `size_bytes`: disk space on a node during its first pull, if known.

    `cuda_requirement` is the base image's NVIDIA_REQUIRE_CUDA, if it has that variable.
    """

    repository: str
    digest: str
    size_bytes: int | None = None
    cuda_requirement: str | None = None

    @classmethod
    def parse(cls, reference: str, size_bytes: int | None = None, cuda_requirement: str | None = None) -> Self:
        """Parse HOST/REPOSITORY[:TAG]@sha256:... Raises ValueError without a digest: a tag can move."""
        match = _DIGEST_REFERENCE.match(reference)
        if match is None:
            raise ValueError(f"{reference!r} has no digest")
        host, _, path = match["repository"].rpartition("/")
        repository = f"{host}/{path.split(':')[0]}".lstrip("/")
        return cls(
            repository=repository, digest=match["digest"], size_bytes=size_bytes, cuda_requirement=cuda_requirement
        )

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}"

    @property
    def registry(self) -> str:
        """Host of the registry."""
        return self.repository.split("/", 1)[0]


@dataclass(frozen=True, kw_only=True)
class ManifestValues:
    """Parameters of a deployment.

    `extra_settings`: further settings by name. Kustomize copies those that manifests/components/settings names, in
    camelCase. `components`: further folders of manifests/components.
    """

    namespace: str
    overlay: str
    image: Image
    preemptible: bool
    pull_secret: str | None
    volume_handle: str | None
    extra_settings: Mapping[str, str | int | list[str]]
    components: tuple[str, ...] = ()
    server_image: Image | None = None


def kustomization(values: ManifestValues, manifests: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build (kustomization.yaml, settings.yaml) as data; `manifests` is the path from their folder to manifests/."""
    components = [
        *(["preemptible"] if values.preemptible and values.overlay != "preemptible" else []),
        *(["emptydir"] if values.volume_handle is None else []),
        "settings",
        *(["size"] if values.overlay in _SIZED_OVERLAYS else []),
        *(["order"] if values.overlay.startswith(JOB_PREFIX) else []),
        *(["queue"] if values.overlay == "job-4gpu-kueue" else []),
        *([SERVE] if values.overlay == SERVE else []),
        *values.components,
        *(["public-image"] if values.pull_secret is None else []),
        # Last: it copies the Job after all other components have changed it.
        *(["jobset"] if values.overlay == "job-4gpu-jobset" else []),
    ]
    overlay = values.overlay.removesuffix("-jobset")
    top = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": values.namespace,
        "resources": [f"{manifests}/overlays/{overlay}", "settings.yaml"],
        "components": [f"{manifests}/components/{name}" for name in components],
        "images": [
            {"name": name, "newName": image.repository, "digest": image.digest}
            for name, image in ((IMAGE_PLACEHOLDER, values.image), (SERVER_PLACEHOLDER, values.server_image))
            if image is not None
        ],
    }
    settings = {
        "apiVersion": "qlora-fleet/v1",
        "kind": "Settings",
        "metadata": {"name": "settings", "annotations": {"config.kubernetes.io/local-config": "true"}},
        "spec": {
            "namespace": values.namespace,
            "pullSecret": values.pull_secret or "none",
            "volumeHandle": values.volume_handle or "none",
            "volumeName": f"qlora-fleet-{values.namespace}",
            **{_camel_case(name): value for name, value in values.extra_settings.items()},
        },
    }
    return top, settings


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
        argv = ("kubectl", "kustomize", str(folder))
        try:
            completed = run_program(argv, label="kubectl kustomize", timeout_sec=60.0)
        except CannotStart as error:
            raise not_installed_error(error) from error
        except CommandTimedOut as error:
            raise ClusterError(str(error)) from error
        if completed.exit_code != 0:
            stderr = collapse_whitespace(completed.stderr.decode(errors="replace"))
            # Kustomize prints the path first and the error last.
            raise Misconfigured(f"{manifests}: cannot be rendered: ...{stderr[-300:]}; check `git diff manifests/`")
    return [with_digest(resource) for resource in yaml.load_all(completed.stdout, Loader=_LOADER) if resource]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times faster, if installed


def with_digest(resource: Object) -> dict[str, Any]:
    """Return a copy with the object's digest in an annotation."""
    digest = hashlib.sha256(json.dumps(resource, sort_keys=True).encode()).hexdigest()[:16]
    marked = copy.deepcopy(dict(resource))
    marked["metadata"].setdefault("annotations", {})[DIGEST_ANNOTATION] = digest
    return marked
