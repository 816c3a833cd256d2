"""Causal attention for samples of a few hundred tokens; its backward includes that of the rotation.

    forward    s = scale q k^T;  out = softmax(s) v;  log_sum = log2(sum of exp(s)), kept
    backward   delta = sum over D of d_out * out;  p = exp2(log2(e) s - log_sum);  ds = p * (d_out v^T - delta)
               dq = scale ds k;  dk = scale ds^T q;  dv = p^T d_out;  dq and dk turned back by their angles

A sample's tokens see their own sample alone. joined: (T, (Hq + 2 Hk) D), a row of query heads, key heads, value heads,
queries and keys rotated; out, d_out: (T, Hq, D); cos, sin: (T, D/2) float32; edges: int32 (n + 1,).

It suits short samples: query heads that share a key head are rows of one tile, so 32 tokens of 4 heads fill a tile of
128 and little of it is wasted at the end of a sample or on the diagonal. A program finds its tokens by the edges, so no
length is read back from the device and no program runs without tokens. One kernel computes dq, another dk and dv; one
program sums each number in a fixed order, without atomic additions.

Bytes moved: forward 2T (Hq + 2 Hk) D in, 2T Hq D out; backward both twice in, and 2T (Hq + 2 Hk) D out. FLOP: 2 Hq D
for each pair of a query and a key that it sees and each of 2 products forward, 7 backward.
"""

import math
from typing import Any

import torch

from bench.kernels.rope import AttentionHeads
from bench.kernels.triton_compat import compiled, jit, power_of_two, tl

WIDTHS = (16, 32, 64, 128)
MOST_HEADS = 8  # query heads to a tile
# A program keeps QUERY_ROWS rows of queries and loops over QUERY_KEYS keys at a time, or keeps KEYS_KEPT keys and loops
# over KEY_ROWS rows of queries. The best of 16 to 128 each with 4 or 8 warps and 1 to 3 stages, measured between large
# products, at 32 and 8 heads 128 wide and a mean of 228 tokens.
QUERY_ROWS, QUERY_KEYS = 64, 32
KEYS_KEPT, KEY_ROWS = 64, 32
LOG2_E = math.log2(math.e)
MIN_CAPABILITY = (8, 0)  # in sm_86 code, too, faster than FlashAttention 2 over packed samples


def fits(joined: Any, heads: AttentionHeads) -> bool:
    """Whether these kernels fit: 16 bit, a supported head width, and a GPU on which the tiles fit and are faster."""
    if not compiled(joined) or heads.width not in WIDTHS:
        return False
    if not joined.is_cuda:
        return True  # Triton's interpreter, for tests
    return bool(joined.element_size() == 2 and torch.cuda.get_device_capability(joined.device) >= MIN_CAPABILITY)


