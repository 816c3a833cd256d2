"""One decoding step written out, for one new token of every sequence.

    x = embedding; a layer: q, k, v of norm(x), rotated, k and v into the cache; x += out(attend); x += mlp(norm(x))

The same arithmetic as the model's own forward in 15 kernels a layer instead of about 50: with few sequences, launching
kernels takes longer than arithmetic. The norm's kernel adds the residual; rotation and gate are one kernel each. A base
in NF4 on a GPU takes five kernels a layer (`bench.kernels.decode`; LoRA adapters on a product add one):

    qkv = q, k, v of norm(x);  out = attend(qkv);  x += o(out);  act = silu(gate) * up of norm(x);  x += down(act)

The query heads of a group are rows of one small product over the keys in place. With a mask, which a static cache
needs, transformers copies keys and values once for each query head of a group: at batch 32, 640 positions and Mistral's
shape 10.7 GB a token.

Not covered: several tokens at once, a sliding window narrower than the cache, in the fused step adapters of several
ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from bench.architectures import Feature, find
from bench.architectures.architecture import PRODUCT_INPUTS
from bench.kernels.decode import attention, products
from bench.kernels.decode.attention import DecodeAttention
from bench.kernels.decode.products import DecodeLora, DecodeProduct, Norm
from bench.kernels.norm import rms_norm
from bench.kernels.rope import AttentionHeads, rotate_
from bench.kernels.swiglu import swiglu
from bench.torch_stack import Stack

Product = Callable[[Any], Any]
# Nothing of these is left in a step: angles are a table, the caller disables a window, the head comes after.
FUSED_FEATURES = frozenset(
    {Feature.ATTENTION_DROPOUT, Feature.SCALED_ROTATION, Feature.SLIDING_WINDOW, Feature.TIED_HEAD}
)
GATE_UP_LAYERS = 2
ACTIVATIONS = frozenset({Feature.GEGLU, Feature.OTHER_ACTIVATION})  # computed by the model's own function
FEATURES = FUSED_FEATURES | ACTIVATIONS | {Feature.QKV_BIAS, Feature.OTHER_BIAS}  # biases by the model's modules


@dataclass(frozen=True, kw_only=True)
class DecodeLayer:
    """A decoder layer's norms, products, keys and values; the last two are (batch, key heads, length, width) each."""

    norm_in: Any
    norm_mid: Any
    qkv: tuple[Product, ...]
    out: tuple[Product, ...]
    gate_up: tuple[Product, ...]
    down: tuple[Product, ...]
    keys: Any
    values: Any


