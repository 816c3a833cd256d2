"""`stock`: the usual libraries at their best: transformers, peft, bitsandbytes, Liger, torch.compile.

Differences from the reference: norms, embeddings and head stay in the dtype of the model's files, which keeps the
residual stream in bf16; on a GPU, decoder layers are compiled, and Liger's loss is used if installed. Nothing is
compiled on a CPU: compiling a small model takes longer than training it; nor where rows of a training have many shapes,
because they are not packed: then Liger's other kernels are used, too. The trained parameters are the same.

Liger's loss never has all logits in memory. Without Liger, or for a model type that it has no patch for, they are: the
step's notes say so. The predicted peak (`bench.predict.memory`) is too low without Liger.
"""

import inspect
from pathlib import Path
from typing import Any

from bench.data.model_folder import read_separation
from bench.qlora import experts
from bench.qlora.base_models import liger_patch
from bench.qlora.step import Placement, TrainingStep, add_lora, make_optimizer, recompute_layers
from bench.records import Trial
from bench.torch_stack import Stack


def build(stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    features = []
    is_compiled = placement.is_cuda and (trial.layout != "varlen" or read_separation(Path(trial.model)).is_packed)
    if placement.is_cuda:
        is_patched = _patch_by_liger(base, only_loss=is_compiled)
        features.append("liger-kernel" if is_patched else "no liger-kernel: all logits in memory")
        experts.install(base, is_compiled=is_compiled)  # Liger's kernels for experts take weights in 16 bits
    if trial.gradient_checkpointing:
        recompute_layers(base)
    lists = (module for module in base.modules() if isinstance(module, stack.torch.nn.ModuleList))
    layers = max(lists, key=lambda blocks: sum(parameter.numel() for parameter in blocks.parameters()))
    model = add_lora(stack, trial, base)
    if is_compiled:
        # Otherwise a second shape triggers a dynamic-shape compilation, which takes as long again and runs slower.
        stack.torch._dynamo.config.automatic_dynamic_shapes = False
        for layer in layers:
            layer.compile(dynamic=False)
        features.append("compiled layers")
    optimizer, name = make_optimizer(stack, trial, model, placement)
    step = TrainingStep(stack, model, optimizer, placement, name)
    step.notes = tuple(features)
    return step


def _patch_by_liger(base: Any, *, only_loss: bool) -> bool:
    """Patch the model; return False if Liger is not installed or does not know its type.

    `only_loss` leaves out what a compiler fuses itself. It cannot trace Liger 0.8.5's norms, takes their inputs as
    written, and fails where a layer is not compiled as a whole.
    """
    if (patch := liger_patch(base.config.to_dict())) is not None:
        others = set(inspect.signature(patch).parameters) - {"model", "cross_entropy", "fused_linear_cross_entropy"}
        patch(model=base, **dict.fromkeys(others if only_loss else (), False))
    return patch is not None
