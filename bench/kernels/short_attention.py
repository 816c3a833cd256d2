"""Causal attention for samples of a few hundred tokens; backward includes that of the rotation.

    forward    s = scale q k^T;  out = softmax(s) v;  log_sum = log2(sum of exp(s)), saved
    backward   delta = sum over D of d_out * out;  p = exp2(log2(e) s - log_sum);  ds = p * (d_out v^T - delta)
               dq = scale ds k;  dk = scale ds^T q;  dv = p^T d_out;  dq and dk rotated back

A token attends only to its own sample. joined: (T, (Hq + 2 Hk) D), a row has query heads, key heads, value heads,
queries and keys rotated; out, d_out: (T, Hq, D); cos, sin: (T, D/2) float32; edges: int32 (n + 1,).

Query heads that share a key head are rows of one tile, so 32 tokens of 4 heads fill a tile of 128 and little of it is
wasted at the end of a sample or on the diagonal. A program computes its position from the edges, so no length is read
back from the device and no program runs without tokens. One kernel computes dq, another dk and dv; one program sums
each number in a fixed order, without atomic additions.

Bytes moved: forward 2T (Hq + 2 Hk) D in, 2T Hq D out; backward both twice in, and 2T (Hq + 2 Hk) D out. FLOP: 2 Hq D
per visible pair of a query and a key and per product, of which forward has 2 and backward 7.
"""

import math
from typing import Any

import torch

from bench.kernels.rope import AttentionHeads
from bench.kernels.triton_compat import jit, next_power_of_2, tl, uses_triton

WIDTHS = (16, 32, 64, 128)
MAX_PACKED_HEADS = 8  # query heads per tile
# A program holds QUERY_ROWS rows of queries and iterates over QUERY_KEYS keys at a time, or holds KEYS_KEPT keys and
# iterates over KEY_ROWS rows of queries. These are the best of 16 to 128 each with 4 or 8 warps and 1 to 3 stages,
# measured between large products, with 32 query and 8 key heads of width 128 and a mean length of 228 tokens.
QUERY_ROWS, QUERY_KEYS = 64, 32
KEYS_KEPT, KEY_ROWS = 64, 32
LOG2_E = math.log2(math.e)


def is_supported(joined: Any, heads: AttentionHeads) -> bool:
    """Return True for a head width whose tiles fit; then it is faster than FlashAttention 2 on packed samples."""
    return uses_triton(joined) and heads.width in WIDTHS


