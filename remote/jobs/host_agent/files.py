"""Files that leave this host and files that come to it. Both sides verify a file by its sha256.

A file on its way is kept beside its place under a name that ends in .part; such files, links and special files are
never sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

from remote.jobs.host_agent.util import CutShort, Refusal, inside, line_of, read_exactly, say, sync_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from typing import Any, BinaryIO

    AnyPath = str | os.PathLike[str]

PIECE = 1 << 20
SIGN_OF_LIFE_SEC = 5.0
LONGEST_NAME = 255  # bytes; of ext4, xfs, tmpfs and NFS alike


def digest_of(path: AnyPath) -> tuple[int, str]:
    """Size in bytes and sha256 of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        for piece in pieces(file):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def pieces(file: BinaryIO, size: int | None = None) -> Iterator[memoryview]:
    """The next `size` bytes of an unbuffered file (None: to its end). A piece is good until the next one is taken."""
    buffer = memoryview(bytearray(PIECE))
    while size is None or size > 0:
        got = file.readinto(buffer if size is None else buffer[: min(PIECE, size)])  # type: ignore[attr-defined]
        if not got:
            return
        yield buffer[:got]
        size = None if size is None else size - got


def part_of(path: AnyPath, tag: str = "") -> str:
    """The partial file of `path`. A `tag` keeps versions apart."""
    folder, name = os.path.split(path)
    end = f".{tag}.part" if tag else ".part"
    if len(os.fsencode(name)) + len(end) + 1 > LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, f".{name}{end}")


def names_below(root: AnyPath) -> Iterator[str]:
    """The regular files below `root` that a transfer moves, in a stable order; none where there is no such folder."""

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error  # its files would be left out silently

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if is_movable(path):
                yield os.path.relpath(path, root)


def is_movable(path: AnyPath) -> bool:
    """Whether a transfer moves this file: regular, no link, no partial file."""
    return not os.fspath(path).endswith(".part") and os.path.isfile(path) and not os.path.islink(path)


def send(arguments: dict[str, Any]) -> None:
    """Files below `root` in one stream, each followed by its digest, so that no file is read twice.

    Standard input has what is wanted and what the caller has: {"only": names or null, "without": names, "here":
    {name: {"whole": [size, sha256], "part": [size, sha256]}}}. The answer is the line {"files": names}; for each of
    them either {"same": true} or {"size", "from"}, the bytes from there on and {"sha256"} of the whole file, or
    {"changed": true}. What the caller has counts only if this host's own bytes have the same digest.
    In long silences come lines of {"busy": true}.
    """
    asked = json.loads(read_exactly(arguments["stdin_bytes"]))
    root, without = arguments["root"], set(asked["without"])
    if asked["only"] is None:
        names = [name for name in names_below(root) if name not in without]
    else:
        names = [name for name in asked["only"] if name not in without and is_movable(inside(root, name))]
    sys.stdout.buffer.write(line_of({"files": names}))
    for name in names:
        send_file(name, inside(root, name), asked["here"].get(name, {}))
    sys.stdout.buffer.flush()


def send_file(name: str, path: str, known: dict[str, list[Any]]) -> None:
    write = sys.stdout.buffer.write
    with open(path, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        size, (part_size, part_sha256) = before.st_size, known.get("part", (0, ""))
        whole_size, whole_sha256 = known.get("whole", (-1, ""))
        if whole_size == size and hashed(file, size).hexdigest() == whole_sha256:
            write(line_of({"same": True}))
            return
        start, digest = part_size, hashed(file, part_size if part_size <= size else 0)
        if digest.hexdigest() != part_sha256:
            start, digest = 0, hashlib.sha256()
            file.seek(0)
        write(line_of({"size": size, "from": start}))
        left = size - start
        for piece in pieces(file, left):
            write(piece)
            digest.update(piece)
            left -= len(piece)
        if left:
            raise Refusal(f"{name} is shorter than it was")
        after = os.fstat(file.fileno())
        moment = (before.st_mtime_ns, size)
        # A file that only grew still holds the bytes that were sent.
        changed = (after.st_mtime_ns, after.st_size) != moment and hashed(file, size).digest() != digest.digest()
        write(line_of({"changed": True} if changed else {"sha256": digest.hexdigest()}))


def hashed(file: BinaryIO, size: int) -> hashlib._Hash:
    """The digest of the first `size` bytes; the file's position is then behind them."""
    digest, spoke = hashlib.sha256(), time.monotonic()
    file.seek(0)
    for piece in pieces(file, size):
        digest.update(piece)
        if time.monotonic() >= spoke + SIGN_OF_LIFE_SEC:
            spoke = time.monotonic()
            say({"busy": True})
    return digest


def missing(arguments: dict[str, Any]) -> None:
    """For each file of the manifest on standard input: how many of its bytes are here, and whether it is whole."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        path = inside(arguments["root"], wanted["path"])
        part = part_of(path, wanted["sha256"][:16])
        whole = os.path.isfile(path) and digest_of(path) == (wanted["size"], wanted["sha256"])
        have = os.path.getsize(part) if os.path.isfile(part) else 0
        say({"path": wanted["path"], "whole": whole, "have": wanted["size"] if whole else have})


def receive(arguments: dict[str, Any]) -> None:
    """Take files from standard input: a JSON list of them, then their bytes from each `offset` on."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        path = inside(arguments["root"], wanted["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = part_of(path, wanted["sha256"][:16])
        # Not appended: the receiver of a broken stream may still run, and would add its last bytes to ours. At their
        # own offsets they are the same bytes, because the digest is in the file's name.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.truncate(wanted["offset"])
            file.seek(wanted["offset"])
            took = take(file, wanted["size"] - wanted["offset"])
            file.flush()
            os.fsync(file.fileno())
        if not took:
            raise CutShort(f"standard input ended inside {wanted['path']}")
        say({"path": wanted["path"], "ok": settle(part, path, (wanted["size"], wanted["sha256"]))})


def settle(part: str, path: str, wanted: tuple[int, str]) -> bool:
    """Rename `part` to `path` if it holds the wanted bytes; whether they are at `path` now."""
    try:
        if digest_of(part) != wanted:
            os.unlink(part)
            return False
        os.replace(part, path)
    except FileNotFoundError:
        # Two senders of the same bytes share the partial file; the other one was done first.
        return os.path.isfile(path) and digest_of(path) == wanted
    sync_folder(os.path.dirname(path))
    return True


def take(file: BinaryIO, size: int) -> bool:
    """Move `size` bytes from standard input into `file`; False where it ends before them."""
    stream: BufferedReader = sys.stdin.buffer  # type: ignore[assignment]
    while size > 0:
        piece = stream.read1(min(PIECE, size))  # what is there now: a broken stream must not cost it
        if not piece:
            return False
        file.write(piece)
        size -= len(piece)
    return True


VERBS = {verb.__name__: verb for verb in (send, missing, receive)}
