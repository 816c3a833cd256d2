"""Bounded reading of HTTP responses: a server may send endlessly, or stop in the middle."""

from __future__ import annotations

import time
from typing import Any

_CHUNK_BYTES = 1 << 16


def read_response(response: Any, *, max_bytes: int, timeout_sec: float) -> bytes:
    """Read the body of urllib's response, up to one byte more than `max_bytes`, by which the caller sees the excess.

    Raises OSError for a body that is truncated or not complete after `timeout_sec`.
    """
    content, until = bytearray(), time.monotonic() + timeout_sec
    while len(content) <= max_bytes and (chunk := response.read1(_CHUNK_BYTES)):
        content += chunk
        if time.monotonic() > until:
            raise TimeoutError(f"no complete response within {timeout_sec:.0f} s")
    if response.length and len(content) <= max_bytes:  # `length` is what is missing; read1 does not report it
        raise ConnectionResetError(f"the response ended {response.length} bytes early")
    return bytes(content[: max_bytes + 1])
