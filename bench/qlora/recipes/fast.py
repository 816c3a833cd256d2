"""`fast`: the reference's arithmetic in fewer kernels and less memory.

Instead of the published loop:

- The residual stream is in bf16 plus eight bits; norms, embeddings and head keep the dtype of the model's files; sums
  inside a kernel are float32.
- NF4 is dequantized to bf16 in one pass (`bench.kernels.nf4`); q, k, v and gate, up are one product each, which
  includes the adapters' product (`bench.qlora.recipes.fused_linear`).
- Forward and backward are written out in `bench.qlora.recipes.layer`, which decides what is saved and recomputed.
- Cross entropy runs in chunks over the frozen head and computes its gradient in the same pass (`bench.kernels.loss`).
- Packed samples attend only to themselves (`bench.kernels.attention`).

The model stays a peft model with peft's parameters: `save_pretrained` writes them and plain peft loads them. If this
recipe does not support a model or device, `unsupported_reason` returns the first reason and `stock` is used.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from bench.architectures import find
from bench.architectures.architecture import PRODUCT_INPUTS, Geometry
from bench.data import trial_inputs
from bench.kernels import nf4
from bench.kernels.attention import Samples
from bench.kernels.loss import IGNORED, head_loss, head_losses
from bench.kernels.norm import ResidualStream, rms_norm_backward, stream_norm
from bench.kernels.rope import AttentionHeads
from bench.kernels.triton_compat import HAS_TRITON
from bench.qlora.adamw8 import multi_tensor_adamw8bit
from bench.qlora.recipes import int8
from bench.qlora.recipes.cuda_graph import CapturedGraph, CapturedStep
from bench.qlora.recipes.fused_linear import Adapter, FusedLinear, dequantize
from bench.qlora.recipes.int8 import Int8Linear
from bench.qlora.recipes.layer import PRODUCTS_PER_LAYER, FastLayer, HeadNorms, TokenLayout, run_layer
from bench.qlora.recipes.mlp import DenseMlp, OwnMlp
from bench.qlora.recipes.offload import Offload, OffloadedTables
from bench.qlora.step import Placement, TrainingStep, add_lora, make_optimizer, parameter_group
from bench.records import Trial
from bench.torch_stack import Stack

MIN_TORCH = (2, 10)


def unsupported_reason(stack: Stack, trial: Trial, placement: Placement, base: Any) -> str | None:
    """Return the first reason why this recipe does not support this model or device; None if it does."""
    return (
        trial_inputs.unsupported_model(base.config.to_dict(), trial.max_seq_len)
        or _unsupported_device(stack, placement)
        or _unsupported_base(trial, base)
    )


def _unsupported_device(stack: Stack, placement: Placement) -> str | None:
    if not placement.is_cuda:
        return None
    capability = stack.torch.cuda.get_device_capability(placement.device)
    if (reason := trial_inputs.unsupported_capability(capability)) is not None:
        return reason
    return unsupported_software(stack.torch)


def unsupported_software(torch: Any) -> str | None:
    """Return why this recipe does not run on a GPU with the installed software; None if it does."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < MIN_TORCH:
        return f"torch {torch.__version__}; the recipe needs the operators of 2.10"
    return None if HAS_TRITON else "triton is not installed"


def _unsupported_base(trial: Trial, base: Any) -> str | None:
    if (reason := trial_inputs.unsupported_precision(trial)) is not None:
        return reason
    try:
        for name, linear, product in _linears(base):
            if linear.bias is not None and product != "qkv":
                return f"a bias on {name}"
            width = nf4.from_bitsandbytes(linear.weight).shape[1]
            if width % nf4.BLOCK:  # bitsandbytes 0.50.2 computes some such widths wrongly on CPUs
                return f"{name} takes {width} numbers, not a multiple of {nf4.BLOCK}"
    except nf4.UnsupportedQuantization as error:
        return str(error)
    return None


