"""Peak GPU memory of a training trial, from a model's config.json and the trial: pure arithmetic.

    peak = base + adapters + T x layers x saved + the largest phase;    a phase = a constant + T x its bytes per token

`base` is the frozen weights; `adapters` their weights and optimizer state (except in `fast`, their gradients come after
the activations are freed); T the token positions of a micro-batch; `saved` is what a layer saves for its backward, or
its input if it is recomputed. A phase is a moment of peak memory: the loss over all logits, or the last layer's
backward. `saved` follows from each recipe, in bytes per unit of the model's widths; phases were fitted.

Fitted to the peaks of 60 configurations on one H200 with Mistral-7B's shape (`tests.benchmarks.predicted_memory`;
docs/performance.md has the errors), and corrected by others, chosen afterwards: adapters beyond attention, on a part of
it, or without dropout, gradients of large ranks, masks over long rows. The prediction is the allocator's peak
(`torch.cuda.max_memory_allocated`); `device_bytes` adds what the allocator reserves beyond it and the CUDA context.

Not covered: CPUs, inference, loading (whose peak is below training's), host memory, `stock` without Liger, attention
that the library computes with all scores in memory (widths of heads that 8 does not divide), states of state spaces.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bench.architectures import Feature, find
from bench.architectures.architecture import ATTENTION_PRODUCTS, Architecture, LinearLayer
from bench.architectures.unregistered import HAS_LOGITS, experts_of_a_token, is_in_attention
from bench.predict import flops
from bench.records import Trial
from bench.records.adapter import BaseRecord

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # a code, its block's 8-bit scale, and the 32-bit scale of those scales
OPTIMIZER_BYTES = {"adamw_torch": 8.0, "paged_adamw_8bit": 2.0}  # optimizer state per trained parameter
# Bytes per weight of a held layer; in 8 bits each orientation takes one.
HELD_WEIGHT_BYTES = {"bf16": 2.0, "int8": 2.0}
OUTLIER_COLUMNS = 32  # as in `bench.qlora.recipes.int8`
QUANT_BLOCK = 128  # as in `bench.kernels.int8.row_quant`
LOSS_CHUNK_TOKENS = 512  # as in `bench.kernels.loss`
TRAINING_BYTES = 56 << 20  # more than a trial of its steps: 44 MiB were measured at 7B, 69 MiB at 135M weights (H200)
MIB = 1 << 20
# One captured INT8 step with 19 held layers took 20.4 GiB allocated, 21.31 reserved, 21.98 of the device.
RESERVED_SHARE = 21.31 / 20.4
CONTEXT_BYTES = 686 * MIB  # CUDA context and kernel modules
SPARE_BYTES = 512 * MIB  # left free of a GPU's memory


@dataclass(frozen=True, kw_only=True)
class WidthCosts:
    """Bytes per token for each unit of a width; `heads` is query, key and value together, `rows` counts once."""

    rows: float = 0.0
    hidden: float = 0.0
    inner: float = 0.0
    heads: float = 0.0
    vocabulary: float = 0.0

    def bytes_per_token(self, model: Mapping[str, int]) -> float:
        return self.rows + sum(float(getattr(self, name)) * width for name, width in model.items())


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Peak moment of a step: `copies` of the largest layer's 16-bit weight, `extra_mib`, and `per_token` bytes."""

    per_token: WidthCosts
    copies: float = 0.0
    extra_mib: float = 0.0
    head_copies: float = 0.0  # copies of the output layer's 16-bit weight
    with_recomputed_layer: bool = True  # adds the activations that a recomputed layer has made by then


