"""`fast`: the reference's arithmetic in fewer kernels and less memory.

Instead of the published loop:

- The residual stream is in bf16 and eight bits more: norms, embeddings and head stay as they are in the model's files;
  sums inside a kernel are float32.
- NF4 becomes bf16 in one pass (`bench.kernels.nf4`); q, k, v and gate, up are one product each, with the adapters'
  product inside (`bench.qlora.recipes.fused_linear`).
- Forward and backward are written out (`bench.qlora.recipes.layer`), which decides what is kept and what is recomputed.
- Cross entropy runs in chunks over the frozen head and computes its gradient on the way (`bench.kernels.loss`).
- Packed samples attend to themselves alone (`bench.kernels.attention`).

The model stays a peft model with peft's parameters: `save_pretrained` writes them and plain peft loads them. Where this
recipe does not fit, `why_not` names the first reason and `stock` is used.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from bench.kernels import nf4
from bench.kernels.attention import Samples
from bench.kernels.loss import IGNORED, head_loss, head_losses
from bench.kernels.norm import ResidualStream, rms_norm_backward, stream_norm
from bench.kernels.rope import AttentionHeads
from bench.kernels.triton_compat import HAS_TRITON
from bench.qlora.recipes import adapters
from bench.qlora.recipes import int8 as in_eight_bits
from bench.qlora.recipes.cuda_graph import CapturedGraph, CapturedStep
from bench.qlora.recipes.fused_linear import Adapter, FusedLinear, dequantized
from bench.qlora.recipes.int8 import Int8Linear
from bench.qlora.recipes.layer import PRODUCTS, FastLayer, TokenLayout, run_layer
from bench.qlora.recipes.offload import Offload, OffloadedTables
from bench.qlora.step import Placement, TrainingStep, make_optimizer
from bench.records import Trial
from bench.torch_stack import Stack

ARCHITECTURES = ("llama", "mistral")
LEAST_CAPABILITY = (8, 0)  # bf16 matrix products and FlashAttention 2
LEAST_TORCH = (2, 10)
WIDEST_HEAD = 256  # of FlashAttention 2
DEPENDS_ON_LENGTH = ("dynamic", "longrope")  # kinds of rotation whose angles change with the length
JOINED = {
    "joined": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "out": ("self_attn", ("o_proj",)),
    "gate_up": ("mlp", ("gate_proj", "up_proj")),
    "down": ("mlp", ("down_proj",)),
}


def unsupported_reason(stack: Stack, trial: Trial, placement: Placement, base: Any) -> str | None:
    """The first reason why this recipe does not fit this model or device; None where it fits."""
    return _not_this_model(base) or _not_this_device(stack, placement) or _not_this_base(trial, base)


def _not_this_model(base: Any) -> str | None:
    config = base.config
    if config.model_type not in ARCHITECTURES:
        return f"architecture {config.model_type}, not {' or '.join(ARCHITECTURES)}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act}, not silu"
    if getattr(config, "attention_dropout", 0.0):
        return f"dropout of {config.attention_dropout} inside attention"
    for name, module in base.named_modules():
        if name.endswith("_proj") and getattr(module, "bias", None) is not None:
            return f"a bias on {name}"
    heads = _heads(config)
    if heads.query % heads.key:
        return f"{heads.query} query heads, which are no multiple of {heads.key} key heads"
    if heads.width % 8 or heads.width > WIDEST_HEAD:
        return f"heads {heads.width} wide, not a multiple of 8 up to {WIDEST_HEAD}"
    return None


def _not_this_device(stack: Stack, placement: Placement) -> str | None:
    if not placement.is_cuda:
        return None
    found = stack.torch.cuda.get_device_capability(placement.device)
    if found < LEAST_CAPABILITY:
        return f"a GPU of compute capability {found[0]}.{found[1]}; the kernels need 8.0 (A100, A10) or newer"
    version = tuple(int(part) for part in stack.torch.__version__.split("+")[0].split(".")[:2])
    if version < LEAST_TORCH:
        return f"torch {stack.torch.__version__}; its operators are used as 2.10 has them"
    return None if HAS_TRITON else "triton is not installed"


def _not_this_base(trial: Trial, base: Any) -> str | None:
    if trial.base_precision != "nf4":
        return f"a base in {trial.base_precision}, not NF4"
    try:
        for name, linear in _linears(base.model.layers[0]):
            width = nf4.from_bitsandbytes(linear.weight).shape[1]
            if width % nf4.BLOCK:  # for some of which bitsandbytes 0.50.2 is wrong on CPUs
                return f"{name} takes {width} numbers, not a multiple of {nf4.BLOCK}"
    except nf4.NotDoubleNf4 as error:
        return str(error)
    return None


def build(stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    """The step over `base`; call `why_not` first."""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    if trial.products != "bf16":
        why = in_eight_bits.unsupported_reason(stack.torch, placement, _shapes(base))
        if why is None:
            notes = (f"products {trial.products}",)
        else:
            notes = flags = (f"products bf16 ({trial.products} is not for this: {why})",)
            trial = dataclasses.replace(trial, products="bf16")
    peft_model = adapters.add(stack, trial, base)
    model = FastModel(peft_model, base, trial)
    if trial.products != "bf16":
        stack.torch.cuda.empty_cache()  # the scales were taken from whole weights in float32, half a GiB each
    optimizer, name = make_optimizer(stack, trial, model, placement)
    step = CapturedStep(stack, model, optimizer, placement, name, autocast=False, inputs=FastModel.INPUTS)
    step.notes, step.flags = notes, flags
    step.may_capture = placement.is_cuda
    return step


def _shapes(base: Any) -> list[tuple[int, int]]:
    """Of a layer's seven weights."""
    return [nf4.from_bitsandbytes(linear.weight).shape for _, linear in _linears(base.model.layers[0])]


