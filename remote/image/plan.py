"""Decides what `inv build` does from what was observed. Pure: the plan that `--dry-run` prints is the one that runs.

`--tmpdir` decides where models, our files, the build context and archives are. The engine's own data (BuildKit's copy
of the context, its cache, the layers) is always below its data-root. So the plan adds up what each place needs and
refuses what does not fit.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from remote.image.context import CodeFile, ContextError, ModelFolder, PackedShard, digest_of_code, slots
from remote.image.engine import Client, DiskInfo, EngineEndpoint, EngineError, EngineFacts
from remote.image.workdir import home_below
from remote.jobs.transfer import FileEntry

LABEL = "qlora-fleet"
NETWORK_KINDS = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "beegfs")
# Files on these vanish with the machine, use up its memory, or have no hard links or modes.
UNFIT_KINDS = ("tmpfs", "ramfs", "vfat", "exfat", "ntfs", "ntfs3", "iso9660", "squashfs", "proc", "sysfs")
INLINE = "inline"  # of image.cache_to: what a later build needs to know goes into the image itself
# nvcc's is the first; the rest is what torch's own build needs of CUDA beside the lock's wheels.
TOOLKIT = ("cuda-minimal-build", "cuda-libraries-dev", "cuda-cupti-dev", "cuda-nvtx", "cuda-profiler-api")
TORCH_SOURCE_BYTES = 40_000_000_000  # toolkit, sources, objects and ccache; estimated, never measured here
BASE_BYTES = 900_000_000
HEADROOM_BYTES = 500_000_000  # for logs and the cache's bookkeeping, and so that the disk is never quite full
# The stack is in its stage, in the image, and as pip's cache of wheels (about 0.6 of what they unpack to).
STACK_COPIES = 2.6
# Weights are in BuildKit's copy of the context and in their layers.
WEIGHT_COPIES = 2.0


class ModelDamaged(EngineError):
    """A model's file is not what its manifest says; the message ends with the command that mends it."""


class InsufficientSpace(EngineError):
    """A place is too small or of the wrong kind; the message says which, by how much, and what to do."""


@dataclass(frozen=True, kw_only=True)
class BuildProfile:
    """An entry of image/profiles.yaml: base image, Python, what the installed stack takes in bytes, CUDA as 12-8."""

    name: str
    base: str
    python: str
    stack_bytes: int
    runs_on_cpu: bool
    cuda: str | None = None

    def toolkit(self) -> tuple[str, ...]:
        """NVIDIA's packages to compile CUDA with, nvcc's first. Raises ContextError where the profile names none."""
        if self.cuda is None:
            raise ContextError(f"image/profiles.yaml: {self.name}: cuda: not set, so nvcc's package has no name")
        return tuple(f"{name}-{self.cuda}" for name in TOOLKIT)


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """What the operator asks for: settings, our files, and the folder on the VM to work in."""

    profile: BuildProfile
    image: str
    target: str
    tmpdir: str
    code: tuple[CodeFile, ...]
    models: tuple[str, ...] = ()
    extra_packages: tuple[str, ...] = ()
    index_url: str | None = None
    pip_conf: str | None = None
    network: str = "default"
    torch: str = "wheel"
    nvcc: bool = False
    apt_snapshot: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: str | None = None
    git_sha: str = ""
    client: Client = field(default_factory=Client)

    @property
    def lock_digest(self) -> str:
        place = f"image/locks/{self.profile.name}.txt"
        return next(file.sha256 for file in self.code if file.place == place)

    @property
    def home(self) -> str:
        return home_below(self.tmpdir)

    def options(self) -> dict[str, str]:
        """The Dockerfile's arguments for what is not in every image. Raises ContextError."""
        made: dict[str, str] = {}
        if self.torch == "source":
            made["TORCH"] = "source"
        if any(file.place.startswith("extension/") for file in self.code):
            made["EXTENSION"] = "own"
        if made:
            made["TOOLKIT"] = " ".join(self.profile.toolkit())
        if self.nvcc:
            made["NVCC"] = self.profile.toolkit()[0]
        if self.apt_snapshot is not None:
            made["APT_SNAPSHOT"] = self.apt_snapshot
        return made

    def model_folders(self) -> list[tuple[str, str]]:
        """Name in the image, and folder on the VM, of every model."""
        return [(name, f"{self.home}/models/{name}") for name in (model.replace("/", "--") for model in self.models)]


