"""Header of a safetensors file, checked against the file's size without reading the data.

The format (huggingface/safetensors, README): 8 bytes little-endian header length N, N bytes of JSON that map a
tensor's name to {dtype, shape, data_offsets: [begin, end]}, then the data; offsets count from the start of the data.
In a truncated file the last offset lies beyond the end. Only the standard library.
"""

import json
from pathlib import Path

# The reference implementation rejects longer headers; a damaged length is detected before it is allocated.
MAX_HEADER_BYTES = 100_000_000


class WeightsError(ValueError):
    """Weights file that is truncated, damaged, or not a safetensors file; the message says which."""


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes by tensor name. Raises WeightsError and OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
            raise WeightsError("truncated, or not a safetensors file: its header is longer than the file")
        content = file.read(length)
    try:
        document = json.loads(content)
        tensors = {name: entry for name, entry in document.items() if name != "__metadata__"}
        shapes = {name: tuple(map(_parse_dimension, entry["shape"])) for name, entry in tensors.items()}
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise WeightsError("damaged, or not a safetensors file: its header cannot be parsed") from error
    expected = 8 + length + end
    if size != expected:
        problem = "truncated" if size < expected else "longer than its header says"
        raise WeightsError(f"{problem}: {size} bytes, its header says {expected}")
    return shapes


def _parse_dimension(value: object) -> int:
    """Check a dimension of a shape; the limit is beyond any memory. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError("invalid dimension")
    return value
