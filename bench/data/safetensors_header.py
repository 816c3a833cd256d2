"""The header of a safetensors file, checked against the file's size without reading the data.

The format (huggingface/safetensors, README): 8 bytes little-endian header length N, N bytes of JSON that map a
tensor's name to {dtype, shape, data_offsets: [begin, end]}, then the data; offsets count from the start of the data.
In a truncated file the last offset lies beyond the end. Standard library alone.
"""

import json
from pathlib import Path

# The reference implementation refuses longer headers; a damaged length is caught before it is allocated.
LONGEST_HEADER_BYTES = 100_000_000


class WeightsError(ValueError):
    """A weights file that is truncated, damaged, or no safetensors file; the message says which."""


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shapes by tensor name. Raises WeightsError; OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LONGEST_HEADER_BYTES, size - 8):
            raise WeightsError("truncated, or no safetensors file: its header is longer than the file")
        content = file.read(length)
    try:
        document = json.loads(content)
        tensors = {name: entry for name, entry in document.items() if name != "__metadata__"}
        shapes = {name: tuple(map(_side, entry["shape"])) for name, entry in tensors.items()}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        raise WeightsError("damaged, or no safetensors file: its header cannot be read") from None
    expected = 8 + length + end
    if size != expected:
        what = "truncated" if size < expected else "longer than its header says"
        raise WeightsError(f"{what}: {size} bytes, its header says {expected}")
    return shapes


def _side(value: object) -> int:
    """A side of a shape, which no memory could hold were it longer. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError("no length")
    return value