def forward(joined: Any, heads: AttentionHeads, edges: Any) -> tuple[Any, Any]:
    """(out, log_sums), log_sums float32 of shape (T, Hq)."""
    tokens = len(joined)
    out = torch.empty((tokens, heads.query, heads.width), dtype=joined.dtype, device=joined.device)
    log_sums = torch.empty((tokens, heads.query), dtype=torch.float32, device=joined.device)
    pack = _pack(heads)
    _attention_forward[(_programs(tokens, QUERY_ROWS // pack, edges), heads.query // pack)](
        joined, out, log_sums, edges, len(edges) - 1, joined.stride(0), _scale(heads) * LOG2_E, **_sizes(heads, edges),
        PACK=pack, TOKENS=QUERY_ROWS // pack, BLOCK=QUERY_KEYS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out, log_sums


def backward(
    d_out: Any, joined: Any, out: Any, log_sums: Any, heads: AttentionHeads, edges: Any, cos: Any, sin: Any
) -> Any:
    """The gradient of `joined` before queries and keys were rotated."""
    tokens = len(joined)
    d_joined = torch.empty((tokens, heads.joined), dtype=joined.dtype, device=joined.device)
    deltas = torch.empty_like(log_sums)
    pack = _pack(heads)
    same = (edges, len(edges) - 1, cos, sin, joined.stride(0), _scale(heads), _scale(heads) * LOG2_E)
    _attention_dq[(_programs(tokens, QUERY_ROWS // pack, edges), heads.query // pack)](
        d_out, joined, out, log_sums, deltas, d_joined, *same, **_sizes(heads, edges),
        PACK=pack, TOKENS=QUERY_ROWS // pack, BLOCK=QUERY_KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    _attention_dkv[(_programs(tokens, KEYS_KEPT, edges), heads.key)](
        d_out, joined, log_sums, deltas, d_joined, *same, **_sizes(heads, edges),
        PACK=pack, TOKENS=KEY_ROWS // pack, BLOCK=KEYS_KEPT, num_warps=4, num_stages=3,
    )  # fmt: skip
    return d_joined


def _pack(heads: AttentionHeads) -> int:
    """Query heads to a tile: the largest power of two that divides a group."""
    group = heads.query // heads.key
    return min(MOST_HEADS, group & -group)


def _programs(tokens: int, tile: int, edges: Any) -> int:
    """At least the tiles of `tile` tokens of all samples, each of which may end in a tile that is not full."""
    return tokens // tile + len(edges) - 1


def _sizes(heads: AttentionHeads, edges: Any) -> dict[str, int]:
    return {
        "QUERIES": heads.query,
        "KEYS": heads.key,
        "WIDTH": heads.width,
        "COUNT": max(64, power_of_two(len(edges) - 1)),  # few values: each compiles a kernel
    }


def _scale(heads: AttentionHeads) -> float:
    return float(heads.width**-0.5)


@jit
def _attention_place(edges, count, tile, COUNT: tl.constexpr, TOKENS: tl.constexpr):
    """Of tile number `tile`: its sample's first token, that sample's length, and the tile's first token within it.

    The length is 0 where there are fewer tiles.
    """
    each = tl.arange(0, COUNT)
    first = tl.load(edges + each, mask=each < count, other=0)
    length = tl.load(edges + each + 1, mask=each < count, other=0) - first
    ends = tl.cumsum((length + TOKENS - 1) // TOKENS, axis=0)
    before = ends <= tile
    sample = each == tl.sum(before.to(tl.int32), axis=0)
    begin = (tile - tl.max(tl.where(before, ends, 0), axis=0)) * TOKENS
    return tl.sum(tl.where(sample, first, 0), axis=0), tl.sum(tl.where(sample, length, 0), axis=0), begin


@jit
def _attention_turn_back(target, gradient, cos, sin, token, place, there, WIDTH: tl.constexpr):
    """Store `gradient` (rows, WIDTH) at target + place, each row turned back by the angles of its token."""
    HALF: tl.constexpr = WIDTH // 2
    column = tl.arange(0, HALF)
    a, b = tl.split(tl.permute(tl.reshape(gradient, (gradient.shape[0], 2, HALF)), (0, 2, 1)))
    angle = token[:, None] * HALF + column[None, :]
    cosine = tl.load(cos + angle, mask=there[:, None], other=0.0)
    sine = tl.load(sin + angle, mask=there[:, None], other=0.0)
    target += place[:, None] + column[None, :]
    kind = target.dtype.element_ty
    tl.store(target, (a * cosine + b * sine).to(kind), mask=there[:, None])
    tl.store(target + HALF, (b * cosine - a * sine).to(kind), mask=there[:, None])


@jit
def _attention_queries(
    joined, first, begin, length, stride,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, PACK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Of a tile: each row's token and head, which rows there are, where its sample's keys and values begin, queries."""
    row, column = tl.arange(0, TOKENS * PACK), tl.arange(0, WIDTH)
    token, head = begin + row // PACK, tl.program_id(1) * PACK + row % PACK
    there = token < length
    key_head = tl.program_id(1) * PACK // (QUERIES // KEYS)
    joined += first.to(tl.int64) * stride
    keys, values = joined + (QUERIES + key_head) * WIDTH, joined + (QUERIES + KEYS + key_head) * WIDTH
    q = tl.load(joined + (token * stride + head * WIDTH)[:, None] + column[None, :], mask=there[:, None], other=0.0)
    return token, head, there, keys, values, q


@jit
def _attention_see(
    q, keys, values, start, stride, scale_log2, highest, total, out, token, length,
    MASKED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    key, column = start + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    place = key[:, None] * stride + column[None, :]
    if MASKED:
        k = tl.load(keys + place, mask=(key < length)[:, None], other=0.0)
        v = tl.load(values + place, mask=(key < length)[:, None], other=0.0)
    else:
        k, v = tl.load(keys + place), tl.load(values + place)
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if MASKED:
        score = tl.where((key[None, :] <= token[:, None]) & (key < length)[None, :], score, float("-inf"))
    higher = tl.maximum(highest, tl.max(score, axis=1))
    share = tl.exp2(score - higher[:, None])
    shrunk = tl.exp2(highest - higher)
    total = total * shrunk + tl.sum(share, axis=1)
    out = tl.dot(share.to(v.dtype), v, out * shrunk[:, None], input_precision="ieee")
    return higher, total, out


@jit(do_not_specialize=["count"])
def _attention_forward(
    joined, out, log_sums, edges, count, stride, scale_log2,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    PACK: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first, length, begin = _attention_place(edges, count, tl.program_id(0), COUNT, TOKENS)
    if length == 0:
        return
    column = tl.arange(0, WIDTH)
    token, head, there, keys, values, q = _attention_queries(
        joined, first, begin, length, stride, QUERIES, KEYS, WIDTH, PACK, TOKENS
    )
    highest = tl.full((TOKENS * PACK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((TOKENS * PACK,), dtype=tl.float32)
    found = tl.zeros((TOKENS * PACK, WIDTH), dtype=tl.float32)
    whole = (begin + 1) // BLOCK * BLOCK  # keys that every query of this tile sees
    for start in range(0, whole, BLOCK):
        highest, total, found = _attention_see(
            q, keys, values, start, stride, scale_log2, highest, total, found, token, length,
            MASKED=False, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    for start in range(whole, tl.minimum(begin + TOKENS, length), BLOCK):
        highest, total, found = _attention_see(
            q, keys, values, start, stride, scale_log2, highest, total, found, token, length,
            MASKED=True, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    place = (first.to(tl.int64) + token) * QUERIES + head
    tl.store(log_sums + place, highest + tl.log2(total), mask=there)
    found = (found / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * WIDTH + column[None, :], found, mask=there[:, None])


@jit
def _attention_gather(
    q, d_out, log_sum, delta, keys, values, start, stride, scale_log2, dq, token, length,
    MASKED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    key, column = start + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    place = key[:, None] * stride + column[None, :]
    if MASKED:
        k = tl.load(keys + place, mask=(key < length)[:, None], other=0.0)
        v = tl.load(values + place, mask=(key < length)[:, None], other=0.0)
    else:
        k, v = tl.load(keys + place), tl.load(values + place)
    share = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2 - log_sum[:, None])
    if MASKED:
        share = tl.where((key[None, :] <= token[:, None]) & (key < length)[None, :], share, 0.0)
    d_share = tl.dot(d_out, tl.trans(v), input_precision="ieee")
    d_score = (share * (d_share - delta[:, None])).to(k.dtype)
    return tl.dot(d_score, k, dq, input_precision="ieee")


@jit(do_not_specialize=["count"])
def _attention_dq(
    d_out, joined, out, log_sums, deltas, d_joined, edges, count, cos, sin, stride, scale, scale_log2,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    PACK: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first, length, begin = _attention_place(edges, count, tl.program_id(0), COUNT, TOKENS)
    if length == 0:
        return
    column = tl.arange(0, WIDTH)
    token, head, there, keys, values, q = _attention_queries(
        joined, first, begin, length, stride, QUERIES, KEYS, WIDTH, PACK, TOKENS
    )
    place = (first.to(tl.int64) + token) * QUERIES + head
    of_out = place[:, None] * WIDTH + column[None, :]
    d_found = tl.load(d_out + of_out, mask=there[:, None], other=0.0)
    found = tl.load(out + of_out, mask=there[:, None], other=0.0)
    delta = tl.sum(d_found.to(tl.float32) * found.to(tl.float32), axis=1)
    tl.store(deltas + place, delta, mask=there)
    log_sum = tl.load(log_sums + place, mask=there, other=0.0)
    dq = tl.zeros((TOKENS * PACK, WIDTH), dtype=tl.float32)
    whole = (begin + 1) // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        dq = _attention_gather(
            q, d_found, log_sum, delta, keys, values, start, stride, scale_log2, dq, token, length,
            MASKED=False, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    for start in range(whole, tl.minimum(begin + TOKENS, length), BLOCK):
        dq = _attention_gather(
            q, d_found, log_sum, delta, keys, values, start, stride, scale_log2, dq, token, length,
            MASKED=True, WIDTH=WIDTH, BLOCK=BLOCK,
        )  # fmt: skip
    token = first.to(tl.int64) + token
    _attention_turn_back(
        d_joined, dq * scale, cos, sin, token, token * (QUERIES + 2 * KEYS) * WIDTH + head * WIDTH, there, WIDTH=WIDTH
    )


@jit
def _attention_scatter(
    k, v, joined, d_out, log_sums, deltas, start, head, stride, scale_log2, dk, dv, key, length,
    QUERIES: tl.constexpr, WIDTH: tl.constexpr, PACK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    row, column = tl.arange(0, TOKENS * PACK), tl.arange(0, WIDTH)
    token, head = start + row // PACK, head + row % PACK
    there = token < length  # rows after the sample's end are 0 and add nothing
    place = token * QUERIES + head
    q = tl.load(joined + (token * stride + head * WIDTH)[:, None] + column[None, :], mask=there[:, None], other=0.0)
    d_found = tl.load(d_out + place[:, None] * WIDTH + column[None, :], mask=there[:, None], other=0.0)
    log_sum = tl.load(log_sums + place, mask=there, other=0.0)
    delta = tl.load(deltas + place, mask=there, other=0.0)
    share = tl.exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * scale_log2 - log_sum[None, :])
    share = tl.where(key[:, None] <= token[None, :], share, 0.0)
    dv = tl.dot(share.to(v.dtype), d_found, dv, input_precision="ieee")
    d_share = tl.dot(v, tl.trans(d_found), input_precision="ieee")
    d_score = (share * (d_share - delta[None, :])).to(k.dtype)
    return tl.dot(d_score, q, dk, input_precision="ieee"), dv


@jit(do_not_specialize=["count"])
def _attention_dkv(
    d_out, joined, log_sums, deltas, d_joined, edges, count, cos, sin, stride, scale, scale_log2,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, COUNT: tl.constexpr,
    PACK: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = QUERIES // KEYS
    first, length, begin = _attention_place(edges, count, tl.program_id(0), COUNT, BLOCK)
    if length == 0:
        return
    key, column = begin + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    there = key < length
    key_head = tl.program_id(1)
    first = first.to(tl.int64)
    joined += first * stride
    d_out += first * QUERIES * WIDTH
    log_sums += first * QUERIES
    deltas += first * QUERIES
    place = key[:, None] * stride + column[None, :]
    k = tl.load(joined + (QUERIES + key_head) * WIDTH + place, mask=there[:, None], other=0.0)
    v = tl.load(joined + (QUERIES + KEYS + key_head) * WIDTH + place, mask=there[:, None], other=0.0)
    dk = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    dv = tl.zeros((BLOCK, WIDTH), dtype=tl.float32)
    for head in range(key_head * GROUP, key_head * GROUP + GROUP, PACK):
        for start in range(begin, length, TOKENS):
            dk, dv = _attention_scatter(
                k, v, joined, d_out, log_sums, deltas, start, head, stride, scale_log2, dk, dv, key,
                length, QUERIES=QUERIES, WIDTH=WIDTH, PACK=PACK, TOKENS=TOKENS,
            )  # fmt: skip
    token = first + key
    place = token * (QUERIES + 2 * KEYS) * WIDTH + (QUERIES + key_head) * WIDTH
    _attention_turn_back(d_joined, dk * scale, cos, sin, token, place, there, WIDTH=WIDTH)
    place += KEYS * WIDTH
    tl.store(d_joined + place[:, None] + column[None, :], dv.to(d_joined.dtype.element_ty), mask=there[:, None])
