"""On the build VM: assembles the plan's context and has the engine build it."""

import errno
import hashlib
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from remote.image.vm_agent.client import ask, follow, reason
from remote.image.vm_agent.job import Failed, Watcher, failing, write_json
from remote.image.vm_agent.secure_dir import ForeignOwner, own_folder
from remote.jobs.host_agent.files import digest_of
from remote.jobs.host_agent.util import read_json

FULL_BYTES = 64 << 20  # with less left, the engine's disk is what failed
RECORD_FILE = "packed.json"  # beside the context: which archive was packed of which files


def act(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return build(watcher, job)
    finally:
        if job.get("login"):
            shutil.rmtree(job["login"], ignore_errors=True)


def build(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    docker = [*job["docker"], *(("--config", job["login"]) if job.get("login") else ())]
    environment = job["environment"]
    there = ask(docker, environment, "image", "inspect", job["image"])
    labels = {} if there is None else there[0]["Config"].get("Labels") or {}
    if there is not None and labels.get(job["label"]) == job["digest"] and not job["anew"]:
        watcher.say(f"{job['image']}: another job has just built this image", "built")
        return {"image_id": there[0]["Id"], "size_bytes": there[0]["Size"], "base_digests": []}
    watcher.disk = job["data_root"]
    try:
        with failing(job["context"]):
            assemble(watcher, job)
    except ForeignOwner as error:
        raise Failed("refused", str(error)) from None
    # A base that is here is used as it is: asking its registry would make every build need that registry.
    if ask(docker, environment, "image", "inspect", job["base"]) is None:
        watcher.say(f"pulling {job['base']}", "base image")
        code, lines = follow(watcher, [*docker, "pull", job["base"]], environment)
        if code != 0:
            raise reason(lines, code)
    code, lines = follow(watcher, [*docker, *job["argv"][1:]], environment)
    if code != 0:
        watcher.look_at_disk()
        failure = reason(lines, code)
        if failure.kind == "failed" and watcher.least_free_bytes < FULL_BYTES:
            left = watcher.least_free_bytes / 1e6
            raise Failed("full", f"no space left on device: {job['data_root']} was down to {left:.0f} MB: {failure}")
        raise failure
    made = ask(docker, environment, "image", "inspect", job["image"])
    base = ask(docker, environment, "image", "inspect", job["base"])
    if made is None:
        raise Failed("failed", f"the build succeeded, but the engine has no image {job['image']}")
    return {
        "image_id": made[0]["Id"],
        "size_bytes": made[0]["Size"],
        "base_digests": (base[0].get("RepoDigests") or []) if base else [],
    }


def assemble(watcher: Watcher, job: dict[str, Any]) -> None:
    """Make the context folder hold exactly the plan's files: ours, linked, and a tar archive for each slot."""
    context = Path(job["context"])
    own_folder(context.parent)
    if context.is_symlink():
        raise ForeignOwner(f"{context}: is a link; look at it, remove it, then the same again")
    ours = {context / place: source for place, source in _sources(job).items()}
    slots: dict[str, list[dict[str, Any]]] = {}
    for entry in job["packed"]:
        slots.setdefault(f"{entry['slot']:02d}.tar", []).append(entry)
    archives = {context / "models" / name: entries for name, entries in slots.items()}
    folders = {context, context / "wheels", *(path.parent for path in archives)}
    folders |= {parent for path in ours for parent in path.parents if context in parent.parents}
    _clear(context, ours, archives, folders)
    for folder in sorted(folders):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
    watcher.say(f"context: {len(ours)} files and {len(archives)} slots in {context}", "context")
    for path, source in ours.items():
        source.chmod(0o644)  # the image's user has to read them, whatever the umask was
        os.utime(source, (0, 0))
        if not path.exists():
            _link(source, path)
    record_file = context.parent / RECORD_FILE
    record = read_json(record_file)
    record = record if isinstance(record, dict) else {}
    for path, entries in archives.items():
        stamps = [[entry["place"], entry["sha256"], *_stamp(Path(entry["source"]))] for entry in entries]
        if _is_packed(watcher, path, record.get(path.name), stamps):
            continue
        watcher.say(f"packing {path.name}: {', '.join(entry['place'] for entry in entries)}", "packing")
        record.pop(path.name, None)
        write_json(record_file, record)
        record[path.name] = [*_pack(path, entries), stamps]
        write_json(record_file, record)
    code_folder = Path(job["code_folder"])
    for old in code_folder.parent.iterdir():
        if old != code_folder:
            shutil.rmtree(old, ignore_errors=True)


def _sources(job: dict[str, Any]) -> dict[str, Path]:
    """Place in the context to file on this machine; verifies each file."""
    sources = {}
    for place, sha256 in job["code"]:
        sources[place] = source = Path(job["code_folder"], place)
        if not source.is_file() or digest_of(source)[1] != sha256:
            raise Failed("changed", f"{source}: is not what was sent; `inv build` sends it again")
    return sources


def _clear(context: Path, ours: dict[Path, Path], archives: dict[Path, Any], folders: set[Path]) -> None:
    """Remove what an earlier build left and this one does not use."""
    for path in sorted(context.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if path not in folders:
                path.rmdir()
        elif path not in archives and not (path in ours and os.path.samestat(path.lstat(), ours[path].stat())):
            path.unlink()


def _is_packed(watcher: Watcher, path: Path, known: Any, stamps: list[Any]) -> bool:
    """Whether the archive holds these files and is, by its digest, what was packed: its size alone shows no damage."""
    if not path.is_file() or not isinstance(known, list) or len(known) != 3 or known[2] != stamps:
        return False
    watcher.say(f"verifying {path.name}: {known[0] / 1e9:.2f} GB", "verifying")
    if list(digest_of(path)) == known[:2]:
        return True
    watcher.say(f"{path}: is not what was packed; packing it again")
    return False


def _stamp(source: Path) -> list[int]:
    """Shows that a file is still the one that was packed, without reading it again."""
    try:
        now = source.stat()
    except FileNotFoundError:
        raise Failed("refused", f"{source}: is gone; `inv model.fetch` brings it again") from None
    return [now.st_ino, now.st_size, now.st_mtime_ns]


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError as error:  # not every share has hard links
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        shutil.copy2(source, path)


def _pack(path: Path, entries: list[dict[str, Any]]) -> tuple[int, str]:
    """Write a slot's archive: the same bytes for the same files, whoever owns them; its size and sha256.

    Each file is verified on the way.
    """
    part = path.with_name(f"{path.name}.part")
    folders = sorted(
        {parent for entry in entries for parent in PurePosixPath(entry["place"]).parents} - {PurePosixPath(".")}
    )
    try:
        with part.open("wb") as file:
            whole = _Hashing(file)
            with tarfile.open(fileobj=cast("IO[bytes]", whole), mode="w", format=tarfile.GNU_FORMAT) as tar:
                for folder in folders:
                    head = tarfile.TarInfo(str(folder))
                    head.type, head.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(head)
                for entry in entries:
                    _add(tar, entry)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return whole.size, whole.digest.hexdigest()


def _add(tar: tarfile.TarFile, entry: dict[str, Any]) -> None:
    head = tarfile.TarInfo(entry["place"])
    head.size, head.mode = entry["size"], 0o644
    with Path(entry["source"]).open("rb") as content:
        reader = _Hashing(content)
        if os.fstat(content.fileno()).st_size == entry["size"]:
            tar.addfile(head, cast("IO[bytes]", reader))
    if reader.digest.hexdigest() != entry["sha256"]:
        raise Failed("refused", f"{entry['source']}: its sha256 is not its manifest's; `inv model.fetch` repairs it")


class _Hashing:
    """A file that is hashed while it is read or written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def read(self, size: int) -> bytes:
        return self._hashed(self._file.read(size))

    def write(self, piece: bytes) -> int:
        return self._file.write(self._hashed(piece))

    def tell(self) -> int:
        return self.size

    def _hashed(self, piece: bytes) -> bytes:
        self.digest.update(piece)
        self.size += len(piece)
        return piece