class FastModel(torch.nn.Module):
    """A peft model whose training step is computed here; save `peft_model`.

    A call returns an object with the `loss`: the mean over the micro-batch's targets, as in transformers.
    """

    INPUTS = ("input_ids", "labels", "position_ids", "edges")

    graph: CapturedGraph | None = None  # of the last micro-batches' shape

    def __init__(self, peft_model: Any, base: Any, trial: Trial) -> None:
        super().__init__()
        self.peft_model = peft_model
        self._base = (base,)  # in a tuple, so that its parameters are not registered twice
        self.offload = Offload() if trial.offload_checkpoints else None
        self._tables = OffloadedTables(base, offloaded=trial.offload_checkpoints)  # first: what follows needs room
        self._longest = trial.max_seq_len
        self._window = getattr(base.config, "sliding_window", None)
        self._layers = tuple(_layers(base, trial, self.offload))
        self._adapters = [_copied(layer) for layer in self._layers]
        self._angles = RopeTables(base.model.rotary_emb)

    def train(self, mode: bool = True) -> "FastModel":
        """As of any module. Evaluation computes in 16 bits, as the adapter will be served, and ends the graph."""
        super().train(mode)
        if not mode:
            self.graph = None
        for layer in self._layers:
            for product in layer.products:
                if product.eight is not None:
                    product.eight.is_training = mode
        return self

    def forward(
        self, input_ids: Any, labels: Any, position_ids: Any = None, edges: Any = None, seed: Any = None
    ) -> Any:
        """input_ids, labels: int64 (B, L). With `edges`, int32 (n + 1,), the one row holds n samples end to end, with
        `position_ids`; without, each row is one sample from position 0, padded at its end. `seed`: int64 () on the
        device, of the dropout; drawn here where none is given."""
        (base,) = self._base
        if seed is None and self.training:
            seed = torch.full((), self.next_seed(), dtype=torch.int64, device=input_ids.device)
        (high, low, y), norm = self._hidden(input_ids, position_ids, edges, seed), base.model.norm
        loss = _Loss.apply(high, low, y, norm.weight, _eps(norm), self._tables.head(), _next_tokens(labels))
        return SimpleNamespace(loss=loss)

    def token_losses(self, input_ids: Any, labels: Any, position_ids: Any = None, edges: Any = None) -> Any:
        """The loss of each position, float32 (B x L,), 0 where it predicts nothing that counts; without gradients."""
        (base,) = self._base
        with torch.no_grad():
            (high, low, y), norm = self._hidden(input_ids, position_ids, edges), base.model.norm
            normed, _, _ = stream_norm(ResidualStream(high=high, low=low), norm.weight, _eps(norm), y)
            return head_losses(normed, self._tables.head(), _next_tokens(labels))

    def _hidden(self, input_ids: Any, position_ids: Any, edges: Any, seed: Any = None) -> tuple[Any, Any, Any]:
        """What the last layer returns: the two parts of the stream, and what is to be added; (B x L, H) each."""
        batch, length = input_ids.shape
        if edges is None:
            cos, sin, edges = self._angles.of_rows(batch, length, input_ids.device)
            longest, rows = length, batch
        else:
            longest, rows = min(length, self._longest), 0
            cos, sin = self._angles.of_positions(position_ids, longest)
        tokens = TokenLayout(
            cos=cos,
            sin=sin,
            samples=Samples(edges=edges, longest=longest, window=self._window, rows=rows),
            seed=seed,
        )
        with torch.no_grad():
            hidden = self._tables.embed(input_ids.view(-1)), None, None
        for layer, (copies, trained) in zip(self._layers, self._adapters, strict=True):
            # Copied layer by layer: at the beginning of a step the device waits for the host.
            with torch.no_grad():
                torch._foreach_copy_(copies, trained)
            hidden = run_layer(*hidden, layer, tokens, *trained)
        return hidden

    def on_device(self) -> AbstractContextManager[None]:
        """Inside, other code can compute with `peft_model`. Ends the graph, which reads the tables where they lay."""
        self.graph = None
        return self._tables.on_device()

    def constants(self) -> Any:
        """Tensors that a step reads, makes once and may replace by others later."""
        return self._angles.made

    def next_seed(self) -> int:
        """A new seed for one micro-batch's dropout, drawn on the host so that nothing waits for the device."""
        return int(torch.randint(0, 2**31 - 1 - len(self._layers) * PRODUCTS, ()))


