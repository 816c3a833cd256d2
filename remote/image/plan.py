"""Plan of `inv build`, computed from what was observed. Pure: the plan that `--dry-run` prints is the one that runs.

`--tmpdir` determines where models, our files, the build context and archives are. The engine's own data (BuildKit's
copy of the context, its cache, the layers) is always below its data-root. The plan therefore sums up the space needed
in each folder and fails if it does not fit.
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.records import schema
from bench.records.units import format_gb
from bench.records.version import VERSION
from remote.image.context import CodeFile, ContextError, ModelFolder, PackedShard, assign_slots, digest_of_code
from remote.image.engine import DiskInfo, EngineError, EngineFacts, FolderInfo
from remote.image.settings import ImageSection
from remote.image.vm_jobs import workdir_path
from remote.jobs.transfer import FileEntry

LABEL = "qlora-fleet"
BUILD_LABEL = f"{LABEL}.build"
NETWORK_FILESYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs")
# Files on these are lost with the machine, use its memory, or have no hard links or modes.
UNSUITABLE_FILESYSTEMS = ("tmpfs", "ramfs", "vfat", "exfat", "ntfs", "ntfs3", "iso9660", "squashfs", "proc", "sysfs")
# torch's own build needs them in addition to the lock's wheels.
CUDA_TOOLKIT_PACKAGES = (
    *("cuda-minimal-build", "cuda-libraries-dev", "cuda-cupti-dev", "cuda-nvtx", "cuda-nvml-dev", "cuda-profiler-api"),
)
TORCH_SOURCE_BYTES = 40_000_000_000  # toolkit, sources, objects and ccache; estimated, never measured here
BASE_IMAGE_BYTES = 900_000_000
HEADROOM_BYTES = 500_000_000  # for logs and the cache's metadata, and to keep the disk from filling up
# The stack exists in its stage, in the image, and as pip's cache of wheels (about 0.6 of the unpacked size).
STACK_COPIES = 2.6
# Weights exist in BuildKit's copy of the context and in their layers.
WEIGHT_COPIES = 2.0


class ModelDamaged(EngineError):
    """Error raised if a model's file does not match its manifest; the message ends with the command that fixes it."""


class InsufficientSpace(EngineError):
    """Error raised if a folder has too little space or an unsuitable file system; the message has the remedy."""


@dataclass(frozen=True, kw_only=True)
class BuildProfile:
    """An entry of image/profiles.yaml: base image, Python, size of the installed stack in bytes, CUDA as 12-8.

    `cuda` is None if image/torch.sh cannot build the lock's torch. `environment`: a stage of the Dockerfile.
    """

    name: str
    base: str
    python: str
    stack_bytes: int
    runs_on_cpu: bool
    cuda: str | None = None
    environment: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """The requested image: its name, settings and profile, our files, and the work directory on the VM."""

    image: str
    section: ImageSection
    profile: BuildProfile
    tmpdir: str
    code: tuple[CodeFile, ...]
    index_url: str | None = None
    git_sha: str = ""

    @property
    def lock_digest(self) -> str:
        lock_path = f"image/locks/{self.profile.name}.txt"
        return next(file.sha256 for file in self.code if file.path == lock_path)

    @property
    def workdir(self) -> str:
        return workdir_path(self.tmpdir)

    def options(self) -> dict[str, str]:
        """Return the Dockerfile's arguments for optional parts of the image. Raises ContextError."""
        arguments = {"GPU_ARCHS": " ".join(self.section.gpu_archs)}
        if self.section.torch == "source":
            if self.profile.cuda is None:
                raise ContextError(
                    f"image.torch: source: image/torch.sh cannot build the torch of profile {self.profile.name}",
                    remedy="set image.torch to wheel, or image.profile to current",
                )
            arguments["TORCH"] = "source"
            arguments["TOOLKIT"] = " ".join(f"{name}-{self.profile.cuda}" for name in CUDA_TOOLKIT_PACKAGES)
            arguments["TORCH_CUDA_ARCH_LIST"] = ";".join(self.section.gpu_archs)
        if self.section.apt_snapshot is not None:
            arguments["APT_SNAPSHOT"] = self.section.apt_snapshot
        if self.profile.environment is not None:
            arguments["ENVIRONMENT"] = self.profile.environment
        return arguments

    def model_folders(self) -> list[tuple[str, str]]:
        """List the models, each as its name in the image and its folder on the VM."""
        return [
            (name, f"{self.workdir}/models/{name}")
            for name in (model.replace("/", "--") for model in self.section.models)
        ]


