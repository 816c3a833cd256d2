"""What should be in the cluster: values in, objects out. `kubectl kustomize` renders them.

Values enter the manifests as data: a kustomization and a Settings resource are written into a temporary folder, and
Kustomize copies the values to the places that manifests/components/settings names. No manifest is made by string
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
from remote.cluster.kubectl import documents, not_installed
from remote.cluster.labels import SERVE, Object
from remote.hosts.host import CommandTimedOut, one_line
from remote.hosts.process import CannotStart, run_program
from remote.hosts.tempdirs import scratch_folder

DIGEST = "qlora-fleet/rendered"
IMAGE_PLACEHOLDER, SERVER_PLACEHOLDER = "qlora-fleet-bench", "qlora-fleet-server"
JOB = "job-"  # how the names of overlays begin that train by themselves
_SIZED = ("pods", "preemptible")
_DIGEST_FORM = re.compile(r"^(?P<repository>[^\s@]+)@(?P<digest>sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image by its digest. `size_bytes` is what it takes on a node during its first pull, where that is known.

    `requires` is the base image's NVIDIA_REQUIRE_CUDA: the drivers it starts on, where it says that.
    """

    repository: str
    digest: str
    size_bytes: int | None = None
    requires: str | None = None

    @classmethod
    def parse(cls, reference: str, size_bytes: int | None = None, requires: str | None = None) -> Self:
        """From HOST/REPOSITORY[:TAG]@sha256:...; ValueError for anything else: a tag can move, a digest cannot."""
        match = _DIGEST_FORM.match(reference)
        if match is None:
            raise ValueError(f"{reference!r} names no digest")
        host, _, path = match["repository"].rpartition("/")
        repository = f"{host}/{path.split(':')[0]}".lstrip("/")
        return cls(repository=repository, digest=match["digest"], size_bytes=size_bytes, requires=requires)

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}"

    @property
    def registry(self) -> str:
        """The host one logs in to."""
        return self.repository.split("/", 1)[0]


@dataclass(frozen=True, kw_only=True)
class Values:
    """All that varies between one deployment and another.

    `copied`: further settings by name. Kustomize copies those that manifests/components/settings names, in camelCase.
    `components`: those of manifests/components that a setting asks for by itself. `server`: the image of a server.
    """

    namespace: str
    overlay: str
    image: Image
    preemptible: bool
    pull_secret: str | None
    volume_handle: str | None
    copied: Mapping[str, str | int | list[str]]
    components: tuple[str, ...] = ()
    server: Image | None = None


def kustomization(values: Values, manifests: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(kustomization.yaml, settings.yaml) as data; `manifests` is the path from their folder to manifests/."""
    components = [
        *(["preemptible"] if values.preemptible and values.overlay != "preemptible" else []),
        *(["emptydir"] if values.volume_handle is None else []),
        "settings",
        *(["size"] if values.overlay in _SIZED else []),
        *(["order"] if values.overlay.startswith(JOB) else []),
        *(["queue"] if values.overlay == "job-4gpu-kueue" else []),
        *([SERVE] if values.overlay == SERVE else []),
        *values.components,
        *(["public-image"] if values.pull_secret is None else []),
        # Last: it copies the Job as all others have left it.
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
            for name, image in ((IMAGE_PLACEHOLDER, values.image), (SERVER_PLACEHOLDER, values.server))
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
            **{_camel(name): value for name, value in values.copied.items()},
        },
    }
    return top, settings


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def render(values: Values, manifests: Path) -> list[dict[str, Any]]:
    """The objects of a deployment, as `kubectl kustomize` builds them, each with its digest. Raises ClusterError."""
    with scratch_folder("qlora-fleet-deploy-") as folder:
        # Kustomize takes folders by relative path only.
        top, settings = kustomization(values, os.path.relpath(manifests.resolve(), folder.resolve()))
        (folder / "kustomization.yaml").write_text(documents([top]), encoding="utf-8")
        (folder / "settings.yaml").write_text(documents([settings]), encoding="utf-8")
        argv = ("kubectl", "kustomize", str(folder))
        try:
            completed = run_program(argv, label="kubectl kustomize", timeout_sec=60.0)
        except CannotStart as error:
            raise not_installed(error) from None
        except CommandTimedOut as error:
            raise ClusterError(str(error)) from None
        if completed.exit_code != 0:
            stderr = one_line(completed.stderr.decode(errors="replace"))
            # Kustomize prints the path to the mistake first and the mistake last.
            raise Misconfigured(f"{manifests}: cannot be rendered: ...{stderr[-300:]}; see `git diff manifests/`")
    return [stamped(one) for one in yaml.load_all(completed.stdout, Loader=_LOADER) if one]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where libyaml is there


def stamped(one: Object) -> dict[str, Any]:
    """The object with the digest of itself in an annotation."""
    digest = hashlib.sha256(json.dumps(one, sort_keys=True).encode()).hexdigest()[:16]
    marked = copy.deepcopy(dict(one))
    marked["metadata"].setdefault("annotations", {})[DIGEST] = digest
    return marked