@dataclass(frozen=True, kw_only=True)
class SpaceNeed:
    """What one place needs."""

    place: EngineEndpoint
    what: str
    need_bytes: int


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """One build. `argv` builds `context`, made of `code` (place and sha256, below `code_folder`) and `packed`."""

    image: str
    digest: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    base: str
    code_folder: str
    code: tuple[tuple[str, str], ...]
    packed: tuple[PackedShard, ...]
    context: str
    data_root: str
    needs: tuple[SpaceNeed, ...]
    notes: tuple[str, ...]

    def to_job(self, *, anew: bool = False) -> dict[str, Any]:
        """The document for `remote.image.vm_agent.build`. `anew` builds also where the image has this digest."""
        own = {key: value for key, value in asdict(self).items() if key not in ("needs", "notes")}
        return {**own, "label": f"{LABEL}.build", "docker": [self.argv[0]], "anew": anew}


def model_folders(look: DiskInfo) -> tuple[ModelFolder, ...]:
    """The models on the VM. Raises EngineError for one that is absent or unverified, ModelDamaged for one cut short."""
    folders = []
    for seen in look.models:
        name, folder = seen["name"], seen["folder"]
        fetch = "`inv model.fetch` brings and verifies it"
        if not seen["found"]:
            raise EngineError(f"image.models: {name}: not on the VM at {folder}; {fetch}")
        if seen["sha256"] is None:
            raise EngineError(
                f"image.models: {folder} has no readable manifest.json, so it may be half a model; {fetch}"
            )
        for path, has, size, _ in seen["files"]:
            if has is None:
                raise EngineError(f"image.models: {folder}/{path}: not there; {fetch}")
            if has != size:
                raise ModelDamaged(f"image.models: {folder}/{path}: {has} bytes, its manifest says {size}; {fetch}")
        files = tuple(FileEntry(path=path, size=size, sha256=sha256) for path, _, size, sha256 in seen["files"])
        folders.append(ModelFolder(name=name, folder=folder, files=files, manifest_sha256=seen["sha256"]))
    return tuple(folders)


def plan(wanted: ImageSpec, facts: EngineFacts, look: DiskInfo, existing: Mapping[str, str]) -> BuildPlan:
    """The build that makes `wanted`. `existing` are the labels of the image that has its name now.

    Raises CannotFit, EngineError for incomplete models, and ContextError.
    """
    models = model_folders(look)
    packed = slots(models)
    tmp, root = look.place(wanted.tmpdir), look.place(facts.data_root)
    check_kinds(tmp, root, facts)
    labels = _labels(wanted, _digests(models))
    digest = labels[f"{LABEL}.build"]
    needs = _needs(wanted, models, packed, tmp, root, existing)
    check_room(needs)
    return BuildPlan(
        image=wanted.image,
        digest=digest,
        argv=_argv(wanted, labels),
        environment=wanted.client.environment,
        base=wanted.profile.base,
        code_folder=f"{wanted.home}/code/{digest_of_code(wanted.code)[:16]}",
        code=tuple((file.place, file.sha256) for file in wanted.code),
        packed=packed,
        context=f"{wanted.home}/context",
        data_root=facts.data_root,
        needs=needs,
        notes=_notes(facts, tmp, root, look),
    )


def is_built(wanted: ImageSpec, look: DiskInfo, existing: Mapping[str, str]) -> bool:
    """Whether the image that has the name now holds exactly what is wanted."""
    return existing.get(f"{LABEL}.build") == _labels(wanted, _digests(model_folders(look)))[f"{LABEL}.build"]


