"""The files of an image's build context, decided here and assembled on the build VM.

Our own files go from the laptop into a folder that is named after their digest. Weights are already on the VM and are
packed into numbered slots: one shard per slot, one slot per layer (see image/Dockerfile). Pure, except that it reads
the project's folder.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.units import format_gb
from remote.agent.shared.files import hash_file
from remote.hosts.host_protocol import HostError
from remote.jobs.transfer import FileEntry

SLOTS = 16  # the number that the Dockerfile's stage `models` copies
OWN_SLOT_MIN_BYTES = 64 << 20  # weights and files of this size get their own slot; a model's other files share one
MAX_LAYER_BYTES = 8_000_000_000  # the largest layer that registries were seen to accept
DOCKERFILE = "image/Dockerfile"
_IMAGE_FILES = (DOCKERFILE, "image/Dockerfile.dockerignore", "image/selfcheck.py", "image/torch.sh")


class ContextError(HostError):
    """Error raised if the project's folder or the models do not make a build context; the message has the remedy."""


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """One of our files: `source` on the laptop, `path` in the context, size in bytes and sha256."""

    source: Path
    path: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A model on the VM: `name` in the image, `folder` on the VM, its files, and the sha256 of its manifest."""

    name: str
    folder: str
    files: tuple[FileEntry, ...]
    manifest_sha256: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class PackedShard:
    """A model's file in its slot: `source` on the VM, `place` is its path in the image."""

    slot: int
    source: str
    place: str  # vocabulary: key of the job document
    size: int
    sha256: str


def code_files(root: Path, profile: str, wheels: Path | None = None) -> tuple[CodeFile, ...]:
    """List the files for a build of `profile`: the project's, and wheels for a build without an index."""
    sources = {path: root / path for path in _IMAGE_FILES}
    locks = [f"image/locks/{name}" for name in (f"{profile}.in", f"{profile}.txt")]
    sources |= {path: root / path for path in locks}
    kinds = (".py", ".json", ".cu")  # code and data tables
    bench = sorted(path for path in (root / "bench").rglob("*") if path.suffix in kinds)
    sources |= {str(source.relative_to(root)): source for source in bench}
    if wheels is not None:
        files = sorted(wheels.glob("*.whl"))
        if not files:
            raise ContextError(
                f"image.wheels: {wheels}: contains no wheels", remedy=f"fill it with `pip download --dest {wheels} ...`"
            )
        sources |= {f"wheels/{wheel.name}": wheel for wheel in files}
    for path, source in sources.items():
        if not source.is_file():
            raise ContextError(f"{path}: not found", remedy="the image cannot be built without it")
    return tuple(
        CodeFile(source=source, path=path, size=size, sha256=sha256)
        for path, source in sources.items()
        for size, sha256 in [hash_file(source)]
    )


def digest_of_code(files: Iterable[CodeFile]) -> str:
    """Return one sha256 over paths and contents."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def assign_slots(models: Sequence[ModelFolder]) -> tuple[PackedShard, ...]:
    """Assign a slot to each file of each model, in the order of the models: a model added at the end moves no other.

    Raises ContextError for a file too large for a layer, and for more shards than slots.
    """
    packed: list[PackedShard] = []
    slot = 0
    for model in models:
        shards = [file for file in model.files if file.path.endswith(".safetensors") or file.size >= OWN_SLOT_MIN_BYTES]
        small = [file for file in model.files if file not in shards]
        groups = [*([shard] for shard in sorted(shards, key=lambda file: file.path)), *([small] if small else [])]
        for group in groups:
            packed += [_to_shard(slot, model, file) for file in sorted(group, key=lambda file: file.path)]
            slot += 1
    if slot > SLOTS:
        names = ", ".join(model.name for model in models)
        raise ContextError(
            f"image.models: {names} need {slot} layers, the Dockerfile has {SLOTS}",
            remedy="remove a model, or add lines to its stage `models` and raise SLOTS in remote/image/context.py",
        )
    return tuple(packed)


def _to_shard(slot: int, model: ModelFolder, file: FileEntry) -> PackedShard:
    if file.size > MAX_LAYER_BYTES:
        raise ContextError(
            f"{model.folder}/{file.path}: {format_gb(file.size)} in one file exceeds the limit for a layer "
            f"({format_gb(MAX_LAYER_BYTES, 0)})",
            remedy="save the model in smaller shards",
        )
    path = f"models/{model.name}/{file.path}"
    return PackedShard(slot=slot, source=f"{model.folder}/{file.path}", place=path, size=file.size, sha256=file.sha256)