def make_step(stack: Stack, decoder: Any, cache: Any, *, batch: int, length: int) -> tuple[Any, str | None]:
    """Make `step(tokens, position)`; return it and the reason why it is not the fused step, None if it is.

    `decoder` is the model without its head; `cache` a static cache of `length` that a first prompt has filled; `batch`
    the number of sequences. A step reads and writes only fixed addresses, so that it can be captured.
    """
    config = decoder.config.to_dict()
    architecture = find(config)
    if (reason := architecture.unsupported_feature(config, FEATURES, length)) is not None:
        return ModelStep(stack, decoder, cache), reason
    geometry = architecture.geometry(config)
    heads = AttentionHeads(query=geometry.heads, key=geometry.key_heads, width=geometry.head_width)
    positions = stack.torch.arange(length, device=decoder.embed_tokens.weight.device)[None]
    cos, sin = decoder.rotary_emb(positions.new_empty(0, dtype=stack.torch.float32), positions)
    cos_sin = tuple(part[0, :, : heads.width // 2].float().contiguous() for part in (cos, sin))
    reason = not_fused_reason(stack, decoder, heads, batch=batch, length=length)
    if reason is None:
        return FusedStep(stack, decoder, cache, heads, cos_sin, batch=batch), None
    return DecodeStep(stack, decoder, cache, heads, cos_sin), reason


class ModelStep:
    """The decoding step by the model's own forward, for features that the written-out steps do not support."""

    def __init__(self, stack: Stack, decoder: Any, cache: Any) -> None:
        self._stack, self._decoder, self._cache = stack, decoder, cache

    def __call__(self, tokens: Any, position: Any) -> Any:
        """Return the last norm's output (batch, hidden) for `tokens` int64 (batch,), all at `position` int64 (1,)."""
        return self._decoder(
            input_ids=tokens[:, None],
            past_key_values=self._cache,
            use_cache=True,
            **self._stack.position_arguments(self._decoder, position),
        ).last_hidden_state[:, 0]


class DecodeStep:
    """The decoding step `step(tokens, position)` for a base in any precision on any device."""

    def __init__(self, stack: Stack, decoder: Any, cache: Any, heads: AttentionHeads, cos_sin: Any) -> None:
        torch = stack.torch
        self._torch, self._decoder, self._heads = torch, decoder, heads
        config = decoder.config.to_dict()
        architecture = find(config)
        self._is_silu = ACTIVATIONS.isdisjoint(architecture.features(config))
        self._cos, self._sin = cos_sin
        dtype, device = stack.layer_cache(cache, 0)[0].dtype, self._cos.device
        self._columns = torch.arange(len(self._cos), device=device)
        self._visible = torch.zeros((), dtype=dtype, device=device)
        self._masked = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=device)
        self._layers = [
            DecodeLayer(
                norm_in=layer.input_layernorm,
                norm_mid=layer.post_attention_layernorm,
                **{product: architecture.modules(layer, product) for product in PRODUCT_INPUTS},
                keys=stack.layer_cache(cache, index)[0],
                values=stack.layer_cache(cache, index)[1],
            )
            for index, layer in enumerate(decoder.layers)
        ]

    def __call__(self, tokens: Any, position: Any) -> Any:
        """Return the last norm's output (batch, hidden) for `tokens` int64 (batch,), all at `position` int64 (1,)."""
        x, y = self._decoder.embed_tokens(tokens), None
        positions = position.expand(len(tokens))
        cos, sin = self._cos.index_select(0, positions), self._sin.index_select(0, positions)
        # The mask is added to the scores: 0 up to the position, the smallest number after it.
        mask = self._torch.where(self._columns <= position, self._visible, self._masked).view(1, 1, 1, -1)
        for layer in self._layers:
            normed, _, x = rms_norm(x, layer.norm_in.weight, layer.norm_in.variance_epsilon, y)
            y = self._multiply(layer.out, self._attend(layer, normed, position, mask, cos, sin))
            normed, _, x = rms_norm(x, layer.norm_mid.weight, layer.norm_mid.variance_epsilon, y)
            y = self._multiply(layer.down, self._gated(self._multiply(layer.gate_up, normed)))
        norm = self._decoder.norm
        return rms_norm(x, norm.weight, norm.variance_epsilon, y)[0]

    def _attend(self, layer: DecodeLayer, normed: Any, position: Any, mask: Any, cos: Any, sin: Any) -> Any:
        torch, heads = self._torch, self._heads
        qkv = self._multiply(layer.qkv, normed)
        rotate_(qkv, cos, sin, heads)
        q, k, v = heads.split(qkv)
        layer.keys.index_copy_(2, position, k[:, :, None])
        layer.values.index_copy_(2, position, v[:, :, None])
        grouped = q.reshape(len(q), heads.key, heads.query // heads.key, heads.width)
        rows = mask.expand(len(q), 1, grouped.shape[2], mask.shape[-1])
        out = torch.nn.functional.scaled_dot_product_attention(grouped, layer.keys, layer.values, attn_mask=rows)
        return out.reshape(len(q), heads.query * heads.width)

    def _multiply(self, product: tuple[Product, ...], x: Any) -> Any:
        """Return the outputs of a product's linear layers, joined."""
        outputs = [linear(x) for linear in product]
        return outputs[0] if len(outputs) == 1 else self._torch.cat(outputs, dim=-1)

    def _gated(self, gate_up: Any) -> Any:
        if self._is_silu:
            return swiglu(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return self._decoder.layers[0].mlp.act_fn(gate) * up


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

    Call `not_fused_reason` first.
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


def not_fused_reason(stack: Stack, decoder: Any, heads: AttentionHeads, *, batch: int, length: int) -> str | None:
    """Return the first reason why this step does not support this decoder; None if it does."""
    norm = decoder.norm.weight
    if (reason := products.unsupported_reason(norm.device) or attention.unsupported_reason(heads)) is not None:
        return reason
    if batch > products.MAX_ROWS:
        return f"{batch} sequences, more than {products.MAX_ROWS}"
    config = decoder.config.to_dict()
    architecture = find(config)
    if (reason := architecture.unsupported_feature(config, FUSED_FEATURES, length)) is not None:
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