def build(stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    """Build the step over `base`. Call `unsupported_reason` first."""
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    if trial.matmul != "bf16":
        shapes = (nf4.from_bitsandbytes(linear.weight).shape for _, linear, _ in _linears(base))
        reason = int8.unsupported_reason(placement, shapes)
        if reason is None:
            notes = (f"matmul {trial.matmul}",)
        else:
            notes = flags = (f"matmul bf16 ({trial.matmul} is not supported: {reason})",)
            trial = dataclasses.replace(trial, matmul="bf16")
    peft_model = add_lora(stack, trial, base)
    model = FastModel(peft_model, base, trial)
    if trial.matmul != "bf16":
        stack.torch.cuda.empty_cache()  # the scales were computed from whole float32 weights, half a GiB each
    if placement.is_cuda and trial.optimizer != "adamw_torch":  # its state is not paged
        name = "AdamW, 8 bit, one launch for all adapters"
        optimizer = multi_tensor_adamw8bit(stack, parameter_group(trial, model))
    else:
        optimizer, name = make_optimizer(stack, trial, model, placement)
    step = CapturedStep(stack, model, optimizer, placement, name, autocast=False, inputs=FastModel.INPUTS)
    step.notes, step.flags = notes, flags
    step.may_capture = placement.is_cuda
    return step


class FastModel(torch.nn.Module):
    """A peft model whose training step this class computes; `peft_model` is the part to save.

    A call returns an object with `loss`: the mean over the micro-batch's targets, as in transformers.
    """

    INPUTS = ("input_ids", "labels", "position_ids", "edges")

    graph: CapturedGraph | None = None  # captured for the shape of the last micro-batches

    def __init__(self, peft_model: Any, base: Any, trial: Trial) -> None:
        super().__init__()
        self.peft_model = peft_model
        self._base = (base,)  # in a tuple, so that its parameters are not registered twice
        self.offload = Offload() if trial.offload_checkpoints else None
        self._tables = OffloadedTables(base, offloaded=trial.offload_checkpoints)  # first: the rest needs memory
        self._max_seq_len = trial.max_seq_len
        config = base.config.to_dict()
        geometry = find(config).geometry(config)
        self._window = geometry.window
        self._layers = tuple(_layers(base, geometry, trial, self.offload))
        self._adapters = [
            ([copy for product in layer.products for copy in product.working_copies], list(layer.parameters))
            for layer in self._layers
        ]
        self._rope = RopeTables(base.model.rotary_emb, find(config).separation(config).short)

    def train(self, mode: bool = True) -> "FastModel":
        """Override `nn.Module.train`. Evaluation computes in 16 bits, as serving will, and drops the graph."""
        super().train(mode)
        if not mode:
            self.graph = None
        for layer in self._layers:
            for product in layer.products:
                if product.int8 is not None:
                    product.int8.is_training = mode
        return self

    def forward(
        self, input_ids: Any, labels: Any, position_ids: Any = None, edges: Any = None, seed: Any = None
    ) -> Any:
        """Compute the loss of a micro-batch.

        input_ids, labels: int64 (B, L). With `edges`, int32 (n + 1,), a single row holds n samples end to end, with
        `position_ids`; without, each row is one sample from position 0, padded at its end. `seed`: int64 () on the
        device, seeds the dropout; drawn if it is None.
        """
        (base,) = self._base
        if seed is None and self.training:
            seed = torch.full((), self.next_seed(), dtype=torch.int64, device=input_ids.device)
        (high, low, y), norm = self._hidden(input_ids, position_ids, edges, seed), base.model.norm
        loss = _Loss.apply(high, low, y, norm.weight, _eps(norm), self._tables.head(), _shift_labels(labels))
        return SimpleNamespace(loss=loss)

    def token_losses(self, input_ids: Any, labels: Any, position_ids: Any = None, edges: Any = None) -> Any:
        """Return the loss of each position, float32 (B x L,), 0 at masked positions; without gradients."""
        (base,) = self._base
        with torch.no_grad():
            (high, low, y), norm = self._hidden(input_ids, position_ids, edges), base.model.norm
            normed, *_ = stream_norm(ResidualStream(high=high, low=low), norm.weight, _eps(norm), y)
            return head_losses(normed, self._tables.head(), _shift_labels(labels))

    def _hidden(self, input_ids: Any, position_ids: Any, edges: Any, seed: Any = None) -> tuple[Any, Any, Any]:
        """Return the last layer's output: the stream's two parts and the summand to add; (B x L, H) each."""
        batch, length = input_ids.shape
        if edges is None:
            cos, sin, edges = self._rope.for_rows(batch, length, input_ids.device)
            longest, rows = length, batch
        else:
            longest, rows = min(length, self._max_seq_len), 0
            cos, sin = self._rope.for_positions(position_ids, longest)
        tokens = TokenLayout(
            cos=cos,
            sin=sin,
            samples=Samples(edges=edges, longest=longest, window=self._window, rows=rows),
            seed=seed,
        )
        with torch.no_grad():
            hidden = self._tables.embed(input_ids.view(-1)), None, None
        for layer, (copies, trained) in zip(self._layers, self._adapters, strict=True):
            # Copied layer by layer, because at the beginning of a step the device waits for the host.
            if trained:
                with torch.no_grad():
                    torch._foreach_copy_(copies, trained)
            hidden = run_layer(*hidden, layer, tokens, *trained)
        return hidden

    def on_device(self) -> AbstractContextManager[None]:
        """Return a context inside which other code can use `peft_model`. Drops the graph, as the tables move."""
        self.graph = None
        return self._tables.on_device()

    def constants(self) -> Any:
        """Return the tensors that a step creates once, reads, and may replace later."""
        return self._rope.tensors

    def next_seed(self) -> int:
        """Draw a seed for one micro-batch's dropout, on the host so that nothing waits for the device."""
        return int(torch.randint(0, 2**31 - 1 - len(self._layers) * PRODUCTS_PER_LAYER, ()))


def _shift_labels(labels: Any) -> Any:
    """Return each position's target, the next label, (B x L,)."""
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    return targets.view(-1)


class RopeTables:
    """Cosines and sines of all tokens' angles, (T, D/2) float32 each, computed once by the model's own module.

    A row whose longest sample has at most `short` tokens has the angles that the module computes for such samples.
    """

    def __init__(self, module: Any, short: int | None) -> None:
        self._module, self._short = module, short
        self._table: tuple[Any, Any] | None = None
        self._short_table: tuple[Any, Any] | None = None
        self._shape: tuple[Any, ...] = ()
        self._rows: tuple[Any, Any, Any] = (None, None, None)

    @property
    def tensors(self) -> tuple[Any, ...]:
        return self._table, self._short_table, self._rows

    def for_rows(self, batch: int, length: int, device: Any) -> tuple[Any, Any, Any]:
        """Return (cos, sin, edges) of `batch` rows from position 0 on, cached: most steps have the same shape."""
        if self._shape != (batch, length, device):
            edges = torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device)
            cos, sin = self.for_positions(torch.arange(length, device=device).repeat(batch), length)
            self._shape, self._rows = (batch, length, device), (cos, sin, edges)
        return self._rows

    def for_positions(self, positions: Any, length: int) -> tuple[Any, Any]:
        """Return (cos, sin) at `positions`, T int64 values, each below `length`."""
        positions = positions.view(-1)
        if getattr(self._module, "rope_type", "default") == "dynamic":  # angles change with each length
            return self._compute(positions)
        if self._table is None or len(self._table[0]) < length or self._table[0].device != positions.device:
            if self._short is not None and self._short < length:
                self._short_table = self._compute(torch.arange(self._short, device=positions.device))
            self._table = self._compute(torch.arange(length, device=positions.device))
        cos, sin = self._table
        if self._short_table is None:
            return cos[positions], sin[positions]
        # On the device, because a graph may be captured: nothing may wait.
        last = len(self._short_table[0]) - 1
        is_long, inside = positions.max() > last, positions.clamp(max=last)
        short_cos, short_sin = (each[inside] for each in self._short_table)
        return torch.where(is_long, cos[positions], short_cos), torch.where(is_long, sin[positions], short_sin)

    def _compute(self, positions: Any) -> tuple[Any, Any]:
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        with torch.no_grad():
            cos, sin = (each[0] for each in self._module(like, positions.view(1, -1)))
        half = cos.shape[-1] // 2
        return cos[:, :half].contiguous(), sin[:, :half].contiguous()