def outdated(wanted: ImageSpec, existing: Mapping[str, str]) -> tuple[str, ...]:
    """What an image with these labels was built of that is not what `wanted` names now; empty where nothing is.

    For its models it is asked which they are, not what is in them, and its commit does not count: both may be looked at
    without the VM's folders, and an image of another commit with the same files is the same image.
    """
    try:
        models: dict[str, str] = dict(json.loads(existing.get(f"{LABEL}.models") or "{}"))
    except (ValueError, TypeError):
        models = {}
    revision = existing.get("org.opencontainers.image.revision", "")
    labels = _labels(replace(wanted, git_sha=revision), models)
    parts = {
        "its profile": existing.get(f"{LABEL}.profile") == labels[f"{LABEL}.profile"],
        "its base image": existing.get("org.opencontainers.image.base.name") == wanted.profile.base,
        "its packages": existing.get(f"{LABEL}.lock") == wanted.lock_digest,
        "its models": models.keys() == {name for name, _ in wanted.model_folders()},
    }
    if all(parts.values()) and existing.get(f"{LABEL}.build") != labels[f"{LABEL}.build"]:
        return ("its code, or a setting of it",)
    return tuple(name for name, same in parts.items() if not same)


def _digests(models: Sequence[ModelFolder]) -> dict[str, str]:
    return {model.name: model.manifest_sha256 for model in models}


