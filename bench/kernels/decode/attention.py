"""Attention of one new token per sequence over a static cache, with the rotation before it.

    q, k, v = split(joined);  rotate q and k;  keys[position] = k;  values[position] = v
    out = softmax(q keys^T / sqrt(D)) values            over the positions up to this one

One kernel (`attention.cu`). Bytes read: 4 p Hk D per sequence at position p. Keys and values are read once for all
query heads of a group. If sequences and heads are too few to fill the GPU, positions are divided among blocks; the last
block of a head joins the shares in order, so results are deterministic.

Not covered: head widths other than 64 and 128, groups of more than 8, windows.
"""

import ctypes
from pathlib import Path
from typing import Any

import torch

from bench.kernels.decode import nvrtc
from bench.kernels.rope import AttentionHeads

SOURCE = Path(__file__).with_name("attention.cu")
WIDTHS = (64, 128)
MAX_GROUP = 8
MAX_SHARES = 32  # one lane of a warp per share
THREADS = 256  # as in attention.cu


def unsupported_reason(heads: AttentionHeads) -> str | None:
    """Return why these heads are not supported, or None."""
    if heads.width not in WIDTHS:
        return f"heads {heads.width} wide, not {' or '.join(map(str, WIDTHS))}"
    if heads.query % heads.key or heads.query // heads.key > MAX_GROUP:
        return f"{heads.query} query heads for {heads.key} key heads"
    return None


class DecodeAttention:
    """Decode attention for `batch` sequences. All layers share one object, with its scratch memory.

    `cos`, `sin`: (length, D/2) float32, for every position.
    """

    def __init__(self, heads: AttentionHeads, cos: Any, sin: Any, *, batch: int) -> None:
        self._heads, self.angles = heads, (cos, sin)
        processors = torch.cuda.get_device_properties(cos.device).multi_processor_count
        self._shares = max(1, min(MAX_SHARES, processors // (heads.key * batch)))
        part_count = batch * heads.query * self._shares * (heads.width + 2)
        self._parts = torch.empty(part_count, dtype=torch.float32, device=cos.device)
        self._tickets = torch.zeros(batch * heads.key, dtype=torch.int32, device=cos.device)
        constants = (("WIDTH", heads.width), ("GROUP", heads.query // heads.key), ("KEYS", heads.key))
        architecture = "sm_{}{}".format(*torch.cuda.get_device_capability(cos.device))
        self._kernel = nvrtc.load_kernel(SOURCE, "attend_row", architecture, constants)

    def __call__(self, joined: Any, position: Any, keys: Any, values: Any) -> Any:
        """Return out (batch, Hq D) and write the new key and value into the caches.

        joined: (batch, (Hq + 2 Hk) D), bf16; position: int64 (1,); keys, values: (batch, Hk, length, D), contiguous.
        """
        heads = self._heads
        out = torch.empty((len(joined), heads.query * heads.width), dtype=joined.dtype, device=joined.device)
        tensors = (joined, *self.angles, position, keys, values, out, self._parts, self._tickets)
        self._kernel(
            (heads.key, len(joined), self._shares),
            THREADS,
            (*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.c_int(keys.shape[2])),
        )
        return out