class _Loss(torch.autograd.Function):
    """The last norm, the head and the loss; forward also computes the gradient."""

    @staticmethod
    def forward(ctx: Any, high: Any, low: Any, y: Any, norm: Any, eps: float, head: Any, targets: Any) -> Any:
        normed, rstd, total, _ = stream_norm(ResidualStream(high=high, low=low), norm, eps, y)
        x = total.high
        del total  # its low part is not needed, and logits need much memory
        loss, d_normed = head_loss(normed, head, targets)
        ctx.d_x, _ = rms_norm_backward(d_normed, x, rstd, norm)
        return loss

    @staticmethod
    def backward(ctx: Any, d_loss: Any) -> Any:
        d_x, ctx.d_x = ctx.d_x, None
        return None, None, d_x.mul_(d_loss), None, None, None, None


def _eps(norm: Any) -> float:
    return float(norm.variance_epsilon)


def _layers(base: Any, geometry: Geometry, trial: Trial, offload: Offload | None) -> Iterator[FastLayer]:
    architecture = find(base.config.to_dict())
    heads = AttentionHeads(query=geometry.heads, key=geometry.key_heads, width=geometry.head_width)
    for index, block in enumerate(base.model.layers):
        products = {  # that the architecture declares
            name: _fused_linear(linears, base.dtype, hold=index < trial.held_layers, matmul=trial.matmul)
            for name in PRODUCT_INPUTS
            if (linears := architecture.modules(block, name))
        }
        yield FastLayer(
            index=index,
            heads=heads,
            eps=_eps(block.input_layernorm),
            norm_in=block.input_layernorm.weight,
            norm_mid=block.post_attention_layernorm.weight,
            qkv=products["qkv"],
            out=products["out"],
            mlp=DenseMlp(gate_up=products["gate_up"], down=products["down"])
            if "down" in products
            else OwnMlp(module=block.mlp),
            recompute=trial.gradient_checkpointing and index % trial.checkpoint_every == 0,
            offload=offload,
            qkv_bias=_joined_bias(architecture.modules(block, "qkv")),
            head_norms=_head_norms(block),
        )