@dataclass(frozen=True, kw_only=True)
class RecipeMemory:
    """Memory of one recipe: its saved activations, and its phases with layers saved or with every layer recomputed.

    `embedding_bytes` is bytes per parameter of embeddings and head; `saved_per_rank` bytes per token for each unit of
    LoRA rank on each target. `saved_per_input` is bytes per token and unit of an adapted product's input;
    `peak_input_share` the share of these, beyond attention's, that exists at the peak of a recomputed layer. Without
    dropout an input is saved in 16 bit; with `shares_inputs` once for all products that share it. With `has_gradients`,
    all adapters' gradients exist before the layers' activations are freed.
    """

    saved: WidthCosts
    checkpoint: WidthCosts
    phases_saved: tuple[Phase, ...]
    phases_recomputed: tuple[Phase, ...]
    embedding_bytes: float
    saved_per_rank: float = 0.0
    saved_per_input: float = 0.0
    peak_input_share: float = 0.0
    shares_inputs: bool = False
    has_gradients: bool = False


# The loss over fp32 logits: the logits twice in fp32 and twice in 16 bit, and the head's copy under autocast.
_REFERENCE_LOSS = Phase(
    per_token=WidthCosts(vocabulary=12.0, hidden=4.12), head_copies=1.0, extra_mib=73.0, with_recomputed_layer=False
)
_STOCK_LOGITS = replace(_REFERENCE_LOSS, head_copies=0.0)  # a head in 16 bit has no copy
# While a product of `fast` runs, its weight exists in 16 bit: gate and up together, or down with the gradient of its
# input. This holds with layers saved and recomputed.
_FAST = (
    Phase(per_token=WidthCosts(hidden=4.1), copies=2.0, extra_mib=14.0),
    Phase(per_token=WidthCosts(hidden=2.4, inner=2.0), copies=1.0, extra_mib=14.0),
)
# In 8 bits a weight takes half as much, and the gradient of gate and up is written over gate and up.
_FAST_INT8 = (
    Phase(per_token=WidthCosts(hidden=4.1), copies=1.0, extra_mib=14.0),
    Phase(per_token=WidthCosts(hidden=3.4, inner=2.0), copies=0.5, extra_mib=14.0),
)
# Offloaded, without adapters on the MLP, gate and up get their gradient in parts. Attention's backward may need most:
# q k v and their gradient, two inputs, four tensors of their width, and the library's workspace.
_FAST_INT8_OFFLOADED = (
    _FAST_INT8[0],
    Phase(per_token=WidthCosts(hidden=20.0, heads=4.0), extra_mib=14.0, with_recomputed_layer=False),
)
# A copy of the head, which stays in host memory, and the logits of 512 tokens, an eighth of it at 7B.
_FAST_HEAD = Phase(per_token=WidthCosts(hidden=9.0), head_copies=1.125, extra_mib=14.0, with_recomputed_layer=False)
RECIPES: dict[str, RecipeMemory] = {
    # The residual stream and all norms in fp32, their casts to bf16, dropout and its masks for each adapter.
    "reference": RecipeMemory(
        saved=WidthCosts(hidden=7.1, inner=12.0, heads=6.0),
        checkpoint=WidthCosts(hidden=4.0),
        phases_saved=(_REFERENCE_LOSS,),
        phases_recomputed=(_REFERENCE_LOSS, Phase(per_token=WidthCosts(hidden=44.3), copies=1.0, extra_mib=25.0)),
        embedding_bytes=4.0,
        saved_per_input=3.0,  # peft's dropout: its result in 16 bit, and its mask
        peak_input_share=0.473,
    ),
    "stock": RecipeMemory(
        saved=WidthCosts(hidden=-2.0, inner=7.0, heads=4.0),  # fitted together: inner and heads compensate
        checkpoint=WidthCosts(hidden=2.0),
        phases_saved=(Phase(per_token=WidthCosts(hidden=0.2), copies=1.0, extra_mib=99.0),),
        phases_recomputed=(Phase(per_token=WidthCosts(hidden=14.4), copies=1.0, extra_mib=40.0),),
        embedding_bytes=2.0,
        saved_per_input=3.0,
        peak_input_share=1.0,
        shares_inputs=True,
    ),
    # x, h and the attention's output, q k v, gate and up: bench/qlora/recipes/layer.py.
    "fast": RecipeMemory(
        saved=WidthCosts(hidden=6.0, inner=4.0, heads=2.0, rows=136.0),
        checkpoint=WidthCosts(hidden=2.0),
        phases_saved=_FAST,
        phases_recomputed=_FAST,
        embedding_bytes=2.0,
        saved_per_rank=2.0,
        has_gradients=True,
    ),
}
GRADIENT_BYTES = 4.0
CHOICE_BYTES = 54  # an expert of a token: its score in several dtypes, and five indices of 64 bits
MASK_BYTES = 3.0  # per pair of positions of a packed row or an example: a boolean mask, and one in 16 bit
INPUTS_IN_TRANSIT = 2  # layer inputs on the device at the peak, with offload_checkpoints; none in 8 bits