def forward(joined: Any, heads: AttentionHeads, edges: Any) -> tuple[Any, Any]:
    """Return (out, log_sums); log_sums is float32 of shape (T, Hq)."""
    tokens = len(joined)
    out = torch.empty((tokens, heads.query, heads.width), dtype=joined.dtype, device=joined.device)
    log_sums = torch.empty((tokens, heads.query), dtype=torch.float32, device=joined.device)
    pack = _packed_heads(heads)
    _attention_forward[(_max_programs(tokens, QUERY_ROWS // pack, edges), heads.query // pack)](
        joined, out, log_sums, edges, len(edges) - 1, joined.stride(0), _scale(heads) * LOG2_E,
        **_constexpr_sizes(heads, edges), PACK=pack, TOKENS=QUERY_ROWS // pack, BLOCK=QUERY_KEYS, num_warps=4,
        num_stages=3,
    )  # fmt: skip
    return out, log_sums


def backward(
    d_out: Any, joined: Any, out: Any, log_sums: Any, heads: AttentionHeads, edges: Any, cos: Any, sin: Any
) -> Any:
    """Return the gradient of the unrotated `joined`."""
    tokens = len(joined)
    d_joined = torch.empty((tokens, heads.joined), dtype=joined.dtype, device=joined.device)
    deltas = torch.empty_like(log_sums)
    pack = _packed_heads(heads)
    common_arguments = (edges, len(edges) - 1, cos, sin, joined.stride(0), _scale(heads), _scale(heads) * LOG2_E)
    _attention_dq[(_max_programs(tokens, QUERY_ROWS // pack, edges), heads.query // pack)](
        d_out, joined, out, log_sums, deltas, d_joined, *common_arguments, **_constexpr_sizes(heads, edges),
        PACK=pack, TOKENS=QUERY_ROWS // pack, BLOCK=QUERY_KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    _attention_dkv[(_max_programs(tokens, KEYS_KEPT, edges), heads.key)](
        d_out, joined, log_sums, deltas, d_joined, *common_arguments, **_constexpr_sizes(heads, edges),
        PACK=pack, TOKENS=KEY_ROWS // pack, BLOCK=KEYS_KEPT, num_warps=4, num_stages=3,
    )  # fmt: skip
    return d_joined


def _packed_heads(heads: AttentionHeads) -> int:
    """Return the query heads per tile: the largest power of two that divides a group."""
    group = heads.query // heads.key
    return min(MAX_PACKED_HEADS, group & -group)


def _max_programs(tokens: int, tile: int, edges: Any) -> int:
    """Return an upper bound of the tiles of `tile` tokens; each sample may end in a partial tile."""
    return tokens // tile + len(edges) - 1


def _constexpr_sizes(heads: AttentionHeads, edges: Any) -> dict[str, int]:
    return {
        "QUERIES": heads.query,
        "KEYS": heads.key,
        "WIDTH": heads.width,
        "COUNT": max(64, next_power_of_2(len(edges) - 1)),  # few distinct values: each one compiles a kernel
    }


def _scale(heads: AttentionHeads) -> float:
    return float(heads.width**-0.5)


@jit
def _attention_tile_position(edges, count, tile, COUNT: tl.constexpr, TOKENS: tl.constexpr):
    """Return the first token and the length of the tile's sample, and the tile's first token within the sample.

    The length is 0 if `tile` exceeds the number of tiles.
    """
    sample_number = tl.arange(0, COUNT)
    first = tl.load(edges + sample_number, mask=sample_number < count, other=0)
    length = tl.load(edges + sample_number + 1, mask=sample_number < count, other=0) - first
    tile_ends = tl.cumsum((length + TOKENS - 1) // TOKENS, axis=0)
    is_before = tile_ends <= tile
    is_sample = sample_number == tl.sum(is_before.to(tl.int32), axis=0)
    begin = (tile - tl.max(tl.where(is_before, tile_ends, 0), axis=0)) * TOKENS
    return tl.sum(tl.where(is_sample, first, 0), axis=0), tl.sum(tl.where(is_sample, length, 0), axis=0), begin


@jit
def _attention_store_unrotated(target, gradient, cos, sin, token, offsets, mask, WIDTH: tl.constexpr):
    """Rotate each row of `gradient` (rows, WIDTH) back by its token's angles and store it at target + offsets."""
    HALF: tl.constexpr = WIDTH // 2
    column = tl.arange(0, HALF)
    a, b = tl.split(tl.permute(tl.reshape(gradient, (gradient.shape[0], 2, HALF)), (0, 2, 1)))
    angle = token[:, None] * HALF + column[None, :]
    cosine = tl.load(cos + angle, mask=mask[:, None], other=0.0)
    sine = tl.load(sin + angle, mask=mask[:, None], other=0.0)
    target += offsets[:, None] + column[None, :]
    dtype = target.dtype.element_ty
    tl.store(target, (a * cosine + b * sine).to(dtype), mask=mask[:, None])
    tl.store(target + HALF, (b * cosine - a * sine).to(dtype), mask=mask[:, None])


@jit
def _attention_load_queries(
    joined, first, begin, length, stride,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PACK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Return token, head and validity of each row of a tile, pointers to its keys and values, and the queries."""
    row, column = tl.arange(0, TOKENS * PACK), tl.arange(0, WIDTH)
    token, head = begin + row // PACK, tl.program_id(1) * PACK + row % PACK
    mask = token < length
    key_head = tl.program_id(1) * PACK // (QUERIES // KEYS)
    joined += first.to(tl.int64) * stride
    keys, values = joined + (QUERIES + key_head) * WIDTH, joined + (QUERIES + KEYS + key_head) * WIDTH
    q = tl.load(joined + (token * stride + head * WIDTH)[:, None] + column[None, :], mask=mask[:, None], other=0.0)
    return token, head, mask, keys, values, q


@jit
def _attention_forward_step(
    q, keys, values, start, stride, scale_log2, highest, total, out, token, length,
    MASKED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    key, column = start + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    offsets = key[:, None] * stride + column[None, :]
    if MASKED:
        k = tl.load(keys + offsets, mask=(key < length)[:, None], other=0.0)
        v = tl.load(values + offsets, mask=(key < length)[:, None], other=0.0)
    else:
        k, v = tl.load(keys + offsets), tl.load(values + offsets)
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if MASKED:
        score = tl.where((key[None, :] <= token[:, None]) & (key < length)[None, :], score, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(score, axis=1))
    weight = tl.exp2(score - new_highest[:, None])
    correction = tl.exp2(highest - new_highest)
    total = total * correction + tl.sum(weight, axis=1)
    out = tl.dot(weight.to(v.dtype), v, out * correction[:, None], input_precision="ieee")
    return new_highest, total, out


@jit(do_not_specialize=["count"])
def _attention_forward(
    joined, out, log_sums, edges, count, stride, scale_log2,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    PACK: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first, length, begin = _attention_tile_position(edges, count, tl.program_id(0), COUNT, TOKENS)
    if length == 0:
        return
    column = tl.arange(0, WIDTH)
    token, head, mask, keys, values, q = _attention_load_queries(
        joined, first, begin, length, stride, QUERIES, KEYS, WIDTH, PACK, TOKENS
    )
    highest = tl.full((TOKENS * PACK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((TOKENS * PACK,), dtype=tl.float32)
    result = tl.zeros((TOKENS * PACK, WIDTH), dtype=tl.float32)
    unmasked_end = (begin + 1) // BLOCK * BLOCK  # every query of this tile sees the keys before it
    for start in range(0, unmasked_end, BLOCK):
        highest, total, result = _attention_forward_step(
            q, keys, values, start, stride, scale_log2, highest, total, result, token, length,
            MASKED=False, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    for start in range(unmasked_end, tl.minimum(begin + TOKENS, length), BLOCK):
        highest, total, result = _attention_forward_step(
            q, keys, values, start, stride, scale_log2, highest, total, result, token, length,
            MASKED=True, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    offsets = (first.to(tl.int64) + token) * QUERIES + head
    tl.store(log_sums + offsets, highest + tl.log2(total), mask=mask)
    result = (result / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + offsets[:, None] * WIDTH + column[None, :], result, mask=mask[:, None])


@jit
def _attention_dq_step(
    q, d_out, log_sum, delta, keys, values, start, stride, scale_log2, dq, token, length,
    MASKED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    key, column = start + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    offsets = key[:, None] * stride + column[None, :]
    if MASKED:
        k = tl.load(keys + offsets, mask=(key < length)[:, None], other=0.0)
        v = tl.load(values + offsets, mask=(key < length)[:, None], other=0.0)
    else:
        k, v = tl.load(keys + offsets), tl.load(values + offsets)
    weight = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2 - log_sum[:, None])
    if MASKED:
        weight = tl.where((key[None, :] <= token[:, None]) & (key < length)[None, :], weight, 0.0)
    d_weight = tl.dot(d_out, tl.trans(v), input_precision="ieee")
    d_score = (weight * (d_weight - delta[:, None])).to(k.dtype)
    return tl.dot(d_score, k, dq, input_precision="ieee")


@jit(do_not_specialize=["count"])
def _attention_dq(
    d_out, joined, out, log_sums, deltas, d_joined, edges, count, cos, sin, stride, scale, scale_log2,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    PACK: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first, length, begin = _attention_tile_position(edges, count, tl.program_id(0), COUNT, TOKENS)
    if length == 0:
        return
    column = tl.arange(0, WIDTH)
    token, head, mask, keys, values, q = _attention_load_queries(
        joined, first, begin, length, stride, QUERIES, KEYS, WIDTH, PACK, TOKENS
    )
    offsets = (first.to(tl.int64) + token) * QUERIES + head
    out_offsets = offsets[:, None] * WIDTH + column[None, :]
    d_result = tl.load(d_out + out_offsets, mask=mask[:, None], other=0.0)
    result = tl.load(out + out_offsets, mask=mask[:, None], other=0.0)
    delta = tl.sum(d_result.to(tl.float32) * result.to(tl.float32), axis=1)
    tl.store(deltas + offsets, delta, mask=mask)
    log_sum = tl.load(log_sums + offsets, mask=mask, other=0.0)
    dq = tl.zeros((TOKENS * PACK, WIDTH), dtype=tl.float32)
    unmasked_end = (begin + 1) // BLOCK * BLOCK
    for start in range(0, unmasked_end, BLOCK):
        dq = _attention_dq_step(
            q, d_result, log_sum, delta, keys, values, start, stride, scale_log2, dq, token, length,
            MASKED=False, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    for start in range(unmasked_end, tl.minimum(begin + TOKENS, length), BLOCK):
        dq = _attention_dq_step(
            q, d_result, log_sum, delta, keys, values, start, stride, scale_log2, dq, token, length,
            MASKED=True, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    token = first.to(tl.int64) + token
    _attention_store_unrotated(
        d_joined, dq * scale, cos, sin, token, token * (QUERIES + 2 * KEYS) * WIDTH + head * WIDTH, mask, WIDTH=WIDTH
    )


@jit
def _attention_dkv_step(
    k, v, joined, d_out, log_sums, deltas, start, head, stride, scale_log2, dk, dv, key, length,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr, PACK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, TOKENS * PACK), tl.arange(0, WIDTH)
    token, head = start + row // PACK, head + row % PACK
    mask = token < length  # rows after the sample's end are 0 and add nothing to the sums
    offsets = token * QUERIES + head
    q = tl.load(joined + (token * stride + head * WIDTH)[:, None] + column[None, :], mask=mask[:, None], other=0.0)
    d_result = tl.load(d_out + offsets[:, None] * WIDTH + column[None, :], mask=mask[:, None], other=0.0)
    log_sum = tl.load(log_sums + offsets, mask=mask, other=0.0)
    delta = tl.load(deltas + offsets, mask=mask, other=0.0)
    weight = tl.exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * scale_log2 - log_sum[None, :])
    weight = tl.where(key[:, None] <= token[None, :], weight, 0.0)
    dv = tl.dot(weight.to(v.dtype), d_result, dv, input_precision="ieee")
    d_weight = tl.dot(v, tl.trans(d_result), input_precision="ieee")
    d_score = (weight * (d_weight - delta[None, :])).to(k.dtype)
    return tl.dot(d_score, q, dk, input_precision="ieee"), dv


@jit(do_not_specialize=["count"])
def _attention_dkv(
    d_out, joined, log_sums, deltas, d_joined, edges, count, cos, sin, stride, scale, scale_log2,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    PACK: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = QUERIES // KEYS
    first, length, begin = _attention_tile_position(edges, count, tl.program_id(0), COUNT, BLOCK)
    if length == 0:
        return
    key, column = begin + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    mask = key < length
    key_head = tl.program_id(1)
    first = first.to(tl.int64)
    joined += first * stride
    d_out += first * QUERIES * WIDTH
    log_sums += first * QUERIES
    deltas += first * QUERIES
    offsets = key[:, None] * stride + column[None, :]
    k = tl.load(joined + (QUERIES + key_head) * WIDTH + offsets, mask=mask[:, None], other=0.0)
    v = tl.load(joined + (QUERIES + KEYS + key_head) * WIDTH + offsets, mask=mask[:, None], other=0.0)
    dk = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    dv = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    for head in range(key_head * GROUP, key_head * GROUP + GROUP, PACK):
        for start in range(begin, length, TOKENS):
            dk, dv = _attention_dkv_step(
                k, v, joined, d_out, log_sums, deltas, start, head, stride, scale_log2, dk, dv, key,
                length, QUERIES=QUERIES, WIDTH=WIDTH, PACK=PACK, TOKENS=TOKENS,
            )  # fmt: skip
    token = first + key
    offsets = token * (QUERIES + 2 * KEYS) * WIDTH + (QUERIES + key_head) * WIDTH
    _attention_store_unrotated(d_joined, dk * scale, cos, sin, token, offsets, mask, WIDTH=WIDTH)
    offsets += KEYS * WIDTH
    tl.store(d_joined + offsets[:, None] + column[None, :], dv.to(d_joined.dtype.element_ty), mask=mask[:, None])
