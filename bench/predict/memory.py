"""The peak GPU memory of a training trial, from a model's config.json and the trial: pure arithmetic.

    peak = weights + trained + T layers kept + the largest phase;    a phase = a constant + T x what passes through it

`weights` are the base's; `trained` the adapters and their optimizer's state (except in `fast`, their gradients come
after the activations are freed); T the token positions of a micro-batch; `kept` is what a layer keeps for its backward,
or its input where it is recomputed. A phase is a moment of most memory: the loss over all logits, or the last layer's
backward. `kept` follows from each recipe, in bytes per unit of the model's widths; phases were fitted.

Fitted to the peaks of 60 configurations on one H200 with Mistral-7B's shape (`tests/benchmarks/_memory_grid.py`; errors
in docs/performance.md), and corrected by others, chosen afterwards: adapters beyond attention, on a part of it, or
without dropout, gradients of large ranks, masks over long rows. The prediction is of the allocator's peak
(`torch.cuda.max_memory_allocated`); the driver's context and fragments come on top.

Not covered: CPUs, inference, loading (whose peak is below training's), host memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.predict import flops
from bench.records import ATTENTION_PROJECTIONS, Trial

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # a code, its block's scale in 8 bits, and that scale's in 32
OPTIMIZER_BYTES = {"adamw_torch": 8.0, "paged_adamw_8bit": 2.0}  # of state per trained parameter
HELD_BYTES = {"bf16": 2.0, "eight_backward": 1.0, "eight": 2.0}  # of a held number: in 8 bits one for each orientation
COLUMNS_APART = 32  # of `bench.qlora.recipes.int8`
BLOCK = 128  # of `bench.kernels.int8.block_quant`
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Bytes per token for each unit of a width; `heads` is query, key and value together, `rows` counts once."""

    rows: float = 0.0
    hidden: float = 0.0
    inner: float = 0.0
    heads: float = 0.0
    vocabulary: float = 0.0

    def of(self, model: Mapping[str, int]) -> float:
        return self.rows + sum(float(getattr(self, name)) * width for name, width in model.items())


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A moment of a step: `copies` of the largest layer's weight in 16 bit, `mib` more, `passing` for each token."""

    passing: Widths
    copies: float = 0.0
    mib: float = 0.0
    head_copies: float = 0.0  # of the output layer in 16 bit
    in_layer: bool = True  # together with what a recomputed layer has made by then


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one recipe keeps, and its phases: with layers kept, and with every layer recomputed.

    `tables` is bytes per parameter of embeddings and head; `kept_of_rank` bytes per token for each unit of LoRA rank on
    each target. `kept_of_input` is bytes per token and unit of an adapted product's input; `inputs_passing` the share
    of these, beyond attention's, that exists at the peak of a recomputed layer. Without dropout an input is kept in 16
    bit; with `shares_inputs` once for all products that share it. `has_gradients`: all adapters' gradients exist before
    the layers' activations are freed.
    """

    kept: Widths
    checkpoint: Widths
    while_kept: tuple[Phase, ...]
    while_again: tuple[Phase, ...]
    tables: float
    kept_of_rank: float = 0.0
    kept_of_input: float = 0.0
    inputs_passing: float = 0.0
    shares_inputs: bool = False
    has_gradients: bool = False


# The loss over fp32 logits: the logits twice in fp32 and twice in 16 bit, and the head's own copy under autocast.
_REFERENCE_LOSS = Phase(passing=Widths(vocabulary=12.0, hidden=4.12), head_copies=1.0, mib=73.0, in_layer=False)
# While a product of `fast` runs, its weight exists in 16 bit: gate and up together, or down beside the gradient of its
# input. It is the same with layers kept and recomputed.
_FAST = (
    Phase(passing=Widths(hidden=4.1), copies=2.0, mib=14.0),
    Phase(passing=Widths(hidden=2.4, inner=2.0), copies=1.0, mib=14.0),
)
# In 8 bits a weight takes half as much, and the gradient of gate and up is written over gate and up.
_FAST_IN_BLOCKS = (
    Phase(passing=Widths(hidden=4.1), copies=1.0, mib=14.0),
    Phase(passing=Widths(hidden=3.4, inner=2.0), copies=0.5, mib=14.0),
)
# Offloaded, without adapters on the MLP, gate and up get their gradient in parts. Attention's backward may need most:
# q k v and their gradient, two inputs, four tensors of their width, and what the library takes for itself.
_FAST_IN_PARTS = (
    _FAST_IN_BLOCKS[0],
    Phase(passing=Widths(hidden=20.0, heads=4.0), mib=14.0, in_layer=False),
)
# The head's copy where it is kept in the host's memory, and the logits of 512 tokens, an eighth of it at 7B.
_FAST_HEAD = Phase(passing=Widths(hidden=9.0), head_copies=1.125, mib=14.0, in_layer=False)
RECIPES: dict[str, Recipe] = {
    # The residual stream and all norms in fp32, casts to bf16 beside it, dropout and its masks for each adapter.
    "reference": Recipe(
        kept=Widths(hidden=7.1, inner=12.0, heads=6.0),
        checkpoint=Widths(hidden=4.0),
        while_kept=(_REFERENCE_LOSS,),
        while_again=(_REFERENCE_LOSS, Phase(passing=Widths(hidden=44.3), copies=1.0, mib=25.0)),
        tables=4.0,
        kept_of_input=3.0,  # of peft's dropout: its result in 16 bit, and its mask
        inputs_passing=0.473,
    ),
    "stock": Recipe(
        kept=Widths(hidden=-2.0, inner=7.0, heads=4.0),  # fitted together: inner and heads compensate
        checkpoint=Widths(hidden=2.0),
        while_kept=(Phase(passing=Widths(hidden=0.2), copies=1.0, mib=99.0),),
        while_again=(Phase(passing=Widths(hidden=14.4), copies=1.0, mib=40.0),),
        tables=2.0,
        kept_of_input=3.0,
        inputs_passing=1.0,
        shares_inputs=True,
    ),
    # x, h and the attention's output, q k v, gate and up: bench/qlora/recipes/layer.py.
    "fast": Recipe(
        kept=Widths(hidden=6.0, inner=4.0, heads=2.0, rows=136.0),
        checkpoint=Widths(hidden=2.0),
        while_kept=_FAST,
        while_again=_FAST,
        tables=2.0,
        kept_of_rank=2.0,
        has_gradients=True,
    ),
}
GRADIENT_BYTES = 4.0
MASK_BYTES = 3.0  # for each pair of positions in a row of varlen: a boolean mask, and one in 16 bit
SAME_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}  # layers with the same input
INPUTS_UNDER_WAY = 2  # layer inputs on the device at the peak, with offload_checkpoints; none in 8 bits


def peak_bytes(config: Mapping[str, Any], trial: Trial, *, captured: bool = True) -> int:
    """The predicted peak of a training trial on one GPU. `config` is the model's config.json.

    `captured`: of `fast` whose steps are CUDA graphs, which add gradients to those of the step's other micro-batches.
    """
    recipe, model = RECIPES[trial.recipe], widths(config)
    layers, positions = int(config["num_hidden_layers"]), trial.micro_batch_size * trial.max_seq_len
    again = -(-layers // trial.checkpoint_every) if trial.gradient_checkpointing else 0  # how many are recomputed
    checkpoint = recipe.checkpoint.of(model)
    attention, beyond = _inputs_kept(config, trial, recipe)
    whole = recipe.kept.of(model) + recipe.kept_of_rank * trial.lora_rank * len(trial.lora_targets) + attention
    in_blocks = trial.products == "eight" and model["inner"] % BLOCK == 0
    if in_blocks:  # gate and up in 8 bits, a scale for each block
        whole -= 2 * model["inner"] * (1 - 4 / BLOCK)
    inputs = min(again, 0 if in_blocks else INPUTS_UNDER_WAY) if trial.offload_checkpoints else again
    kept = (layers - again) * (whole + beyond) + inputs * checkpoint
    computing = 0.0
    if again == layers:
        computing = whole + recipe.inputs_passing * beyond - (0.0 if trial.offload_checkpoints else checkpoint)
    phases = recipe.while_again if again == layers else recipe.while_kept
    if in_blocks:
        in_parts = trial.offload_checkpoints and again == layers and set(trial.lora_targets) <= {*ATTENTION_PROJECTIONS}
        phases = _FAST_IN_PARTS if in_parts else _FAST_IN_BLOCKS
    if trial.recipe == "fast" and trial.offload_checkpoints:
        phases += (_FAST_HEAD,)
    largest = 2 * max(wide * high for wide, high in flops.linear_layers(config).values())
    passing = max(
        positions * (phase.passing.of(model) + (computing if phase.in_layer else 0.0))
        + phase.copies * largest
        + phase.head_copies * 2 * flops.head_weights(config)
        + phase.mib * MIB
        for phase in phases
    )
    if trial.layout == "varlen" and trial.recipe != "fast":
        passing += MASK_BYTES * positions**2
    if again == layers and trial.recipe == "fast" and "down_proj" in trial.lora_targets:
        # An adapter on the last product needs its input, so that product is recomputed too.
        passing += largest + positions * 2 * model["hidden"]
    adapters = flops.adapter_weights(config, trial.lora_rank, trial.lora_targets) if recipe.has_gradients else 0
    times = 2 if captured and not trial.offload_checkpoints else 1
    constant = weight_bytes(config, trial) + trained_bytes(config, trial) + times * GRADIENT_BYTES * adapters
    return round(constant + positions * kept + passing)


def widths(config: Mapping[str, Any]) -> dict[str, int]:
    """The model's widths by the names of `Widths`."""
    layers = flops.linear_layers(config)
    heads = sum(layers[name][1] for name in ("q_proj", "k_proj", "v_proj"))
    return {
        "hidden": int(config["hidden_size"]),
        "inner": int(config["intermediate_size"]),
        "heads": heads,
        "vocabulary": int(config["vocab_size"]),
    }