@dataclass(frozen=True, kw_only=True)
class SpaceNeed:
    """Disk space that one purpose needs in one folder."""

    folder: FolderInfo
    purpose: str
    need_bytes: int


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """One build. `argv` builds `context`, which consists of `code` (path below `code_folder`, sha256) and `packed`."""

    image: str
    digest: str
    argv: tuple[str, ...]
    base: str
    code_folder: str
    code: tuple[tuple[str, str], ...]
    packed: tuple[PackedShard, ...]
    context: str
    data_root: str
    needs: tuple[SpaceNeed, ...]
    notes: tuple[str, ...]

    def to_job(self) -> dict[str, Any]:
        """Build the request for `remote.agent.build_vm.build`."""
        fields = {key: value for key, value in asdict(self).items() if key not in ("digest", "needs", "notes")}
        return {**fields, "docker": [self.argv[0]]}


def model_folders(disks: DiskInfo) -> tuple[ModelFolder, ...]:
    """List the models on the VM. Raises EngineError for one missing or unverified, ModelDamaged for a truncated one."""
    folders = []
    for model in disks.models:
        name, folder = model["name"], model["folder"]
        remedy = "fetch and verify it with `inv model.fetch`"
        if not model["found"]:
            raise EngineError(f"image.models: {name}: not on the VM at {folder}", remedy=remedy)
        if model["sha256"] is None:
            raise EngineError(
                f"image.models: {folder} has no readable manifest.json, so it may be incomplete", remedy=remedy
            )
        for path, actual_size, size, _ in model["files"]:
            if actual_size is None:
                raise EngineError(f"image.models: {folder}/{path}: not found", remedy=remedy)
            if actual_size != size:
                raise ModelDamaged(
                    f"image.models: {folder}/{path}: {actual_size} bytes, its manifest says {size}", remedy=remedy
                )
        files = tuple(FileEntry(path=path, size=size, sha256=sha256) for path, _, size, sha256 in model["files"])
        folders.append(ModelFolder(name=name, folder=folder, files=files, manifest_sha256=model["sha256"]))
    return tuple(folders)


def plan(
    spec: ImageSpec, facts: EngineFacts, root: FolderInfo, disks: DiskInfo, existing: Mapping[str, str]
) -> BuildPlan:
    """Plan the build of `spec`. `root`: the engine's data-root; `existing`: labels of the image that has this name.

    Raises InsufficientSpace for an unsuitable file system, EngineError for incomplete models, and ContextError.
    """
    models = model_folders(disks)
    packed = assign_slots(models)
    tmp = disks.folder(spec.tmpdir)
    check_data_root(root, facts)
    labels = _labels(spec, _model_digests(models))
    return BuildPlan(
        image=spec.image,
        digest=labels[BUILD_LABEL],
        argv=_build_argv(spec, labels),
        base=spec.profile.base,
        code_folder=f"{spec.workdir}/code/{digest_of_code(spec.code)[:16]}",
        code=tuple((file.path, file.sha256) for file in spec.code),
        packed=packed,
        context=f"{spec.workdir}/context",
        data_root=facts.data_root,
        needs=_space_needs(spec, models, packed, tmp, root, existing),
        notes=_notes(facts, tmp, root),
    )


