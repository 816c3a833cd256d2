"""Transfer of files from and to this host. Both sides verify a file by its sha256.

A partial file is next to its final path, with the suffix .part; such files, links and special files are never sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time

from remote.agent.shared.files import (
    CHUNK_BYTES,
    hash_file,
    is_movable,
    join_inside,
    list_names,
    partial_path,
    read_chunks,
    sync_folder,
)
from remote.agent.shared.wire import InputTruncated, RequestRefused, encode_line, print_line, read_exactly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any, BinaryIO

KEEPALIVE_SEC = 5.0


def send(arguments: dict[str, Any]) -> None:
    """Send files below `root` in one stream, each followed by its digest, so that no file is read twice.

    Standard input has the wanted names and the caller's state: {"only": names or null, "without": names, "here":
    {name: {"whole": [size, sha256], "part": [size, sha256]}}}. The answer is the line {"files": names}; then for each
    of them either {"same": true} or {"size", "from"}, the bytes from there on and {"sha256"} of the whole file, or
    {"changed": true}. The caller's bytes count only if this host's bytes have the same digest.
    A line {"busy": true} is sent during long silences.
    """
    request = json.loads(read_exactly(arguments["stdin_bytes"]))
    root, exclude = arguments["root"], set(request["without"])
    if request["only"] is None:
        names = [name for name in list_names(root) if name not in exclude]
    else:
        names = [name for name in request["only"] if name not in exclude and is_movable(join_inside(root, name))]
    sys.stdout.buffer.write(encode_line({"files": names}))
    for name in names:
        send_file(name, join_inside(root, name), request["here"].get(name, {}))
    sys.stdout.buffer.flush()


def send_file(name: str, path: str, caller_copy: dict[str, list[Any]]) -> None:
    write = sys.stdout.buffer.write
    with open(path, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        size, (part_size, part_sha256) = before.st_size, caller_copy.get("part", (0, ""))
        whole_size, whole_sha256 = caller_copy.get("whole", (-1, ""))
        if whole_size == size and hash_prefix(file, size).hexdigest() == whole_sha256:
            write(encode_line({"same": True}))
            return
        start, digest = part_size, hash_prefix(file, part_size if part_size <= size else 0)
        if digest.hexdigest() != part_sha256:
            start, digest = 0, hashlib.sha256()
            file.seek(0)
        write(encode_line({"size": size, "from": start}))
        left = size - start
        for piece in read_chunks(file, left):
            write(piece)
            digest.update(piece)
            left -= len(piece)
        if left:
            raise RequestRefused(f"{name} became shorter during the transfer")
        after = os.fstat(file.fileno())
        before_state = (before.st_mtime_ns, size)
        # A file that only grew still has the bytes that were sent.
        changed = (after.st_mtime_ns, after.st_size) != before_state and hash_prefix(
            file, size
        ).digest() != digest.digest()
        write(encode_line({"changed": True} if changed else {"sha256": digest.hexdigest()}))


def hash_prefix(file: BinaryIO, size: int) -> hashlib._Hash:
    """Hash the first `size` bytes and leave the file's position after them."""
    digest, last_line_at = hashlib.sha256(), time.monotonic()
    file.seek(0)
    for piece in read_chunks(file, size):
        digest.update(piece)
        if time.monotonic() >= last_line_at + KEEPALIVE_SEC:
            last_line_at = time.monotonic()
            print_line({"busy": True})
    return digest


def missing(arguments: dict[str, Any]) -> None:
    """Answer, for each file of the manifest on standard input, how many bytes exist here and if it is complete."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        path = join_inside(arguments["root"], wanted["path"])
        part = partial_path(path, wanted["sha256"][:16])
        whole = os.path.isfile(path) and hash_file(path) == (wanted["size"], wanted["sha256"])
        have = os.path.getsize(part) if os.path.isfile(part) else 0
        print_line({"path": wanted["path"], "whole": whole, "have": wanted["size"] if whole else have})


def receive(arguments: dict[str, Any]) -> None:
    """Receive files from standard input: a JSON list of them, then their bytes from each `offset` on."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        path = join_inside(arguments["root"], wanted["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = partial_path(path, wanted["sha256"][:16])
        # Not opened for appending: the receiver of a broken stream may still run and would append to our bytes. At
        # their offsets its bytes are identical to ours, because the digest is in the file's name.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.truncate(wanted["offset"])
            file.seek(wanted["offset"])
            is_whole = copy_stdin(file, wanted["size"] - wanted["offset"])
            file.flush()
            os.fsync(file.fileno())
        if not is_whole:
            raise InputTruncated(f"standard input ended inside {wanted['path']}")
        print_line({"path": wanted["path"], "ok": install_part(part, path, (wanted["size"], wanted["sha256"]))})


def install_part(part: str, path: str, wanted: tuple[int, str]) -> bool:
    """Rename `part` to `path` if it has the wanted bytes; return True if `path` has them now."""
    try:
        if hash_file(part) != wanted:
            os.unlink(part)
            return False
        os.replace(part, path)
    except FileNotFoundError:
        # Two senders of the same bytes share the partial file; the other one finished first.
        return os.path.isfile(path) and hash_file(path) == wanted
    sync_folder(os.path.dirname(path))
    return True


def copy_stdin(file: BinaryIO, size: int) -> bool:
    """Copy `size` bytes from standard input to `file`; False if the input ends early."""
    stream: BufferedReader = sys.stdin.buffer  # type: ignore[assignment]
    while size > 0:
        piece = stream.read1(min(CHUNK_BYTES, size))  # available bytes: a broken stream must not lose them
        if not piece:
            return False
        file.write(piece)
        size -= len(piece)
    return True


VERBS = {verb.__name__: verb for verb in (send, missing, receive)}
