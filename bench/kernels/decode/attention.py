"""Attention of one new token of every sequence over a static cache, with the rotation before it.

    q, k, v = split(joined);  turn q and k;  keys[position] = k;  values[position] = v
    out = softmax(q keys^T / sqrt(D)) values            over the positions up to this one

One kernel (`attention.cu`). Bytes read: 4 p Hk D a sequence for position p. Keys and values are read once for all query
heads of a group. Where sequences and heads alone would leave the GPU idle, positions are shared among blocks; the last
block of a head joins the shares in their order, so results are deterministic.

Not covered: heads that are no multiple of 64 wide or wider than 128, groups of more than 8; windows.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch

from bench.kernels.decode import nvrtc
from bench.kernels.rope import AttentionHeads

SOURCE = Path(__file__).with_name("attention.cu")
WIDTHS = (64, 128)
MOST_GROUP = 8
MOST_SHARES = 32  # a lane of a warp for each
THREADS = 256  # as in attention.cu


def unsupported_reason(heads: AttentionHeads) -> str | None:
    """Why heads are not covered; None where they are."""
    if heads.width not in WIDTHS:
        return f"heads {heads.width} wide, not {' or '.join(map(str, WIDTHS))}"
    if heads.query % heads.key or heads.query // heads.key > MOST_GROUP:
        return f"{heads.query} query heads for {heads.key} key heads"
    return None


class Attention:
    """`cos`, `sin`: (length, D/2) float32, of every position. For `batch` sequences; all its layers share its room."""

    def __init__(self, heads: AttentionHeads, cos: Any, sin: Any, *, batch: int) -> None:
        self._heads, self.angles = heads, (cos, sin)
        processors = torch.cuda.get_device_properties(cos.device).multi_processor_count
        self._shares = max(1, min(MOST_SHARES, processors // (heads.key * batch)))
        room = batch * heads.query * self._shares * (heads.width + 2)
        self._parts = torch.empty(room, dtype=torch.float32, device=cos.device)
        self._tickets = torch.zeros(batch * heads.key, dtype=torch.int32, device=cos.device)
        constants = (("WIDTH", heads.width), ("GROUP", heads.query // heads.key), ("KEYS", heads.key))
        architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(cos.device))
        self._kernel = nvrtc.kernel(SOURCE, "attend_row", architecture, constants)

    def __call__(self, joined: Any, position: Any, keys: Any, values: Any) -> Any:
        """out (batch, Hq D) of joined (batch, (Hq + 2 Hk) D), bf16; `position` int64 (1,); the caches are (batch, Hk,
        length, D), contiguous, and get the new key and value."""
        heads = self._heads
        out = torch.empty((len(joined), heads.query * heads.width), dtype=joined.dtype, device=joined.device)
        tensors = (joined, *self.angles, position, keys, values, out, self._parts, self._tickets)
        self._kernel(
            (heads.key, len(joined), self._shares),
            THREADS,
            (*(ctypes.c_void_p(each.data_ptr()) for each in tensors), ctypes.c_int(keys.shape[2])),
        )
        return out
