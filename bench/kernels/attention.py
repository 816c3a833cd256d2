"""Causal attention over concatenated samples, each of which attends only to itself.

    out = softmax(q k^T / sqrt(D) + mask) v,   mask: same sample, key not after query, key within the window

joined: (T, (Hq + 2 Hk) D), the joined product of q, k and v, queries and keys rotated (`bench.kernels.rope`), Hk a
divisor of Hq; samples are cumulative lengths, int32 of shape (n + 1,). Short samples use
`bench.kernels.short_attention`. The others use the operators below scaled_dot_product_attention: FlashAttention 2
(Dao 2023) for unequal lengths, cuDNN's kernel for equal lengths on Hopper and later. Without a GPU the formula is
evaluated directly, with autograd.

Bytes moved: 2T (Hq + 2 Hk) D in and 2T Hq D out; the scores stay on the chip. FLOP: 4 Hq D for each visible pair of a
query and a key.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from bench.kernels import short_attention
from bench.kernels.rope import AttentionHeads, unrotate
from bench.kernels.triton_compat import gpu_properties, on_gpu

CUDNN_MAX_HEAD_WIDTH = 128
CUDNN_MIN_MAJOR = 9  # cuDNN's kernel is faster from this major compute capability on
MAX_SHORT_TOKENS = 1024


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Sample boundaries of a micro-batch: `edges` int32 of shape (n + 1,) on the device, from 0 to T.

    `longest` is an upper bound of the lengths in tokens. `rows` is n if all lengths are equal, else 0. `window` is the
    number of tokens a query sees, itself included; None for all tokens before it.
    """

    edges: Any
    longest: int
    window: int | None = None
    rows: int = 0

    @property
    def left(self) -> int | None:
        """Number of earlier tokens that a query sees, as the kernels count them; None without a limit."""
        return None if self.window is None or self.window >= self.longest else self.window - 1


def attend(joined: Any, heads: AttentionHeads, samples: Samples) -> tuple[Any, tuple[Any, ...]]:
    """Return (out of shape (T, Hq, D), the other tensors that backward needs)."""
    if _is_short(joined, heads, samples):
        out, log_sums = short_attention.forward(joined, heads, samples.edges)
        return out, (log_sums,)
    q, k, v = heads.split(joined)
    if not on_gpu(q):
        return attend_reference(q, k, v, samples), ()
    if _uses_cudnn(q, samples):
        parts = (_batched(part, samples) for part in (q, k, v))
        out, *kept = torch.ops.aten._scaled_dot_product_cudnn_attention(
            *parts, None, True, 0.0, True, False, scale=_scale(q)
        )
        return out.transpose(1, 2).reshape(q.shape), tuple(kept)
    edges, longest = samples.edges, samples.longest
    out, log_sums, state, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, edges, edges, longest, longest, 0.0, True, False, scale=_scale(q), **_window_options(samples)
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
    """Return the gradient of the unrotated `joined`. `cos` and `sin` are the rotation, (T, D/2) float32."""
    if _is_short(joined, heads, samples):
        return short_attention.backward(d_out, joined, out, kept[0], heads, samples.edges, cos, sin)
    q, k, v = heads.split(joined)
    if not on_gpu(q):
        return unrotate(*attend_backward_reference(d_out, q, k, v, samples), cos, sin, heads)
    with _deterministic():
        if _uses_cudnn(q, samples):
            log_sums, edges_q, edges_k, longest_q, longest_k, seed, offset, _ = kept
            d_out, q, k, v, out = (_batched(part, samples) for part in (d_out, q, k, v, out))
            gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
                d_out, q, k, v, out, log_sums, seed, offset, None, edges_q, edges_k, longest_q, longest_k, 0.0, True,
                scale=_scale(q),
            )  # fmt: skip
            dq, dk, dv = (part.transpose(1, 2).flatten(0, 1) for part in gradients)
        else:
            edges, longest, (log_sums, state, unused) = samples.edges, samples.longest, kept
            dq, dk, dv = torch.ops.aten._flash_attention_backward(
                d_out, q, k, v, out, log_sums, edges, edges, longest, longest, 0.0, True, state, unused,
                scale=_scale(q), **_window_options(samples),
            )  # fmt: skip
    return unrotate(dq, dk, dv, cos, sin, heads)


def _is_short(joined: Any, heads: AttentionHeads, samples: Samples) -> bool:
    short = samples.longest <= MAX_SHORT_TOKENS and samples.rows == 0 and samples.left is None
    return short and short_attention.is_supported(joined, heads)


def _uses_cudnn(q: Any, samples: Samples) -> bool:
    if samples.rows == 0 or samples.left is not None or q.shape[-1] > CUDNN_MAX_HEAD_WIDTH:
        return False
    if samples.longest == 1:
        return False  # cuDNN's backward crashes with a segmentation fault (torch 2.11)
    return bool(gpu_properties(q.device)[0][0] >= CUDNN_MIN_MAJOR)


def _batched(part: Any, samples: Samples) -> Any:
    """View (T, heads, D) as (rows, heads, T / rows, D)."""
    return part.unflatten(0, (samples.rows, -1)).transpose(1, 2)


def _scale(q: Any) -> float:
    return float(q.shape[-1] ** -0.5)


def _window_options(samples: Samples) -> dict[str, int]:
    return {} if samples.left is None else {"window_size_left": samples.left, "window_size_right": 0}


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Make the kernels add in a fixed order, without filling new memory."""
    was_deterministic, filled_memory = (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(was_deterministic, warn_only=False)
        torch.utils.deterministic.fill_uninitialized_memory = filled_memory


def attend_reference(q: Any, k: Any, v: Any, samples: Samples) -> Any:
    """Evaluate the formula, one sample at a time."""
    edges, repeats = samples.edges.tolist(), q.shape[1] // k.shape[1]
    parts = []
    for first, last in pairwise(sorted(set(edges))):  # without empty samples
        queries = q[first:last].transpose(0, 1).float()
        keys, values = (heads[first:last].transpose(0, 1).repeat_interleave(repeats, 0).float() for heads in (k, v))
        position = torch.arange(last - first, device=q.device)
        distance = position[:, None] - position[None, :]
        is_visible = distance >= 0 if samples.left is None else (distance >= 0) & (distance <= samples.left)
        scores = (queries @ keys.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(~is_visible, float("-inf"))
        parts.append((torch.softmax(scores, dim=-1) @ values).transpose(0, 1))
    return torch.cat(parts).to(q.dtype)


def attend_backward_reference(d_out: Any, q: Any, k: Any, v: Any, samples: Samples) -> tuple[Any, Any, Any]:
    with torch.enable_grad():
        queries, keys, values = (each.detach().requires_grad_() for each in (q, k, v))
        out = attend_reference(queries, keys, values, samples)
        gradients: tuple[Any, Any, Any] = torch.autograd.grad(out, (queries, keys, values), d_out)
    return gradients
