"""Answers of a program on a host, in lines of checksum and JSON, its input of a known length, and its exit codes."""

from __future__ import annotations

import json
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Exit codes, as in `bench.records.status`: the request cannot be fulfilled (the reason is on standard error); standard
# input ended early, so that a retry may succeed.
EXIT_REFUSED, EXIT_TRUNCATED = 4, 3


class RequestRefused(Exception):
    """Request that cannot be fulfilled; the caller gets the message."""


class InputTruncated(Exception):
    """Standard input that ended before its announced size."""


def encode_line(document: object) -> bytes:
    """Encode a document as CRC-32 and JSON text, so that a lossy transport is detected."""
    text = json.dumps(document).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode_line(line: bytes) -> dict[str, Any]:
    """Decode a line without its line feed. Raises ValueError for a wrong checksum or another kind of document."""
    checksum, _, text = line.partition(b" ")
    document = json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
    if not isinstance(document, dict):
        raise ValueError("wrong checksum, or not an object")
    return document


def print_line(document: object) -> None:
    """Print one line of the answer."""
    sys.stdout.buffer.write(encode_line(document))
    sys.stdout.buffer.flush()


def read_exactly(size: int) -> bytes:
    """Read `size` bytes of standard input without waiting for its end: a transport may never close it."""
    content = sys.stdin.buffer.read(size)
    if len(content) != size:
        raise InputTruncated(f"standard input ended after {len(content)} of {size} bytes")
    return content
