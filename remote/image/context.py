"""What goes into an image's build context. It is decided here and assembled on the build VM.

Our own files go from the laptop into a folder that their digest names. Weights are on the VM already and are packed
into numbered slots: one shard a slot, one slot a layer (see image/Dockerfile). Pure, except that it reads the project's
folder.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.jobs.host_agent.files import digest_of
from remote.jobs.transfer import FileEntry

SLOTS = 16  # as many as the Dockerfile's stage `models` copies
SHARD_BYTES = 64 << 20  # weights and files of this size have a slot of their own; a model's other files share one
LARGEST_LAYER_BYTES = 8_000_000_000  # the most that registries were seen to take
DOCKERFILE = "image/Dockerfile"
_IMAGE_FILES = (DOCKERFILE, "image/Dockerfile.dockerignore", "image/selfcheck.py", "image/torch.sh")
_NO_SOURCES = frozenset({"__pycache__", ".git", "build", "dist"})


class ContextError(ValueError):
    """The project's folder or the models make no build context; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class CodeFile:
    """One of our files: where it is on the laptop, its place in the context, its size in bytes and sha256."""

    source: Path
    place: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A model on the VM: `name` in the image, `folder` there, what it holds, and the sha256 of its manifest."""

    name: str
    folder: str
    files: tuple[FileEntry, ...]
    manifest_sha256: str

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, kw_only=True)
class PackedShard:
    """A file of a model in its slot: `source` on the VM, `place` in the image."""

    slot: int
    source: str
    place: str
    size: int
    sha256: str


def code_files(
    root: Path, profile: str, wheels: Path | None = None, extension: Path | None = None
) -> tuple[CodeFile, ...]:
    """The project's files that a build of `profile` reads, the wheels for a build without an index, an extension."""
    places = {place: root / place for place in _IMAGE_FILES}
    places |= {f"image/locks/{profile}{end}": root / f"image/locks/{profile}{end}" for end in (".in", ".txt")}
    places |= {str(path.relative_to(root)): path for path in bench_files(root)}
    if wheels is not None:
        files = sorted(wheels.glob("*.whl"))
        if not files:
            raise ContextError(
                f"image.wheels: {wheels}: no wheels in it; fill it with `pip download --dest {wheels} ...`"
            )
        places |= {f"wheels/{path.name}": path for path in files}
    if extension is not None:
        places |= _extension_files(extension)
    for place, path in places.items():
        if not path.is_file():
            raise ContextError(f"{place}: not found; the image cannot be built without it")
    return tuple(
        CodeFile(source=path, place=place, size=size, sha256=sha256)
        for place, path in places.items()
        for size, sha256 in [digest_of(path)]
    )


def _extension_files(folder: Path) -> dict[str, Path]:
    """The sources of an extension. Raises ContextError for a folder that pip could not build, or with links out of it:
    somebody else may have written it, and its setup.py sees in the build what they lead to here."""
    if not any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")):
        raise ContextError(
            f"image.extension: {folder}: no pyproject.toml and no setup.py in it; name a package's folder"
        )
    found = (path for path in sorted(folder.rglob("*")) if not _NO_SOURCES & set(path.relative_to(folder).parts))
    files = [path for path in found if path.is_file()]
    for path in files:
        if folder.resolve() not in (real := path.resolve()).parents:
            raise ContextError(
                f"image.extension: {path}: leads out of the folder, to {real}; put a copy there if meant"
            )
    return {f"extension/{path.relative_to(folder).as_posix()}": path for path in files}


def bench_files(root: Path) -> list[Path]:
    """Every file of bench that the image carries: code, and the tables beside it."""
    return sorted(path for path in (root / "bench").rglob("*") if path.suffix in (".py", ".json", ".cu"))


def digest_of_code(files: Iterable[CodeFile]) -> str:
    """One sha256 over places and contents."""
    lines = sorted(f"{file.sha256}  {file.place}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def slots(models: Sequence[ModelFolder]) -> tuple[PackedShard, ...]:
    """Every file of every model in its slot, in the order of the models: one more model at the end moves none.

    Raises ContextError for a file too large for a layer, and for more shards than slots.
    """
    packed: list[PackedShard] = []
    slot = 0
    for model in models:
        shards = [file for file in model.files if file.path.endswith(".safetensors") or file.size >= SHARD_BYTES]
        small = [file for file in model.files if file not in shards]
        groups = [*([shard] for shard in sorted(shards, key=lambda file: file.path)), *([small] if small else [])]
        for group in groups:
            packed += [_packed(slot, model, file) for file in sorted(group, key=lambda file: file.path)]
            slot += 1
    if slot > SLOTS:
        names = ", ".join(model.name for model in models)
        raise ContextError(
            f"image.models: {names} are {slot} layers, the Dockerfile has {SLOTS}; leave one out, or add lines "
            f"to its stage `models` and raise SLOTS in remote/image/context.py"
        )
    return tuple(packed)


def _packed(slot: int, model: ModelFolder, file: FileEntry) -> PackedShard:
    if file.size > LARGEST_LAYER_BYTES:
        raise ContextError(
            f"{model.folder}/{file.path}: {file.size / 1e9:.1f} GB in one file is more than a layer may have "
            f"({LARGEST_LAYER_BYTES / 1e9:.0f} GB); save the model in smaller shards"
        )
    place = f"models/{model.name}/{file.path}"
    return PackedShard(slot=slot, source=f"{model.folder}/{file.path}", place=place, size=file.size, sha256=file.sha256)
