"""On the build VM: an image as one compressed file with its checksum beside it, and back.

Both exit codes count, the client's and the compressor's: when the engine fails, `docker save | gzip` alone exits 0 and
leaves a valid archive of nothing.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import os
import re
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any, cast

from remote.image.vm_agent.client import ANSWER_BYTES, ask, bounded, reason, started
from remote.image.vm_agent.job import Failed, Watcher, failing
from remote.jobs.host_agent.files import PIECE

# The first that is installed is used. zstd and pigz use every core; zstd at level 3 also makes smaller files than gzip.
COMPRESSORS = (
    ("zstd", ("-T0", "-3", "-q", "-c"), ".tar.zst"),
    ("pigz", ("-c",), ".tar.gz"),
    ("gzip", ("-c",), ".tar.gz"),
)
DECOMPRESSORS = {".zst": ("zstd",), ".gz": ("pigz", "gzip")}
NOTE = "# image "  # sha256sum --check ignores such lines
MEGABYTES_BETWEEN_WORDS = 512
CHECKSUM_BYTES = 4096
HELD_PIECES = 2  # the last one may be short


def act(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    with failing(job["path"]):
        return archive(watcher, job) if job["action"] == "archive" else load(watcher, job)


def archive(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    """Save the image into the folder `path`, unless a file of this image is there with its checksum."""
    docker, environment = job["docker"], job["environment"]
    images = ask(docker, environment, "image", "inspect", job["image"])
    if images is None:
        raise Failed("usage", f"the engine has no image {job['image']}; `inv build` makes it")
    image_id = images[0]["Id"]
    if image_id != job["image_id"]:
        raise Failed("changed", f"{job['image']} was built anew since this was typed")
    name, options, ending = next(entry for entry in COMPRESSORS if shutil.which(entry[0]))
    path = Path(job["path"], re.sub(r"[^A-Za-z0-9._-]", "-", job["image"]) + ending)
    checksum = path.with_name(f"{path.name}.sha256")
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_ours(path) and is_ours(checksum) and read_checksum(checksum)[1] == image_id:
        watcher.say(f"{path}: holds this image already", "archive")
        return {"path": str(path), "size_bytes": path.stat().st_size, "image_id": image_id, "compressor": None}
    checksum.unlink(missing_ok=True)
    part = path.with_name(f".{path.name}.part")
    watcher.say(f"docker save {job['image']} | {name} > {path}", "archive")
    try:
        digest = pipe(watcher, [*docker, "save", job["image"]], [name, *options], environment, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    part = checksum.with_name(f".{checksum.name}.part")
    with fresh(part) as file:
        file.write(f"{digest}  {path.name}\n{NOTE}{image_id}\n".encode())
    os.replace(part, checksum)
    watcher.say(f"{path}: {path.stat().st_size / 1e9:.2f} GB, sha256 {digest}", "archive")
    return {"path": str(path), "size_bytes": path.stat().st_size, "image_id": image_id, "compressor": name}


def load(watcher: Watcher, job: dict[str, Any]) -> dict[str, Any]:
    """Load the archive `path`, which is read once; one whose checksum is wrong never reaches the engine whole."""
    docker, environment = job["docker"], job["environment"]
    path = Path(job["path"])
    checksum = path.with_name(f"{path.name}.sha256")
    if not path.is_file() or not checksum.is_file():
        absent = checksum if path.is_file() else path
        raise Failed("refused", f"{absent}: not found; an archive without its checksum may be half of one")
    digest, image_id = read_checksum(checksum)
    program = next((name for name in DECOMPRESSORS.get(path.suffix, ()) if shutil.which(name)), None)
    if program is None:
        raise Failed("failed", f"{path}: nothing here can unpack {path.suffix or 'it'}; install zstd")
    watcher.say(f"{program} -dc {path} | docker load", "load")
    with path.open("rb") as file, subprocess.Popen([program, "-dc"], stdin=PIPE, stdout=PIPE, stderr=PIPE) as unpack:
        output, errors = cast("IO[bytes]", unpack.stdout), cast("IO[bytes]", unpack.stderr)
        feeder = Feeder(file, cast("IO[bytes]", unpack.stdin), digest)
        feeder.start()
        try:
            loaded = bounded([*docker, "load"], environment, stdin=output)
        finally:
            output.close()
            feeder.join()
        complaint = errors.read(ANSWER_BYTES).decode(errors="replace")
    lines = (loaded.stdout + loaded.stderr).decode(errors="replace").splitlines()
    for line in lines:
        watcher.say(line)
    if feeder.failure is not None:
        raise feeder.failure
    if not feeder.is_whole:
        raise Failed("refused", f"{path}: its sha256 is not the one in {checksum.name}; copy it there again")
    if loaded.returncode != 0:  # first: an unpacker whose reader has gone fails, too
        raise reason(lines, loaded.returncode)
    if unpack.returncode != 0:
        raise Failed("failed", f"{program}: {complaint.strip() or f'exit {unpack.returncode}'}")
    if image_id is not None and ask(docker, environment, "image", "inspect", image_id) is None:
        raise Failed("failed", f"{path} was loaded, but the engine has no image {image_id}")
    return {"path": str(path), "image_id": image_id}


class Feeder(threading.Thread):
    """Hands a file on and hashes it.

    Its last pieces wait until all of it has the sha256 `wanted`: they hold the image's manifest, without which the
    engine keeps nothing of what it was given.
    """

    def __init__(self, file: IO[bytes], into: IO[bytes], wanted: str | None) -> None:
        super().__init__(daemon=True)
        self._file, self._into, self._wanted = file, into, wanted
        self.is_whole = False
        self.failure: OSError | None = None

    def run(self) -> None:
        digest, held = hashlib.sha256(), collections.deque[bytes]()
        try:
            while piece := self._file.read(PIECE):
                digest.update(piece)
                held.append(piece)
                if len(held) > HELD_PIECES:
                    self._hand_on(held.popleft())
            self.is_whole = digest.hexdigest() == self._wanted
            for piece in held if self.is_whole else ():
                self._hand_on(piece)
        except OSError as error:
            self.failure = error
        finally:
            with contextlib.suppress(BrokenPipeError):
                self._into.close()

    def _hand_on(self, piece: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody reads any more, and says why; the checksum still counts
            self._into.write(piece)


def read_checksum(path: Path) -> tuple[str | None, str | None]:
    """The archive's sha256 and the image it holds; None for what the file lacks."""
    with path.open("rb") as file:
        text = file.read(CHECKSUM_BYTES).decode(errors="replace")
    digest, image = re.search(r"^([0-9a-f]{64})  ", text), re.search(rf"^{NOTE}(\S+)$", text, re.MULTILINE)
    return (digest[1] if digest else None, image[1] if image else None)


