"""recipes: `build(stack, trial, placement, base) -> TrainingStep`, all with the same adapters of the same model.

reference: the published loop
stock: the best combination of the usual libraries
fast: this project's recipe
layer: a decoder layer of `fast`, with forward and backward written out
fused_linear: products of frozen NF4 weights with their LoRA adapters
int8: a frozen weight multiplied in 8 bits
offload: layer inputs, embeddings and head in host memory
cuda_graph: a micro-batch's forward and backward as CUDA graphs
adapters: new LoRA adapters created by peft
"""

import importlib
from typing import Any

from bench.qlora.step import Placement, TrainingStep
from bench.records import Trial
from bench.torch_stack import Stack


def build(recipe: str, stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    """Build the training step of a recipe over `base`, a model returned by `bench.qlora.step.load_base`.

    If `fast` does not support this model or device, `stock` is built; the step's `recipe` gives the reason.
    """
    fallback_note = ""
    if recipe == "fast":
        reason = importlib.import_module("bench.qlora.recipes.fast").unsupported_reason(stack, trial, placement, base)
        if reason is not None:
            recipe, fallback_note = "stock", f" (fast is not supported: {reason}{_unsupported_options(trial)})"
    step: TrainingStep = importlib.import_module(f"bench.qlora.recipes.{recipe}").build(stack, trial, placement, base)
    step.recipe = recipe + fallback_note
    if fallback_note:
        step.flags = (f"recipe {step.recipe}",)
    return step


def _unsupported_options(trial: Trial) -> str:
    """Name the trial's options that `stock` lacks, as the end of a sentence."""
    options = {
        "checkpoint_every": trial.checkpoint_every > 1,
        "offload_checkpoints": trial.offload_checkpoints,
        "held_layers": trial.held_layers > 0,
        f"matmul {trial.matmul}": trial.matmul != "bf16",
    }
    names = [name for name, is_set in options.items() if is_set]
    return f"; without {', '.join(names)}" if names else ""