def weight_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """The frozen base: blocks in NF4 or 16 bit, embeddings and head as the recipe keeps them."""
    recipe = RECIPES[trial.recipe]
    blocks, layers = flops.block_weights(config), int(config["num_hidden_layers"])
    tables = flops.head_weights(config) * (1 if config.get("tie_word_embeddings", False) else 2)
    if trial.base_precision != "nf4":
        return 2.0 * (blocks + tables)  # the reference casts nothing to fp32 here
    held = HELD_BYTES[trial.products] * blocks * min(trial.held_layers, layers) / layers
    on_device = 0 if trial.recipe == "fast" and trial.offload_checkpoints else tables
    return NF4_BYTES * blocks + held + _beside_eight(config, trial) + recipe.tables * on_device


def _beside_eight(config: Mapping[str, Any], trial: Trial) -> float:
    """What products in 8 bits keep of each weight: a scale for each row, and the columns apart in 16 bits."""
    rows = sum(rows for _, rows in flops.linear_layers(config).values()) * int(config["num_hidden_layers"])
    return rows * {"bf16": 0.0, "eight_backward": 4.0, "eight": 4.0 + 2.0 * COLUMNS_APART}[trial.products]


def trained_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """Adapters in fp32 and the optimizer's state; the recipe fast computes with a bf16 copy."""
    copies = 2.0 if trial.recipe == "fast" else 0.0
    each = 4.0 + OPTIMIZER_BYTES[trial.optimizer] + copies
    return each * flops.adapter_weights(config, trial.lora_rank, trial.lora_targets)


def _inputs_kept(config: Mapping[str, Any], trial: Trial, recipe: Recipe) -> tuple[float, float]:
    """Bytes per token that a layer's adapters keep of their inputs: those of attention, and the others."""
    wide = flops.linear_layers(config)
    of_attention = [name for name in ATTENTION_PROJECTIONS if name in trial.lora_targets]
    others = [name for name in wide if name in trial.lora_targets and name not in ATTENTION_PROJECTIONS]
    each = recipe.kept_of_input
    if each and not trial.lora_dropout:
        each = 2.0
        of_attention = [name for name in of_attention if name != "o_proj"]  # attention keeps its input anyway
        if recipe.shares_inputs:
            of_attention, others = (
                sorted({SAME_INPUT.get(name, name) for name in names}) for names in (of_attention, others)
            )
    return each * sum(wide[name][0] for name in of_attention), each * sum(wide[name][0] for name in others)
