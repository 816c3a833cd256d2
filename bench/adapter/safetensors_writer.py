"""One safetensors file of bf16 tensors, written tensor by tensor: no more than one of them is in memory.

The format is in `bench.data.safetensors_header`. The header is known beforehand from names and shapes. The file gets
its name when all of it is on the disk; then it is read back from the disk, and must have the bytes that were written.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BYTES = 2  # of a number in bf16
ALIGNED = 8
_PIECE = 1 << 22


class ShardMismatch(OSError):
    """What was read back is not what was written."""


def header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """The beginning of a file with these tensors, in this order."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        end = at + math.prod(shape) * BYTES
        document[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def size_of(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return len(header(shapes)) + BYTES * sum(map(math.prod, shapes.values()))


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], tensor: Callable[[str], Any], torch: Any) -> str:
    """Write the file whole or not at all, and read it back; its sha256. Raises OSError."""
    part, digest = path.with_name(f".{path.name}.part"), hashlib.sha256()
    try:
        with part.open("wb") as file:
            for piece in _pieces(shapes, tensor, torch):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if read_back(part) != digest.hexdigest():
            raise ShardMismatch(5, "read back other bytes than were written; the disk cannot be trusted", str(path))
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


def _pieces(shapes: Mapping[str, tuple[int, ...]], tensor: Callable[[str], Any], torch: Any) -> Any:
    yield header(shapes)
    for name, shape in shapes.items():
        made = tensor(name).contiguous().to("cpu")
        if tuple(made.shape) != shape or made.dtype != torch.bfloat16:
            raise ValueError(f"{name}: {tuple(made.shape)} in {made.dtype}, planned {shape} in bf16")
        yield memoryview(made.view(torch.uint8).numpy()).cast("B")


def read_back(path: Path) -> str:
    """The file's sha256 as the disk has it: its pages in memory are let go first, where the system can."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