def _labels(wanted: ImageSpec, model_digests: Mapping[str, str]) -> dict[str, str]:
    labels = {
        "org.opencontainers.image.title": LABEL,
        "org.opencontainers.image.revision": wanted.git_sha,
        "org.opencontainers.image.base.name": wanted.profile.base,
        f"{LABEL}.profile": wanted.profile.name,
        f"{LABEL}.lock": wanted.lock_digest,
        f"{LABEL}.models": json.dumps(model_digests, sort_keys=True),
    }
    content = {
        "labels": labels,
        "code": digest_of_code(wanted.code),
        "python": wanted.profile.python,
        "target": wanted.target,
        "extra_packages": wanted.extra_packages,
        **({"options": options} if (options := wanted.options()) else {}),
    }
    return {**labels, f"{LABEL}.build": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _argv(wanted: ImageSpec, labels: Mapping[str, str]) -> tuple[str, ...]:
    context = f"{wanted.home}/context"
    arguments = {
        "BASE_IMAGE": wanted.profile.base,
        "PYTHON_VERSION": wanted.profile.python,
        "PROFILE": wanted.profile.name,
        "EXTRA_PACKAGES": " ".join(wanted.extra_packages),
        "GIT_SHA": wanted.git_sha,
        "LOCK_DIGEST": wanted.lock_digest,
        **({"PIP_INDEX_URL": wanted.index_url} if wanted.index_url is not None else {}),
        **wanted.options(),
        **({"BUILDKIT_INLINE_CACHE": "1"} if wanted.cache_to == INLINE else {}),
    }
    cache_to = () if wanted.cache_to in (None, INLINE) else (f"type=registry,ref={wanted.cache_to},mode=max",)
    return (
        *(wanted.client.program, "build", "--progress=plain", "--file", f"{context}/image/Dockerfile"),
        *("--target", wanted.target, "--tag", wanted.image, "--network", wanted.network),
        *(word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")),
        *(word for name, value in labels.items() for word in ("--label", f"{name}={value}")),
        *(("--secret", f"id=pip.conf,src={wanted.pip_conf}") if wanted.pip_conf is not None else ()),
        *(word for name in wanted.cache_from for word in ("--cache-from", name)),
        *(word for name in cache_to for word in ("--cache-to", name)),
        context,
    )


def check_kinds(tmp: EngineEndpoint, root: EngineEndpoint, facts: EngineFacts) -> None:
    """Raises CannotFit where a build's files cannot be kept on these file systems."""
    if not tmp.exists or not tmp.is_folder:
        raise InsufficientSpace(f"--tmpdir {tmp.path}: no such folder on the VM; mount the share there, or make it")
    if not tmp.writable:
        raise InsufficientSpace(
            f"--tmpdir {tmp.path}: this user may not write there; type on the VM: sudo chown $USER {tmp.path}"
        )
    if tmp.kind in UNFIT_KINDS:
        raise InsufficientSpace(
            f"--tmpdir {tmp.path}: is on {tmp.kind}, which cannot keep a build's files; name one on a disk or on NFS"
        )
    if root.kind in NETWORK_KINDS or facts.storage_driver == "vfs":
        why = f"on {root.kind}" if root.kind in NETWORK_KINDS else "kept by the storage driver vfs"
        raise InsufficientSpace(
            f"the engine's data-root {root.path} is {why}: BuildKit cannot run a step there; move it to a local disk "
            f'("data-root" in /etc/docker/daemon.json), or type `inv vm.engine --tmpdir {tmp.path}`: another engine, '
            "with its data in an ext4 file on the share"
        )


def _needs(
    wanted: ImageSpec,
    models: Sequence[ModelFolder],
    packed: Sequence[PackedShard],
    tmp: EngineEndpoint,
    root: EngineEndpoint,
    existing: Mapping[str, str],
) -> tuple[SpaceNeed, ...]:
    weights = sum(model.size for model in models)
    ours = sum(file.size for file in wanted.code)
    labels = _labels(wanted, _digests(models))
    # What the image of that name holds is in the engine's cache, too, unless somebody pruned it.
    same = {key: existing.get(key) == labels[key] for key in (f"{LABEL}.lock", f"{LABEL}.models")}
    stack = 0 if same[f"{LABEL}.lock"] else round(wanted.profile.stack_bytes * STACK_COPIES) + BASE_BYTES
    stack += TORCH_SOURCE_BYTES if wanted.torch == "source" and stack else 0
    packing = 0 if same[f"{LABEL}.models"] else weights
    layers = 0 if same[f"{LABEL}.models"] else round(weights * WEIGHT_COPIES)
    return (
        SpaceNeed(place=tmp, what="context: our files, weights packed", need_bytes=2 * ours + packing + HEADROOM_BYTES),
        SpaceNeed(place=root, what="engine: stack, its cache, base", need_bytes=stack + HEADROOM_BYTES),
        SpaceNeed(place=root, what=f"engine: weights, in cache and layers ({len(packed)} files)", need_bytes=layers),
    )


def check_room(needs: Sequence[SpaceNeed]) -> None:
    """Raises CannotFit where a disk has less free than all that is needed there."""
    by_device: dict[int, list[SpaceNeed]] = {}
    for need in needs:
        by_device.setdefault(need.place.device, []).append(need)
    for asked in by_device.values():
        total, place = sum(need.need_bytes for need in asked), asked[0].place
        if total > place.free_bytes:
            places = " and ".join(dict.fromkeys(need.place.path for need in asked))
            raise InsufficientSpace(
                f"{places}: {place.free_bytes / 1e9:.1f} GB free, this build needs {total / 1e9:.1f} GB there; free "
                f"some (`docker builder prune` on the VM drops old cache); `inv vm.engine` puts an engine on the share"
            )


def _notes(facts: EngineFacts, tmp: EngineEndpoint, root: EngineEndpoint, look: DiskInfo) -> tuple[str, ...]:
    shared = " (the same file system)" if tmp.device == root.device else ""
    unpack = look.docker_tmpdir or "a folder tmp there (DOCKER_TMPDIR is not set, or may not be read)"
    return (
        f"--tmpdir {tmp.path} ({tmp.kind}{shared}) takes models, our files, context and archives; "
        "the client's TMPDIR has no effect",
        f"the engine keeps layers and cache in {root.path} ({root.kind}, {facts.storage_driver}); "
        f"for save, load and pull it unpacks in {unpack}",
    )