def is_built(spec: ImageSpec, disks: DiskInfo, existing: Mapping[str, str]) -> bool:
    """Return True if the image that currently has the name was built from exactly this spec."""
    return existing.get(BUILD_LABEL) == _labels(spec, _model_digests(model_folders(disks)))[BUILD_LABEL]


def is_outdated(spec: ImageSpec, existing: Mapping[str, str]) -> bool:
    """Return True if an image with these labels was built from other files or settings than `spec`.

    Models are compared by name, not by content, so that the VM's folders are not needed. The commit is ignored: an
    image of another commit with the same files is the same image.
    """
    models, revision = model_digests(existing), existing.get("org.opencontainers.image.revision", "")
    has_models = models.keys() == {name for name, _ in spec.model_folders()}
    return not has_models or existing.get(BUILD_LABEL) != _labels(replace(spec, git_sha=revision), models)[BUILD_LABEL]


def model_digests(labels: Mapping[str, str]) -> dict[str, str]:
    """Parse the label that the build wrote: model name to the sha256 of its manifest; empty if it is damaged."""
    try:
        return schema.parse_object(labels.get(f"{LABEL}.models") or "{}")
    except ValueError:
        return {}


def _model_digests(models: Sequence[ModelFolder]) -> dict[str, str]:
    return {model.name: model.manifest_sha256 for model in models}


