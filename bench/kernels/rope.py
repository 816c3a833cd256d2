"""Rotary position embedding (Su et al. 2021) on the joined product of q, k and v.

Elements i and i + D/2 of a head form a pair, rotated by an angle that depends on the token's position and on i:

    forward    a' = a cos - b sin;  b' = b cos + a sin       for query and key heads, in place
    backward   the transpose, with -sin; it also joins dq, dk and dv

joined: (T, (Hq + 2 Hk) D), a row has query heads, key heads, value heads; cos, sin: (T, D/2) float32. Bytes moved:
forward 2 x 2T (Hq + Hk) D, backward 2 x 2T (Hq + 2 Hk) D.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import jit, next_power_of_2, tl, uses_triton


@dataclass(frozen=True, kw_only=True)
class AttentionHeads:
    """Number of query heads, of key heads (and value heads), and the width of a head."""

    query: int
    key: int
    width: int

    @property
    def joined(self) -> int:
        return (self.query + 2 * self.key) * self.width

    def split(self, joined: Any) -> tuple[Any, Any, Any]:
        """Return views (T, heads, D) of queries, keys and values."""
        edges = (self.query * self.width, self.key * self.width, self.key * self.width)
        q, k, v = (part.view(len(joined), -1, self.width) for part in joined.split(edges, dim=-1))
        return q, k, v


def rotate_(joined: Any, cos: Any, sin: Any, heads: AttentionHeads) -> None:
    """Rotate queries and keys in place."""
    if not uses_triton(joined):
        for part in heads.split(joined)[:2]:
            part.copy_(rotate_reference(part, cos, sin))
        return
    _rope_rotate[(joined.shape[0],)](
        joined, cos, sin, heads.query + heads.key, joined.stride(0), HALF=heads.width // 2,
        COLUMNS=next_power_of_2(heads.width // 2), HEADS=next_power_of_2(heads.query + heads.key), num_warps=4,
    )  # fmt: skip


def unrotate(dq: Any, dk: Any, dv: Any, cos: Any, sin: Any, heads: AttentionHeads) -> Any:
    """Return the gradient of the joined product. dq, dk (rotated) and dv: (T, heads, D)."""
    tokens = dq.shape[0]
    joined = torch.empty((tokens, heads.joined), dtype=dq.dtype, device=dq.device)
    if not uses_triton(dq):
        for part, gradient in zip(heads.split(joined)[:2], (dq, dk), strict=True):
            part.copy_(rotate_reference(gradient, cos, -sin))
        heads.split(joined)[2].copy_(dv)
        return joined
    _rope_unrotate[(tokens,)](
        dq.contiguous(), dk.contiguous(), dv.contiguous(), cos, sin, joined, heads.query, heads.key,
        HALF=heads.width // 2, COLUMNS=next_power_of_2(heads.width // 2),
        QUERIES=next_power_of_2(heads.query), KEYS=next_power_of_2(heads.key), num_warps=4,
    )  # fmt: skip
    return joined


def rotate_reference(part: Any, cos: Any, sin: Any) -> Any:
    """Return a rotated copy of (T, heads, D)."""
    a, b = part.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(part.dtype)


@jit
def _rope_rotate_pairs(source, target, head, column, cosine, sine, mask, HALF: tl.constexpr):
    offsets = head[:, None] * (2 * HALF) + column[None, :]
    a = tl.load(source + offsets, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + offsets + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = target.dtype.element_ty
    tl.store(target + offsets, (a * cosine - b * sine).to(dtype), mask=mask)
    tl.store(target + offsets + HALF, (b * cosine + a * sine).to(dtype), mask=mask)


@jit
def _rope_rotate(
    joined, cos, sin, heads, stride,
    HALF: tl.constexpr, COLUMNS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS), tl.arange(0, COLUMNS)
    cosine = tl.load(cos + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    sine = tl.load(sin + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    mask = (head < heads)[:, None] & (column < HALF)[None, :]
    row = joined + token * stride
    _rope_rotate_pairs(row, row, head, column, cosine, sine, mask, HALF)


@jit
def _rope_unrotate(
    dq, dk, dv, cos, sin, joined, queries, keys,
    HALF: tl.constexpr, COLUMNS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    column_mask = (column < HALF)[None, :]
    cosine = tl.load(cos + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    sine = -tl.load(sin + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    row = joined + token * (queries + 2 * keys) * (2 * HALF)
    query, key = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    token_offset = token * (2 * HALF)
    _rope_rotate_pairs(
        dq + token_offset * queries, row, query, column, cosine, sine, (query < queries)[:, None] & column_mask, HALF
    )
    key_mask = (key < keys)[:, None] & column_mask
    row += queries * (2 * HALF)
    _rope_rotate_pairs(dk + token_offset * keys, row, key, column, cosine, sine, key_mask, HALF)
    row += keys * (2 * HALF)
    offsets = key[:, None] * (2 * HALF) + column[None, :]
    source = dv + token_offset * keys
    tl.store(row + offsets, tl.load(source + offsets, mask=key_mask, other=0.0), mask=key_mask)
    tl.store(row + offsets + HALF, tl.load(source + offsets + HALF, mask=key_mask, other=0.0), mask=key_mask)