def is_ours(path: Path) -> bool:
    """A file that this user made: what somebody else put into a shared folder is not taken for an archive of ours."""
    with contextlib.suppress(OSError):
        seen = path.lstat()
        return stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid()
    return False


def fresh(path: Path) -> IO[bytes]:
    """A new file at `path`, open for writing; never one that somebody put there, and never what a link points to."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb")


def pipe(watcher: Watcher, source: list[str], filter_: list[str], environment: dict[str, str], into: Path) -> str:
    """Run `source | filter_ > into` and return the sha256 of what was written. Raises Failed if either fails."""
    digest, size, complaint = hashlib.sha256(), 0, bytearray()
    save = started(source, environment)
    squeeze = subprocess.Popen(filter_, stdin=save.stdout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    cast("IO[bytes]", save.stdout).close()  # with ours open, the engine's client would not notice a dead filter
    errors = cast("IO[bytes]", save.stderr)

    def listen() -> None:
        while piece := errors.read(1 << 12):
            del complaint[: -1 << 16]
            complaint.extend(piece)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        with fresh(into) as file:
            while piece := cast("IO[bytes]", squeeze.stdout).read(PIECE):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
                if size % (MEGABYTES_BETWEEN_WORDS * PIECE) < len(piece):
                    watcher.say(f"{size / 1e9:.2f} GB written")
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        for process in (squeeze, save):
            process.kill()
        raise
    finally:
        cast("IO[bytes]", squeeze.stdout).close()
        codes = (save.wait(), squeeze.wait())
        listener.join()
        errors.close()
    if codes[0] != 0:
        raise reason(complaint.decode(errors="replace").splitlines(), codes[0])
    if codes[1] != 0:
        raise Failed("failed", f"{filter_[0]} ended with exit code {codes[1]}")
    return digest.hexdigest()
