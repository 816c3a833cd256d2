"""Causal attention over samples that lie end to end, each of which sees itself alone.

    out = softmax(q k^T / sqrt(D) + mask) v,   mask: same sample, key not after query, not farther back than the window

q: (T, Hq, D), k and v: (T, Hk, D), Hk a divisor of Hq; samples as cumulative lengths, int32 of shape (n + 1,). On a GPU this
is FlashAttention 2 (Dao 2023) as PyTorch carries it, through the operators under scaled_dot_product_attention: they take
samples of unequal length, views into the joined product and fewer key heads than query heads, which the public function
does not all at once. Elsewhere it is the formula, and autograd.

Bytes moved: 2T (Hq + 2 Hk) D in and 2T Hq D out, the scores never leave the chip. FLOP: 4 Hq D for each pair of a query and
a key that it sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Where the samples of a micro-batch begin and end: `edges` int32 of shape (n + 1,) on the device, from 0 to T.

    `longest` bounds their lengths, in tokens; it need not be reached. `window` is how many tokens a query sees, itself
    included; None for all before it.
    """

    edges: Any
    longest: int
    window: int | None = None

    @property
    def left(self) -> int | None:
        """How far back a query sees, as the kernels count; None where that reaches every sample's beginning."""
        return None if self.window is None or self.window >= self.longest else self.window - 1


def attend(q: Any, k: Any, v: Any, samples: Samples) -> tuple[Any, tuple[Any, ...]]:
    """(out of shape (T, Hq, D), what backward needs besides)."""
    if not q.is_cuda:
        return attend_reference(q, k, v, samples), ()
    edges, longest = samples.edges, samples.longest
    out, log_sums, state, unused, _ = torch.ops.aten._flash_attention_forward(
        q, k, v, edges, edges, longest, longest, 0.0, True, False, **_options(q, samples)
    )
    return out, (log_sums, state, unused)


def attend_backward(
    d_out: Any, q: Any, k: Any, v: Any, out: Any, kept: tuple[Any, ...], samples: Samples
) -> tuple[Any, Any, Any]:
    """dq, dk, dv of the shapes of q, k, v."""
    if not q.is_cuda:
        return attend_backward_reference(d_out, q, k, v, samples)
    edges, longest = samples.edges, samples.longest
    log_sums, state, unused = kept
    # The kernel's own order of additions is otherwise left to chance.
    before = torch.are_deterministic_algorithms_enabled()
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        gradients: tuple[Any, Any, Any] = torch.ops.aten._flash_attention_backward(
            d_out, q, k, v, out, log_sums, edges, edges, longest, longest, 0.0, True, state, unused,
            **_options(q, samples),
        )  # fmt: skip
    finally:
        torch._C._set_deterministic_algorithms(before)
    return gradients


def _options(q: Any, samples: Samples) -> dict[str, Any]:
    window = {} if samples.left is None else {"window_size_left": samples.left, "window_size_right": 0}
    return {"scale": q.shape[-1] ** -0.5, **window}


def attend_reference(q: Any, k: Any, v: Any, samples: Samples) -> Any:
    """The formula, a sample at a time."""
    edges, repeats = samples.edges.tolist(), q.shape[1] // k.shape[1]
    parts = []
    for first, last in zip(edges, edges[1:], strict=False):
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
        leaves = tuple(each.detach().requires_grad_() for each in (q, k, v))
        out = attend_reference(*leaves, samples)
        gradients: tuple[Any, Any, Any] = torch.autograd.grad(out, leaves, d_out)
    return gradients
