"""recipes: `build(stack, trial, placement, base) -> TrainingStep`, all with the same adapters of the same model.

reference: the published loop
stock: the best combination of the usual libraries
fast: this project's recipe
layer: a decoder layer of `fast`, with forward and backward written out
mlp: its MLP, written out or the model's own module
fused_linear: products of frozen NF4 weights with their LoRA adapters
int8: a frozen weight multiplied in 8 bits
offload: layer inputs, embeddings and head in host memory
cuda_graph: a micro-batch's forward and backward as CUDA graphs
"""

import importlib
import time
from typing import Any

from bench.data.trial_inputs import built_recipe
from bench.qlora.step import Placement, TrainingStep, load_base
from bench.records import Trial
from bench.torch_stack import Stack


def load(stack: Stack, trial: Trial, placement: Placement) -> TrainingStep:
    """Load the trial's model and build its recipe's step over it; `load_sec` is the time of loading."""
    start = time.monotonic()
    base = load_base(stack, trial, placement)
    if placement.is_cuda:
        stack.torch.cuda.synchronize()
    load_sec = time.monotonic() - start
    step = build(trial.recipe, stack, trial, placement, base)
    step.load_sec = load_sec
    return step


def build(recipe: str, stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    """Build the training step of a recipe over `base`, a model returned by `bench.qlora.step.load_base`.

    If `fast` does not support this model or device, `stock` is built; the step's `recipe` gives the reason.
    """
    reason = None
    if recipe == "fast":
        reason = importlib.import_module("bench.qlora.recipes.fast").unsupported_reason(stack, trial, placement, base)
    name = recipe if reason is None else "stock"
    step: TrainingStep = importlib.import_module(f"bench.qlora.recipes.{name}").build(stack, trial, placement, base)
    step.recipe = name if reason is None else built_recipe(trial, reason)
    if reason is not None:
        step.flags = (f"recipe {step.recipe}",)
    return step