def peak_bytes(config: Mapping[str, Any], trial: Trial, *, captured: bool = True) -> int:
    """Predict the peak of a training trial on one GPU. `config` is the model's config.json.

    `captured`: `fast` runs its steps as CUDA graphs, which add gradients to those of the step's other micro-batches.
    """
    architecture = find(config)
    recipe, model, layers = RECIPES[trial.recipe], model_widths(config), architecture.geometry(config).layers
    positions = trial.micro_batch_size * trial.max_seq_len
    recomputed = -(-layers // trial.checkpoint_every) if trial.gradient_checkpointing else 0
    checkpoint = recipe.checkpoint.bytes_per_token(model)
    attention_inputs, other_inputs = _adapter_input_bytes(config, trial, recipe)
    rank_bytes = recipe.saved_per_rank * trial.lora_rank * len(architecture.select(trial.lora_targets))
    layer_bytes = recipe.saved.bytes_per_token(model) + rank_bytes + attention_inputs + _head_norm_bytes(config, trial)
    layer_bytes += _router_bytes(config) if trial.recipe == "fast" else 0
    is_blockwise = trial.matmul == "int8" and model["inner"] % QUANT_BLOCK == 0
    if is_blockwise:  # gate and up in 8 bits, a scale for each block
        layer_bytes -= 2 * model["inner"] * (1 - 4 / QUANT_BLOCK)
    checkpoints = min(recomputed, 0 if is_blockwise else INPUTS_IN_TRANSIT) if trial.offload_checkpoints else recomputed
    saved = (layers - recomputed) * (layer_bytes + other_inputs) + checkpoints * checkpoint
    recomputed_bytes = 0.0
    if recomputed == layers:
        recomputed_bytes = layer_bytes + recipe.peak_input_share * other_inputs
        recomputed_bytes -= 0.0 if trial.offload_checkpoints else checkpoint
    phases = recipe.phases_recomputed if recomputed == layers else recipe.phases_saved
    if is_blockwise:
        only_attention = not _targets(architecture, trial, ("gate_up", "down"))
        is_offloaded = trial.offload_checkpoints and recomputed == layers
        phases = _FAST_INT8_OFFLOADED if is_offloaded and only_attention else _FAST_INT8
    if trial.recipe == "fast" and trial.offload_checkpoints:
        phases += (_FAST_HEAD,)
    if trial.recipe == "stock" and config.get(HAS_LOGITS):
        phases += (_STOCK_LOGITS,)
    largest = 2 * _largest_weight(architecture, config, joins=trial.recipe == "fast")
    phase_bytes = max(
        positions
        * (phase.per_token.bytes_per_token(model) + (recomputed_bytes if phase.with_recomputed_layer else 0.0))
        + phase.copies * largest
        + phase.head_copies * 2 * flops.head_weights(config)
        + phase.extra_mib * MIB
        for phase in phases
    )
    phase_bytes = max(phase_bytes, _expert_bytes(config, positions) + positions * recomputed_bytes)
    if trial.layout == "varlen" and trial.recipe != "fast":
        phase_bytes += MASK_BYTES * positions * (positions if architecture.is_packed else trial.max_seq_len)
    if recomputed == layers and trial.recipe == "fast" and _targets(architecture, trial, ("down",)):
        # An adapter on the last product needs its input, so that product is recomputed too.
        phase_bytes += largest + positions * 2 * model["hidden"]
    gradients = flops.adapter_weights(config, trial.lora_rank, trial.lora_targets) if recipe.has_gradients else 0
    copies = 2 if captured and not trial.offload_checkpoints else 1
    frozen = base_bytes(config, trial) + adapter_bytes(config, trial)
    step = positions * saved + phase_bytes + copies * GRADIENT_BYTES * gradients
    if trial.training is None:
        return round(frozen + step)
    return round(frozen + max(step, _evaluation_bytes(config, trial)) + TRAINING_BYTES)


def _evaluation_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """Predict the bytes of a training's evaluation: a chunk's logits in 16 bits and twice in fp32.

    Other recipes than `fast` compute the logits of the whole row first. At a vocabulary of 49,152 and a width of 576 it
    is more than a step's.
    """
    model, positions = model_widths(config), trial.micro_batch_size * trial.max_seq_len
    chunk = min(positions, LOSS_CHUNK_TOKENS)
    logits = 10.0 * chunk + (2.0 * positions if trial.recipe != "fast" else 0.0)
    return model["vocabulary"] * logits + 8.0 * positions * model["hidden"]


def _expert_bytes(config: Mapping[str, Any], positions: int) -> float:
    """Predict the bytes of a block's experts in their backward pass, when the gradient leaves the gate and up."""
    record, hidden, largest = flops.recorded(config), find(config).geometry(config).hidden, 0.0
    for shapes in record.experts.values() if record is not None else ():
        numbers, rows = [math.prod(shape) for shape in shapes], positions * experts_of_a_token(config)
        widths = sum(numbers) / (shapes[0][0] * hidden)  # gate and up together, and the activation
        # The weight, its product's input and output, and the activation with its gradient, all in 16 bits.
        largest = max(largest, 2.0 * (max(numbers) + rows * (widths + hidden)))
    return largest


def _router_bytes(config: Mapping[str, Any]) -> int:
    """Count the bytes per token that a block of experts keeps in `fast`: their input, all scores, and its choices."""
    record = flops.recorded(config)
    if record is None or not record.experts:
        return 0
    experts = max(shapes[0][0] for shapes in record.experts.values())
    return 2 * find(config).geometry(config).hidden + 4 * experts + CHOICE_BYTES * experts_of_a_token(config)


def _head_norm_bytes(config: Mapping[str, Any], trial: Trial) -> int:
    """Count the bytes per token that `fast` saves for norms on q and k: their inputs and each head's rstd."""
    architecture = find(config)
    if trial.recipe != "fast" or Feature.QK_NORM not in architecture.features(config):
        return 0
    geometry = architecture.geometry(config)
    return 2 * (geometry.query + geometry.key) + 4 * (geometry.heads + geometry.key_heads)


def device_bytes(peak: float) -> int:
    """Predict the bytes that a process takes of a GPU, from its allocator's peak."""
    return round(peak * RESERVED_SHARE) + CONTEXT_BYTES


def largest_peak(total: int) -> int:
    """Return the allocator's largest peak on a GPU of `total` bytes that leaves SPARE_BYTES free; 0 if none does."""
    return max(0, int((total - SPARE_BYTES - CONTEXT_BYTES) / RESERVED_SHARE))


def _largest_weight(architecture: Architecture, config: Mapping[str, Any], *, joins: bool) -> int:
    """Count the weights of the largest linear layer; of its largest output if the recipe `joins` layers itself."""
    geometry, largest = architecture.geometry(config), 0
    if (record := flops.recorded(config)) is not None:
        return max((inputs * outputs for inputs, outputs in record.matrices.values()), default=0)
    for layer in architecture.linear_layers:
        inputs, outputs = layer.shape(geometry)
        largest = max(largest, inputs * (max(getattr(geometry, name) for name in layer.outputs) if joins else outputs))
    return largest


def model_widths(config: Mapping[str, Any]) -> dict[str, int]:
    """Read the model's widths, by the field names of `WidthCosts`."""
    architecture = find(config)
    geometry = architecture.geometry(config)
    return {
        "hidden": geometry.hidden,
        "inner": geometry.inner if (record := flops.recorded(config)) is None else _inner(record, geometry.hidden),
        "heads": geometry.query + 2 * geometry.key,
        "vocabulary": geometry.vocabulary,
    }


def _inner(record: BaseRecord, hidden: int) -> int:
    """Return half of the outputs of the largest block's matrices, without those of its attention and its own.

    In an MLP with a gate that is its width. Experts keep their inputs only.
    """
    blocks: dict[str, int] = {}
    for name, (_, outputs) in record.matrices.items():
        if outputs != hidden and not is_in_attention(name) and (match := re.search(r"\.\d+\.", name)):
            block = name[: match.end()]
            blocks[block] = blocks.get(block, 0) + outputs
    return max(blocks.values(), default=0) // 2


def base_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """Predict the bytes of the frozen base: blocks in NF4 or 16 bit, embeddings and head as the recipe stores them."""
    recipe, geometry = RECIPES[trial.recipe], find(config).geometry(config)
    blocks, layers = flops.block_weights(config), geometry.layers
    embeddings = flops.head_weights(config) * (1 if geometry.is_tied else 2)
    embeddings = embeddings if (record := flops.recorded(config)) is None else record.others
    if trial.base_precision != "nf4":
        return 2.0 * (blocks + embeddings)  # the reference casts nothing to fp32 here
    joined = sum(inputs * outputs for inputs, outputs in find(config).shapes(config).values())
    held = HELD_WEIGHT_BYTES[trial.matmul] * joined * min(trial.held_layers, layers)
    on_device = 0 if trial.recipe == "fast" and trial.offload_checkpoints else embeddings
    return NF4_BYTES * blocks + held + _int8_extra_bytes(config, trial) + recipe.embedding_bytes * on_device


def _int8_extra_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """Predict the extra bytes of int8 products: a scale per weight row, and outlier columns in 16 bits."""
    architecture = find(config)
    rows = sum(rows for _, rows in architecture.shapes(config).values()) * architecture.geometry(config).layers
    return rows * {"bf16": 0.0, "int8": 4.0 + 2.0 * OUTLIER_COLUMNS}[trial.matmul]


def adapter_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """Predict the bytes of fp32 adapters and optimizer state; the recipe fast also has a bf16 copy of the adapters."""
    copy_bytes = 2.0 if trial.recipe == "fast" else 0.0
    bytes_per_weight = 4.0 + OPTIMIZER_BYTES[trial.optimizer] + copy_bytes
    return bytes_per_weight * flops.adapter_weights(config, trial.lora_rank, trial.lora_targets)


def _targets(architecture: Architecture, trial: Trial, products: tuple[str, ...]) -> list[LinearLayer]:
    """List the linear layers of these products that have adapters."""
    selected = architecture.select(trial.lora_targets)
    return [layer for layer in architecture.linear_layers if layer.product in products and layer.name in selected]


def _adapter_input_bytes(config: Mapping[str, Any], trial: Trial, recipe: RecipeMemory) -> tuple[float, float]:
    """Predict the bytes per token of a layer's saved adapter inputs: (attention's, others')."""
    architecture = find(config)
    geometry = architecture.geometry(config)
    layers = [_targets(architecture, trial, products) for products in (ATTENTION_PRODUCTS, ("gate_up", "down"))]
    bytes_per_input = recipe.saved_per_input
    if bytes_per_input and not trial.lora_dropout:
        bytes_per_input = 2.0
        layers[0] = [layer for layer in layers[0] if layer.product != "out"]  # attention saves its input anyway
        if recipe.shares_inputs:  # the layers of a product have one input
            layers = [list({layer.product: layer for layer in part}.values()) for part in layers]
    in_attention, others = (bytes_per_input * sum(layer.shape(geometry)[0] for layer in part) for part in layers)
    return in_attention, others