def _joined_bias(linears: Sequence[Any]) -> Any:
    """Return the biases of linear layers end to end, (N,); None if they have none."""
    biases = [getattr(linear, "base_layer", linear).bias for linear in linears]
    return None if biases[0] is None else torch.cat([bias.detach() for bias in biases])


def _head_norms(layer: Any) -> HeadNorms | None:
    """Return the norms of a decoder block's query and key heads; None if it has none."""
    attention = layer.self_attn
    if not hasattr(attention, "q_norm"):
        return None
    return HeadNorms(query=attention.q_norm.weight, key=attention.k_norm.weight, eps=_eps(attention.q_norm))


def _linears(base: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield name, module and product of the first decoder block's linear layers."""
    block = base.model.layers[0]
    for layer in find(base.config.to_dict()).linear_layers:
        yield layer.name, block.get_submodule(layer.path), layer.product


def _fused_linear(linears: Sequence[Any], dtype: Any, *, hold: bool, matmul: str) -> FusedLinear:
    """Join linear layers, with or without LoRA adapters, into one product."""
    bases = [getattr(linear, "base_layer", linear) for linear in linears]
    weights = tuple(nf4.from_bitsandbytes(base.weight) for base in bases)
    edges = [sum(weight.shape[0] for weight in weights[:end]) for end in range(len(weights) + 1)]
    int8_linear = Int8Linear(weights, hold=hold) if matmul == "int8" else None
    is_held_in_16_bits = hold and matmul == "bf16"
    held = dequantize(weights, dtype, weights[0].packed.device) if is_held_in_16_bits else None
    adapters = [
        _adapter(linear, slice(first, last))
        for linear, (first, last) in zip(linears, pairwise(edges), strict=True)
        if hasattr(linear, "lora_A")
    ]
    if not adapters:
        return FusedLinear(weights=weights, held=held, int8=int8_linear)
    ((scaling, dropout),) = {_lora_settings(linear) for linear in linears if hasattr(linear, "lora_A")}
    return FusedLinear(
        weights=weights,
        adapters=tuple(adapters),
        scaling=scaling,
        dropout=dropout,
        work_a=torch.cat([adapter.a.detach() for adapter in adapters]).to(dtype),
        work_b=torch.zeros((edges[-1], adapters[0].b.shape[1]), dtype=dtype, device=adapters[0].b.device),
        held=held,
        int8=int8_linear,
    )


def _adapter(linear: Any, columns: slice) -> Adapter:
    (name,) = linear.active_adapters
    return Adapter(a=linear.lora_A[name].weight, b=linear.lora_B[name].weight, columns=columns)


def _lora_settings(linear: Any) -> tuple[float, float]:
    """Return the adapter's scaling and its dropout probability."""
    (name,) = linear.active_adapters
    return float(linear.scaling[name]), float(getattr(linear.lora_dropout[name], "p", 0.0))
