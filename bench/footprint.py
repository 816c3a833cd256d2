"""How much GPU memory a training trial needs at its peak, from a model's config.json and the trial: pure arithmetic.

    peak = weights + trained + T (layers x kept + once + head) + workspace

`weights` are the base's; `trained` the adapters with gradients and optimizer state; T the token positions of a
micro-batch. `kept` is what each layer leaves for its backward, `once` what one layer needs while it is computed
(again), `head` what logits and loss need. They differ by recipe and are written as bytes per unit of the model's widths.

The widths follow from what each recipe keeps; how many bytes of each was fitted to peaks measured on one GPU with
Mistral-7B's shape (`tests/benchmarks/memory_grid.py`, whose table is in docs/performance.md). What is predicted is what
the allocator hands out (`torch.cuda.max_memory_allocated`); the driver's context and what fragments come on top, about
`OVERHEAD_BYTES`.

Not covered: CPUs, inference, loading (whose peak is below training's), host memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import flops
from bench.trial import Trial

OVERHEAD_BYTES = 600 << 20  # CUDA context, cuBLAS and Triton modules, and what the allocator cannot hand out
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # a code, its block's scale in 8 bits, and that scale's in 32
OPTIMIZER_BYTES = {"adamw_torch": 8.0, "paged_adamw_8bit": 2.0}  # of state per trained parameter
MARGIN = 1.03  # a configuration counts as fitting when it does with this much more


@dataclass(frozen=True, kw_only=True)
class Widths:
    """Bytes per token for each unit of a width; `heads` are query, key and value together."""

    hidden: float = 0.0
    inner: float = 0.0
    heads: float = 0.0
    vocabulary: float = 0.0

    def of(self, model: Mapping[str, int]) -> float:
        return (
            self.hidden * model["hidden"]
            + self.inner * model["inner"]
            + self.heads * model["heads"]
            + self.vocabulary * model["vocabulary"]
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one recipe keeps. `tables` is bytes per parameter of embeddings and head, `weight_copies` how many times the
    largest product's weight lies there in 16 bit while it is used; `checkpoint` is what is kept of a layer that will be
    computed again."""

    kept: Widths
    checkpoint: Widths
    once: Widths
    head: Widths
    tables: float
    weight_copies: float


RECIPES: dict[str, Recipe] = {
    # The residual stream and all norms in fp32, casts to bf16 beside it, dropout and its masks for each adapter.
    "reference": Recipe(
        kept=Widths(hidden=38.0, inner=14.0, heads=8.0),
        checkpoint=Widths(hidden=4.0),
        once=Widths(hidden=38.0, inner=14.0, heads=8.0),
        head=Widths(vocabulary=10.0, hidden=8.0),
        tables=4.0,
        weight_copies=1.0,
    ),
    "stock": Recipe(
        kept=Widths(hidden=12.0, inner=6.0, heads=4.0),
        checkpoint=Widths(hidden=2.0),
        once=Widths(hidden=12.0, inner=6.0, heads=4.0),
        head=Widths(hidden=4.0),
        tables=2.0,
        weight_copies=1.0,
    ),
    # x and h, q k v and the attention's output, gate and up: bench/recipes/layer.py.
    "fast": Recipe(
        kept=Widths(hidden=4.0, inner=4.0, heads=4.0),
        checkpoint=Widths(hidden=2.0),
        once=Widths(hidden=8.0, inner=4.0, heads=2.0),
        head=Widths(hidden=4.0),
        tables=2.0,
        weight_copies=2.0,
    ),
}


def peak_bytes(config: Mapping[str, Any], trial: Trial) -> int:
    """The predicted peak of a training trial on one GPU. `config` is the model's config.json."""
    recipe = RECIPES[trial.recipe]
    model = widths(config)
    layers, positions = int(config["num_hidden_layers"]), trial.micro_batch_size * trial.max_seq_len
    again = _recomputed(trial, layers)
    checkpoint = 0.0 if trial.offload_checkpoints else recipe.checkpoint.of(model)
    kept = again * checkpoint + (layers - again) * recipe.kept.of(model)
    once = recipe.kept.of(model) + recipe.once.of(model) if again else recipe.once.of(model)
    # Logits are gone when the layers' backward begins, so the larger of the two counts.
    passing = max(once, recipe.head.of(model))
    return round(
        weight_bytes(config, trial)
        + trained_bytes(config, trial)
        + positions * (kept + passing)
        + recipe.weight_copies * 2 * _largest_product(config)
    )


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
        return 2.0 * (blocks + tables)  # the reference leaves its casts to fp32 out here
    held = 2.0 * blocks * min(trial.held_layers, layers) / layers
    return NF4_BYTES * blocks + held + recipe.tables * tables


def trained_bytes(config: Mapping[str, Any], trial: Trial) -> float:
    """Adapters in fp32 with their gradients and the optimizer's state; the recipe fast computes with a bf16 copy."""
    copies = 2.0 if trial.recipe == "fast" else 0.0
    each = 4.0 + 4.0 + OPTIMIZER_BYTES[trial.optimizer] + copies
    return each * flops.adapter_weights(config, trial.lora_rank, trial.lora_targets)


def _recomputed(trial: Trial, layers: int) -> int:
    """How many layers run forward a second time."""
    return -(-layers // trial.checkpoint_every) if trial.gradient_checkpointing else 0


def _largest_product(config: Mapping[str, Any]) -> int:
    return max(wide * high for wide, high in flops.linear_layers(config).values())
