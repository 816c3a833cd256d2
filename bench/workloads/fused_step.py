"""One decoding step of a model in NF4 on a GPU, in five kernels a layer (`bench.kernels.decode`).

    qkv = q, k, v of norm(x);  out = attend(qkv);  x += o(out);  act = silu(gate) * up of norm(x);  x += down(act)

LoRA adapters on a product add one kernel. The arithmetic is the model's own forward, up to rounding.

Not covered: several tokens at once, a sliding window narrower than the cache, adapters of several ranks.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

from bench.architectures import Feature, find
from bench.architectures.architecture import PRODUCT_INPUTS
from bench.kernels.decode import attention, products
from bench.kernels.decode.attention import DecodeAttention
from bench.kernels.decode.products import DecodeLora, DecodeProduct, Norm
from bench.kernels.norm import rms_norm
from bench.kernels.rope import AttentionHeads
from bench.torch_stack import Stack

# Nothing of these is left in a step: angles are a table, the caller disables a window, the head comes after.
FEATURES = frozenset({Feature.ATTENTION_DROPOUT, Feature.SCALED_ROTATION, Feature.SLIDING_WINDOW, Feature.TIED_HEAD})
GATE_UP_LAYERS = 2


@dataclass(frozen=True, kw_only=True)
class FusedDecodeLayer:
    """A decoder layer's products, keys and values; the last two are (batch, key heads, length, width) each."""

    qkv: DecodeProduct
    out: DecodeProduct
    gate_up: DecodeProduct
    down: DecodeProduct
    keys: Any
    values: Any


class FusedStep:
    """The decoding step `step(tokens, position)`; all other data that it reads and writes has fixed addresses.

    Call `unsupported_reason` first.
    """

    def __init__(
        self, stack: Stack, decoder: Any, cache: Any, heads: AttentionHeads, cos_sin: Any, *, batch: int
    ) -> None:
        self._decoder = decoder
        self._attention = DecodeAttention(heads, *cos_sin, batch=batch)
        modules = find(decoder.config.to_dict()).modules
        self._layers = [
            FusedDecodeLayer(
                qkv=_product(modules(layer, "qkv"), batch, norm=layer.input_layernorm),
                out=_product(modules(layer, "out"), batch),
                gate_up=_product(modules(layer, "gate_up"), batch, norm=layer.post_attention_layernorm, gated=True),
                down=_product(modules(layer, "down"), batch),
                keys=stack.layer_cache(cache, index)[0],
                values=stack.layer_cache(cache, index)[1],
            )
            for index, layer in enumerate(decoder.layers)
        ]

    def __call__(self, tokens: Any, position: Any) -> Any:
        """Return the last norm's output (batch, hidden) for `tokens` int64 (batch,), all at `position` int64 (1,)."""
        x = self._decoder.embed_tokens(tokens)
        for layer in self._layers:
            x = layer.out(self._attention(layer.qkv(x), position, layer.keys, layer.values), residual=x)
            x = layer.down(layer.gate_up(x), residual=x)
        norm = self._decoder.norm
        return rms_norm(x, norm.weight, norm.variance_epsilon)[0]


def unsupported_reason(stack: Stack, decoder: Any, heads: AttentionHeads, *, batch: int) -> str | None:
    """Return the first reason why this step does not support this decoder; None if it does."""
    norm = decoder.norm.weight
    if (reason := products.unsupported_reason(norm.device) or attention.unsupported_reason(heads)) is not None:
        return reason
    if batch > products.MAX_ROWS:
        return f"{batch} sequences, more than {products.MAX_ROWS}"
    config = decoder.config.to_dict()
    architecture = find(config)
    if (reason := architecture.unsupported_feature(config, FEATURES)) is not None:
        return reason
    if len(architecture.product("gate_up")) != GATE_UP_LAYERS:
        return "gate and up in one layer"
    if norm.dtype != stack.torch.bfloat16:
        return f"a model in {norm.dtype}, not bfloat16"
    used: set[tuple[int, float]] = set()
    for layer in decoder.layers:
        ranks = set()
        for linear in chain.from_iterable(architecture.modules(layer, product) for product in PRODUCT_INPUTS):
            base = _base(linear)
            if not isinstance(base, stack.bitsandbytes.nn.Linear4bit) or base.bias is not None:
                return "a base that is not NF4, or has biases"
            if products.supported_weight(base.weight) is None:
                return f"a weight of {tuple(base.weight.quant_state.shape)}"
            if (lora := _lora(linear)) is not None:
                ranks.add((len(lora.a), lora.scaling))
        if len(ranks) > 1:
            return "adapters of several ranks or scalings"
        used |= ranks
    geometry = architecture.geometry(config)
    widest = max(geometry.hidden, geometry.inner)
    return products.capacity_error(norm.device, widest, batch, max((rank for rank, _ in used), default=0))


def _product(linears: tuple[Any, ...], batch: int, *, norm: Any = None, gated: bool = False) -> DecodeProduct:
    return DecodeProduct(
        tuple(weight for linear in linears if (weight := products.supported_weight(_base(linear).weight)) is not None),
        norm=None if norm is None else Norm(weight=norm.weight, eps=norm.variance_epsilon),
        gated=gated,
        adapters=tuple(_lora(linear) for linear in linears),
        max_rows=batch,
    )


def _base(linear: Any) -> Any:
    """Return the frozen layer inside peft's."""
    return getattr(linear, "base_layer", linear)


def _lora(linear: Any) -> DecodeLora | None:
    """Return the active peft adapter of a layer, or None."""
    active = [name for name in getattr(linear, "active_adapters", ()) if name in linear.lora_A]
    if not active or linear.disable_adapters:
        return None
    (name,) = active
    return DecodeLora(a=linear.lora_A[name].weight, b=linear.lora_B[name].weight, scaling=float(linear.scaling[name]))
