"""Transfer of files from and to this host. Both sides verify a file by its sha256.

A partial file is next to its final path, with the suffix .part; such files, links and special files are never sent.
"""

from __future__ import annotations

import json
import os
import sys

from remote.agent.shared.files import (
    CHUNK_BYTES,
    hash_file,
    install_part,
    is_movable,
    join_inside,
    list_names,
    partial_path,
    read_chunks,
)
from remote.agent.shared.wire import InputTruncated, RequestRefused, print_line, read_exactly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from io import BufferedReader
    from typing import Any, BinaryIO


def listing(arguments: dict[str, Any]) -> None:
    """Print {"files": [[name, size, sha256], ...]} of the files below `root`.

    Standard input has {"only": names or null, "without": names}.
    """
    request = json.loads(read_exactly(arguments["stdin_bytes"]))
    root, only = arguments["root"], request["only"]
    names = list_names(root) if only is None else (name for name in only if is_movable(join_inside(root, name)))
    wanted = (name for name in names if name not in request["without"])
    print_line({"files": [[name, *hash_file(join_inside(root, name))] for name in wanted]})


def send(arguments: dict[str, Any]) -> None:
    """Send the bytes of the files in the JSON list on standard input, from each `offset` to `size`, and no others."""
    for wanted in json.loads(read_exactly(arguments["stdin_bytes"])):
        left = wanted["size"] - wanted["offset"]
        with open(join_inside(arguments["root"], wanted["path"]), "rb", buffering=0) as file:
            file.seek(wanted["offset"])
            for piece in read_chunks(file, left):
                sys.stdout.buffer.write(piece)
                left -= len(piece)
        if left:
            raise RequestRefused(f"{wanted['path']} became shorter during the transfer")
    sys.stdout.buffer.flush()


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


VERBS = {verb.__name__: verb for verb in (listing, send, missing, receive)}