def _next_tokens(labels: Any) -> Any:
    """What each position is to predict, (B x L,)."""
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    return targets.view(-1)


class RopeTables:
    """cos and sin of every token's angles, (T, D/2) float32 each, from the model's own module, computed once."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._table: tuple[Any, Any] | None = None
        self._shape: tuple[Any, ...] = ()
        self._rows: tuple[Any, Any, Any] = (None, None, None)

    @property
    def made(self) -> tuple[Any, ...]:
        return self._table, self._rows

    def of_rows(self, batch: int, length: int, device: Any) -> tuple[Any, Any, Any]:
        """(cos, sin, edges) of `batch` rows from position 0 on, cached: most steps have the same shape."""
        if self._shape != (batch, length, device):
            edges = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device)
            cos, sin = self.of_positions(torch.arange(length, device=device).repeat(batch), length)
            self._shape, self._rows = (batch, length, device), (cos, sin, edges)
        return self._rows

    def of_positions(self, positions: Any, longest: int) -> tuple[Any, Any]:
        """At `positions`, int64 of T in all, each below `longest`."""
        positions = positions.view(-1)
        if getattr(self._module, "rope_type", "default") in DEPENDS_ON_LENGTH:
            return self._computed(positions)
        if self._table is None or len(self._table[0]) < longest or self._table[0].device != positions.device:
            self._table = self._computed(torch.arange(longest, device=positions.device))
        cos, sin = self._table
        return cos[positions], sin[positions]

    def _computed(self, positions: Any) -> tuple[Any, Any]:
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        with torch.no_grad():
            cos, sin = (each[0] for each in self._module(like, positions.view(1, -1)))
        half = cos.shape[-1] // 2
        return cos[:, :half].contiguous(), sin[:, :half].contiguous()


class _Loss(torch.autograd.Function):
    """The last norm, the head and the loss; forward also computes the gradient."""

    @staticmethod
    def forward(ctx: Any, high: Any, low: Any, y: Any, norm: Any, eps: float, head: Any, targets: Any) -> Any:
        normed, rstd, total = stream_norm(ResidualStream(high=high, low=low), norm, eps, y)
        x = total.high
        del total  # its other part is not needed, and memory is short while there are logits
        loss, d_normed = head_loss(normed, head, targets)
        ctx.d_x = rms_norm_backward(d_normed, x, rstd, norm)
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Any) -> Any:
        d_x, ctx.d_x = ctx.d_x, None
        return None, None, d_x.mul_(d_loss), None, None, None, None


def _heads(config: Any) -> AttentionHeads:
    query = int(config.num_attention_heads)
    key = int(getattr(config, "num_key_value_heads", None) or query)
    return AttentionHeads(
        query=query, key=key, width=int(getattr(config, "head_dim", None) or config.hidden_size // query)
    )


def _eps(norm: Any) -> float:
    return float(norm.variance_epsilon)


def _layers(base: Any, trial: Trial, offload: Offload | None) -> Iterator[FastLayer]:
    heads = _heads(base.config)
    for index, layer in enumerate(base.model.layers):
        hold = index < trial.held_layers
        yield FastLayer(
            index=index,
            heads=heads,
            eps=_eps(layer.input_layernorm),
            norm_in=layer.input_layernorm.weight,
            norm_mid=layer.post_attention_layernorm.weight,
            recompute=trial.gradient_checkpointing and index % trial.checkpoint_every == 0,
            offload=offload,
            **{
                name: _product(layer, place, base.dtype, hold=hold, products=trial.products)
                for name, place in JOINED.items()
            },
        )


def _copied(layer: FastLayer) -> tuple[list[Any], list[Any]]:
    """The working copies of its adapters, and the parameters that they are copies of."""
    copies = [copy for product in layer.products for copy in product.working_copies]
    return copies, list(layer.parameters)


def _linears(layer: Any) -> Iterator[tuple[str, Any]]:
    """The seven linear layers by name, without the adapters around them."""
    for part, names in JOINED.values():
        for name in names:
            linear = getattr(getattr(layer, part), name)
            yield name, getattr(linear, "base_layer", linear)


def _product(layer: Any, place: tuple[str, tuple[str, ...]], dtype: Any, *, hold: bool, products: str) -> FusedLinear:
    """One product of these linear layers, plain or with LoRA adapters around them."""
    part, names = place
    linears = [getattr(getattr(layer, part), name) for name in names]
    bases = [getattr(linear, "base_layer", linear) for linear in linears]
    weights = tuple(nf4.from_bitsandbytes(base.weight) for base in bases)
    edges = [sum(weight.shape[0] for weight in weights[:end]) for end in range(len(weights) + 1)]
    in_eight = Int8Linear(weights, forward=products == "eight", hold=hold) if products != "bf16" else None
    in_16 = hold and products == "bf16"
    held = dequantized(weights, dtype, weights[0].packed.device) if in_16 else None
    adapters = [
        _adapter(linear, slice(first, last))
        for linear, (first, last) in zip(linears, pairwise(edges), strict=True)
        if hasattr(linear, "lora_A")
    ]
    if not adapters:
        return FusedLinear(weights=weights, held=held, eight=in_eight)
    (adapted,) = {_settings(linear) for linear in linears if hasattr(linear, "lora_A")}
    return FusedLinear(
        weights=weights,
        adapters=tuple(adapters),
        scaling=adapted[0],
        dropout=adapted[1],
        work_a=torch.cat([adapter.a.detach() for adapter in adapters]).to(dtype),
        work_b=torch.zeros((edges[-1], adapters[0].b.shape[1]), dtype=dtype, device=adapters[0].b.device),
        held=held,
        eight=in_eight,
    )


def _adapter(linear: Any, columns: slice) -> Adapter:
    (name,) = linear.active_adapters
    return Adapter(a=linear.lora_A[name].weight, b=linear.lora_B[name].weight, columns=columns)


def _settings(linear: Any) -> tuple[float, float]:
    """The adapter's scaling and its dropout's probability."""
    (name,) = linear.active_adapters
    return float(linear.scaling[name]), float(getattr(linear.lora_dropout[name], "p", 0.0))