def _labels(spec: ImageSpec, model_digests: Mapping[str, str]) -> dict[str, str]:
    labels = {
        "org.opencontainers.image.title": LABEL,
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.revision": spec.git_sha,
        "org.opencontainers.image.base.name": spec.profile.base,
        f"{LABEL}.profile": spec.profile.name,
        f"{LABEL}.lock": spec.lock_digest,
        f"{LABEL}.models": json.dumps(model_digests, sort_keys=True),
    }
    content = {
        "labels": labels,
        "code": digest_of_code(spec.code),
        "python": spec.profile.python,
        "target": spec.section.target,
        "extra_packages": spec.section.extra_packages,
        **({"options": options} if (options := spec.options()) else {}),
    }
    return {**labels, BUILD_LABEL: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _build_argv(spec: ImageSpec, labels: Mapping[str, str]) -> tuple[str, ...]:
    context = f"{spec.workdir}/context"
    arguments = {
        "BASE_IMAGE": spec.profile.base,
        "PYTHON_VERSION": spec.profile.python,
        "PROFILE": spec.profile.name,
        "EXTRA_PACKAGES": " ".join(spec.section.extra_packages),
        "GIT_SHA": spec.git_sha,
        "LOCK_DIGEST": spec.lock_digest,
        **({"PIP_INDEX_URL": spec.index_url} if spec.index_url is not None else {}),
        **spec.options(),
        **({"WEIGHTS": "models"} if spec.section.models else {}),
    }
    return (
        # The job writes the verified Dockerfile to standard input.
        *(spec.section.client, "build", "--progress=plain", "--file", "-"),
        *("--target", spec.section.target, "--tag", spec.image, "--network", spec.section.network),
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
        *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
        *(("--secret", f"id=pip.conf,src={spec.section.pip_conf}") if spec.section.pip_conf is not None else ()),
        context,
    )


def check_tmpdir(tmp: FolderInfo) -> None:
    """Check that a build can use --tmpdir. Raises InsufficientSpace."""
    if not tmp.exists or not tmp.is_folder:
        raise InsufficientSpace(
            f"--tmpdir {tmp.path}: no such folder on the VM", remedy="mount the share there, or create it"
        )
    if not tmp.writable:
        raise InsufficientSpace(
            f"--tmpdir {tmp.path}: not writable for this user",
            remedy=f"run on the VM: sudo chown $USER {shlex.quote(str(tmp.path))}",
        )
    if tmp.kind in UNSUITABLE_FILESYSTEMS:
        raise InsufficientSpace(
            f"--tmpdir {tmp.path}: is on {tmp.kind}, which cannot hold a build's files",
            remedy="use a folder on a disk or NFS",
        )


def check_data_root(root: FolderInfo, facts: EngineFacts) -> None:
    """Check that BuildKit can use the engine's data-root. Raises InsufficientSpace."""
    if root.kind in NETWORK_FILESYSTEMS or facts.storage_driver == "vfs":
        cause = f"is on {root.kind}" if root.kind in NETWORK_FILESYSTEMS else "uses the storage driver vfs"
        raise InsufficientSpace(
            f"the engine's data-root {root.path} {cause}, where BuildKit cannot run a step",
            remedy='move it to a local disk ("data-root" in /etc/docker/daemon.json), or into a file on the share '
            "(docs/reference.md#the-image)",
        )


def _space_needs(
    spec: ImageSpec,
    models: Sequence[ModelFolder],
    packed: Sequence[PackedShard],
    tmp: FolderInfo,
    root: FolderInfo,
    existing: Mapping[str, str],
) -> tuple[SpaceNeed, ...]:
    weights = sum(model.size for model in models)
    code = sum(file.size for file in spec.code)
    labels = _labels(spec, _model_digests(models))
    # The content of the existing image is in the engine's cache, too, unless a user pruned it.
    is_cached = {key: existing.get(key) == labels[key] for key in (f"{LABEL}.lock", f"{LABEL}.models")}
    stack = 0 if is_cached[f"{LABEL}.lock"] else round(spec.profile.stack_bytes * STACK_COPIES) + BASE_IMAGE_BYTES
    stack += TORCH_SOURCE_BYTES if spec.section.torch == "source" and stack else 0
    packing = 0 if is_cached[f"{LABEL}.models"] else weights
    layers = 0 if is_cached[f"{LABEL}.models"] else round(weights * WEIGHT_COPIES)
    context = 2 * code + packing + HEADROOM_BYTES
    weights_purpose = f"engine: weights, in cache and layers ({len(packed)} files)"
    return (
        SpaceNeed(folder=tmp, purpose="context: our files, weights packed", need_bytes=context),
        SpaceNeed(folder=root, purpose="engine: stack, its cache, base", need_bytes=stack + HEADROOM_BYTES),
        SpaceNeed(folder=root, purpose=weights_purpose, need_bytes=layers),
    )


def check_free_space(plan: BuildPlan, read_prunable: Callable[[], int]) -> None:
    """Check that each disk has enough free space for all its needs. Raises InsufficientSpace.

    `read_prunable` returns the bytes that a prune of the engine frees, for the message.
    """
    by_device: dict[int, list[SpaceNeed]] = {}
    for need in plan.needs:
        by_device.setdefault(need.folder.device, []).append(need)
    for needs in by_device.values():
        total, free = sum(need.need_bytes for need in needs), needs[0].folder.free_bytes
        if total > free:
            paths = tuple(dict.fromkeys(need.folder.path for need in needs))
            problem = f"{' and '.join(paths)}: {format_gb(free)} free, this build needs {format_gb(total)}"
            if plan.data_root not in paths:
                raise InsufficientSpace(problem, remedy="free some, or set --tmpdir to another disk")
            problem += f"; a prune frees {format_gb(read_prunable())}"
            raise InsufficientSpace(problem, remedy="free some: `inv vm.prune`")


def _notes(facts: EngineFacts, tmp: FolderInfo, root: FolderInfo) -> tuple[str, ...]:
    shared = " (the same file system)" if tmp.device == root.device else ""
    return (
        f"--tmpdir {tmp.path} ({tmp.kind}{shared}) holds models, our files, context and archives; "
        "the client's TMPDIR has no effect",
        f"the engine stores layers and cache in {root.path} ({root.kind}, {facts.storage_driver}); "
        "for save, load and pull it unpacks in its subfolder tmp, or in its DOCKER_TMPDIR",
    )
