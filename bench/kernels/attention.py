"""Causal attention over samples laid end to end, each of which attends to itself alone.

    out = softmax(q k^T / sqrt(D) + mask) v,   mask: same sample, key not after query, not farther back than the window

joined: (T, (Hq + 2 Hk) D), the joined product of q, k and v, queries and keys rotated (`bench.kernels.rope`), Hk a
divisor of Hq; samples as cumulative lengths, int32 of shape (n + 1,). Short samples have kernels of their own
(`bench.kernels.short_attention`). For the others the operators under scaled_dot_product_attention are called:
FlashAttention 2 (Dao 2023) for samples of unequal length; cuDNN's kernel for equal lengths on Hopper and later. Without
a GPU it is the formula, with autograd.

Bytes moved: 2T (Hq + 2 Hk) D in and 2T Hq D out, the scores never leave the chip. FLOP: 4 Hq D for each pair of a
query and a key that it sees.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from bench.kernels import short_attention
from bench.kernels.rope import AttentionHeads, unrotate

CUDNN_WIDEST_HEAD = 128
HOPPER = 9  # from this compute capability on cuDNN's kernel is faster
SHORT = 1024  # the most tokens of a short sample


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Where the samples of a micro-batch begin and end: `edges` int32 of shape (n + 1,) on the device, from 0 to T.

    `longest` is an upper bound of their lengths in tokens. `rows` is n where all have the same length, else 0. `window`
    is how many tokens a query sees, itself included; None for all before it.
    """

    edges: Any
    longest: int
    window: int | None = None
    rows: int = 0

    @property
    def left(self) -> int | None:
        """How far back a query sees, as the kernels count; None without a limit."""
        return None if self.window is None or self.window >= self.longest else self.window - 1


def attend(joined: Any, heads: AttentionHeads, samples: Samples) -> tuple[Any, tuple[Any, ...]]:
    """(out of shape (T, Hq, D), what backward needs beside it)."""
    if _is_short(joined, heads, samples):
        out, log_sums = short_attention.forward(joined, heads, samples.edges)
        return out, (log_sums,)
    q, k, v = heads.split(joined)
    if not q.is_cuda:
        return attend_reference(q, k, v, samples), ()
    if _for_cudnn(q, samples):
        parts = (_by_rows(part, samples) for part in (q, k, v))
        out, *kept = torch.ops.aten._scaled_dot_product_cudnn_attention(
            *parts, None, True, 0.0, True, False, scale=_scale(q)
        )
        return out.transpose(1, 2).reshape(q.shape), tuple(kept)
    edges, longest = samples.edges, samples.longest
    out, log_sums, state, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, edges, edges, longest, longest, 0.0, True, False, scale=_scale(q), **_window(samples)
    )
    return out, (log_sums, state, unused)


def attend_backward(
    d_out: Any,
    joined: Any,
    heads: AttentionHeads,
    out: Any,
    kept: tuple[Any, ...],
    samples: Samples,
    cos: Any,
    sin: Any,
) -> Any:
    """The gradient of `joined` before its queries and keys were rotated by these angles, (T, D/2) float32."""
    if _is_short(joined, heads, samples):
        return short_attention.backward(d_out, joined, out, kept[0], heads, samples.edges, cos, sin)
    q, k, v = heads.split(joined)
    if not q.is_cuda:
        return unrotate(*attend_backward_reference(d_out, q, k, v, samples), cos, sin, heads)
    with _deterministic():
        if _for_cudnn(q, samples):
            log_sums, edges_q, edges_k, longest_q, longest_k, seed, offset, _ = kept
            d_out, q, k, v, out = (_by_rows(part, samples) for part in (d_out, q, k, v, out))
            found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                d_out, q, k, v, out, log_sums, seed, offset, None, edges_q, edges_k, longest_q, longest_k, 0.0, True,
                scale=_scale(q),
            )  # fmt: skip
            dq, dk, dv = (part.transpose(1, 2).flatten(0, 1) for part in found)
        else:
            edges, longest, (log_sums, state, unused) = samples.edges, samples.longest, kept
            dq, dk, dv = torch.ops.aten._flash_attention_backward(
                d_out, q, k, v, out, log_sums, edges, edges, longest, longest, 0.0, True, state, unused,
                scale=_scale(q), **_window(samples),
            )  # fmt: skip
    return unrotate(dq, dk, dv, cos, sin, heads)


def _is_short(joined: Any, heads: AttentionHeads, samples: Samples) -> bool:
    short = samples.longest <= SHORT and samples.rows == 0 and samples.left is None
    return short and short_attention.fits(joined, heads)


def _for_cudnn(q: Any, samples: Samples) -> bool:
    if samples.rows == 0 or samples.left is not None or q.shape[-1] > CUDNN_WIDEST_HEAD:
        return False
    if samples.longest == 1:
        return False  # its backward ends in a segmentation fault (torch 2.11)
    return bool(torch.cuda.get_device_capability(q.device)[0] >= HOPPER)


def _by_rows(part: Any, samples: Samples) -> Any:
    """(T, heads, D) as (rows, heads, T / rows, D), a view."""
    return part.unflatten(0, (samples.rows, -1)).transpose(1, 2)


def _scale(q: Any) -> float:
    return float(q.shape[-1] ** -0.5)


def _window(samples: Samples) -> dict[str, int]:
    return {} if samples.left is None else {"window_size_left": samples.left, "window_size_right": 0}


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Makes the kernels add in a fixed order, without filling new memory."""
    before, fills = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=False)
        torch.utils.deterministic.fill_uninitialized_memory = fills


def attend_reference(q: Any, k: Any, v: Any, samples: Samples) -> Any:
    """The formula, a sample at a time."""
    edges, repeats = samples.edges.tolist(), q.shape[1] // k.shape[1]
    parts = []
    for first, last in pairwise(edges):
        queries = q[first:last].transpose(0, 1).float()
        keys, values = (each[first:last].transpose(0, 1).repeat_interleave(repeats, 0).float() for each in (k, v))
        ahead = torch.arange(last - first, device=q.device)
        distance = ahead[:, None] - ahead[None, :]
        seen = distance >= 0 if samples.left is None else (distance >= 0) & (distance <= samples.left)
        scores = (queries @ keys.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
        parts.append((torch.softmax(scores, dim=-1) @ values).transpose(0, 1))
    return torch.cat(parts).to(q.dtype)


def attend_backward_reference(d_out: Any, q: Any, k: Any, v: Any, samples: Samples) -> tuple[Any, Any, Any]:
    with torch.enable_grad():
        queries, keys, values = (each.detach().requires_grad_() for each in (q, k, v))
        out = attend_reference(queries, keys, values, samples)
        gradients: tuple[Any, Any, Any] = torch.autograd.grad(out, (queries, keys, values), d_out)
    return gradients
