"""Attention of one new token per sequence, with the query heads of a group as rows of one small product.

transformers copies keys and values once for each query head of a group whenever a mask is given, and a static cache
needs a mask: at batch 32, 640 positions and Mistral's shape these copies write 10.7 GB a token. Seen as rows, the
group's queries share their keys where they lie. Nothing is computed differently.

    q (batch, heads, 1, width) -> (batch, kv_heads, heads / kv_heads, width); softmax(q k^T scale + mask) v
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

NAME = "qlora_fleet_grouped"


@contextlib.contextmanager
def used_in(stack: Any, model: Any) -> Iterator[None]:
    """Inside, `model` attends like this; every call must give one token per sequence and a mask of four dimensions."""
    functions = stack.transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    functions[NAME] = _attend(stack.torch)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
        del functions[NAME]


def _attend(torch: Any) -> Any:
    def attend(
        _module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **_more: Any
    ) -> tuple[Any, None]:
        batch, heads, tokens, width = query.shape
        if tokens != 1:
            raise ValueError(f"one token per sequence is attended to here, not {tokens}")
        grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
        # The mask's row is repeated without being copied.
        mask = attention_mask.expand(batch, 1, grouped.shape[2], attention_mask.shape[-1])
        out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
        return out.reshape(batch, 1, heads, width), None

    return attend
