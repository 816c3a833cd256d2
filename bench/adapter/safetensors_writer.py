"""Writer of one safetensors file of bf16 tensors, with one tensor in memory at a time.

The format is in `bench.data.model_folder`. The header follows from names and shapes. The data is written to a
temporary file and read back from the disk; the file gets its name only if the checksum matches.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BYTES_PER_ELEMENT = 2  # bf16
HEADER_ALIGNMENT = 8
_READ_BYTES = 1 << 22


class ShardMismatch(OSError):
    """Data that was read back differs from the data written."""


def encode_header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Encode the header of a file with these tensors, in this order."""
    document: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, shape in shapes.items():
        end = begin + math.prod(shape) * BYTES_PER_ELEMENT
        document[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def file_size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return len(encode_header(shapes)) + BYTES_PER_ELEMENT * sum(map(math.prod, shapes.values()))


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], get_tensor: Callable[[str], Any], torch: Any) -> str:
    """Write the file completely or not at all, read it back and return its sha256. Raises OSError."""
    part, digest = path.with_name(f".{path.name}.part"), hashlib.sha256()
    try:
        with part.open("wb") as file:
            for chunk in _chunks(shapes, get_tensor, torch):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if sha256_on_disk(part) != digest.hexdigest():
            raise ShardMismatch(5, "data read back differs from the data written; check the disk", str(path))
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return digest.hexdigest()


def _chunks(shapes: Mapping[str, tuple[int, ...]], get_tensor: Callable[[str], Any], torch: Any) -> Any:
    yield encode_header(shapes)
    for name, shape in shapes.items():
        tensor = get_tensor(name).contiguous().to("cpu")
        if tuple(tensor.shape) != shape or tensor.dtype != torch.bfloat16:
            raise ValueError(f"{name}: {tuple(tensor.shape)} in {tensor.dtype}, planned {shape} in bf16")
        yield memoryview(tensor.view(torch.uint8).numpy()).cast("B")


def sha256_on_disk(path: Path) -> str:
    """Hash the file as stored on the disk: its cached pages are dropped first, if the system can."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
