"""Rotary position embedding (Su et al. 2021) on the joined product of q, k and v.

A head's numbers are taken as pairs (i, i + D/2), each turned by an angle that depends on the token's position and on i:

    forward    a' = a cos - b sin;  b' = b cos + a sin       on the query and key heads, in place; values stay
    backward   the same with -sin, the transpose; it also joins dq, dk and dv

joined: (T, (Hq + 2 Hk) D), a row of query heads, key heads, value heads; cos, sin: (T, D/2) float32. Bytes moved:
forward 2 x 2T (Hq + Hk) D, backward 2 x 2T (Hq + 2 Hk) D.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import compiled, jit, power_of_two, tl


@dataclass(frozen=True, kw_only=True)
class AttentionHeads:
    """The number of query heads, of key heads (and value heads), and the width of one."""

    query: int
    key: int
    width: int

    @property
    def joined(self) -> int:
        return (self.query + 2 * self.key) * self.width

    def split(self, joined: Any) -> tuple[Any, Any, Any]:
        """Views (T, heads, D) of queries, keys and values."""
        edges = (self.query * self.width, self.key * self.width, self.key * self.width)
        q, k, v = (part.view(len(joined), -1, self.width) for part in joined.split(edges, dim=-1))
        return q, k, v


def rotate_(joined: Any, cos: Any, sin: Any, heads: AttentionHeads) -> None:
    """Turn queries and keys in place."""
    if not compiled(joined):
        for part in heads.split(joined)[:2]:
            part.copy_(rotate_reference(part, cos, sin))
        return
    _rope_rotate[(joined.shape[0],)](
        joined, cos, sin, heads.query + heads.key, joined.stride(0), HALF=heads.width // 2,
        WIDE=power_of_two(heads.width // 2), HEADS=power_of_two(heads.query + heads.key), num_warps=4,
    )  # fmt: skip


def unrotate(dq: Any, dk: Any, dv: Any, cos: Any, sin: Any, heads: AttentionHeads) -> Any:
    """The gradient of the joined product, from those of turned queries and keys, and values, each (T, heads, D)."""
    tokens = dq.shape[0]
    joined = torch.empty((tokens, heads.joined), dtype=dq.dtype, device=dq.device)
    if not compiled(dq):
        for part, gradient in zip(heads.split(joined)[:2], (dq, dk), strict=True):
            part.copy_(rotate_reference(gradient, cos, -sin))
        heads.split(joined)[2].copy_(dv)
        return joined
    _rope_unrotate[(tokens,)](
        dq.contiguous(), dk.contiguous(), dv.contiguous(), cos, sin, joined, heads.query, heads.key,
        HALF=heads.width // 2, WIDE=power_of_two(heads.width // 2),
        QUERIES=power_of_two(heads.query), KEYS=power_of_two(heads.key), num_warps=4,
    )  # fmt: skip
    return joined


def rotate_reference(part: Any, cos: Any, sin: Any) -> Any:
    """A copy of (T, heads, D), turned."""
    a, b = part.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(part.dtype)


@jit
def _rope_turn(source, target, head, column, cosine, sine, there, HALF: tl.constexpr):
    place = head[:, None] * (2 * HALF) + column[None, :]
    a = tl.load(source + place, mask=there, other=0.0).to(tl.float32)
    b = tl.load(source + place + HALF, mask=there, other=0.0).to(tl.float32)
    kind = target.dtype.element_ty
    tl.store(target + place, (a * cosine - b * sine).to(kind), mask=there)
    tl.store(target + place + HALF, (b * cosine + a * sine).to(kind), mask=there)


@jit
def _rope_rotate(
    joined, cos, sin, heads, stride,
    HALF: tl.constexpr, WIDE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head, column = tl.arange(0, HEADS), tl.arange(0, WIDE)
    cosine = tl.load(cos + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    sine = tl.load(sin + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    there = (head < heads)[:, None] & (column < HALF)[None, :]
    row = joined + token * stride
    _rope_turn(row, row, head, column, cosine, sine, there, HALF)


@jit
def _rope_unrotate(
    dq, dk, dv, cos, sin, joined, queries, keys,
    HALF: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    inside = (column < HALF)[None, :]
    cosine = tl.load(cos + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    sine = -tl.load(sin + token * HALF + column, mask=column < HALF, other=0.0)[None, :]
    row = joined + token * (queries + 2 * keys) * (2 * HALF)
    query, key = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    wide = token * (2 * HALF)
    _rope_turn(dq + wide * queries, row, query, column, cosine, sine, (query < queries)[:, None] & inside, HALF)
    of_keys = (key < keys)[:, None] & inside
    row += queries * (2 * HALF)
    _rope_turn(dk + wide * keys, row, key, column, cosine, sine, of_keys, HALF)
    row += keys * (2 * HALF)
    place = key[:, None] * (2 * HALF) + column[None, :]
    source = dv + wide * keys
    tl.store(row + place, tl.load(source + place, mask=of_keys, other=0.0), mask=of_keys)
    tl.store(row + place + HALF, tl.load(source + place + HALF, mask=of_keys, other=0.0), mask=of_keys)
