"""recipes: `build(stack, trial, placement, base) -> TrainingStep`, all for the same adapters of the same model.

reference: the published loop
stock: the best of the usual libraries
fast: ours; layer: a decoder layer; products: its products with adapters; offload: what waits in the host's memory
eight: a frozen weight whose products are done in 8 bits
captured: a micro-batch's forward and backward as CUDA graphs
adapters: fresh LoRA adapters by peft
"""

import importlib
from typing import Any

from bench.qlora.step import Placement, TrainingStep
from bench.records import Trial
from bench.torch_stack import Stack


def build(recipe: str, stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    """The training step of this recipe over `base`, a model as `bench.qlora.step.load_base` returns it.

    Where `fast` does not support this model or device, `stock` is built; the step's `recipe` says so and why.
    """
    fallen = ""
    if recipe == "fast":
        why = importlib.import_module("bench.qlora.recipes.fast").why_not(stack, trial, placement, base)
        if why is not None:
            recipe, fallen = "stock", f" (fast is not for this: {why}{_left_out(trial)})"
    step: TrainingStep = importlib.import_module(f"bench.qlora.recipes.{recipe}").build(stack, trial, placement, base)
    step.recipe = recipe + fallen
    if fallen:
        step.flags = (f"recipe {step.recipe}",)
    return step


def _left_out(trial: Trial) -> str:
    """What the trial asks for and stock does not have, to end a sentence with."""
    asked = {
        "checkpoint_every": trial.checkpoint_every > 1,
        "offload_checkpoints": trial.offload_checkpoints,
        "held_layers": trial.held_layers > 0,
        f"products {trial.products}": trial.products != "bf16",
    }
    names = [name for name, wanted in asked.items() if wanted]
    return f"; without {', '.join(names)}" if names else ""
