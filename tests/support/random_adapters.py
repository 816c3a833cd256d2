"""Adapters as in the middle of a training, for comparisons of gradients."""

from typing import Any

import torch


def with_random_b(model: Any) -> Any:
    """Randomize B: at the start of training it is 0, so A has no gradient to compare."""
    generator = torch.Generator().manual_seed(5)
    for name, each in sorted((name.removeprefix("peft_model."), each) for name, each in model.named_parameters()):
        if "lora_B" in name:
            with torch.no_grad():
                each.copy_(0.1 * torch.randn(each.shape, generator=generator))
    return model
