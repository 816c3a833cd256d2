"""LoRA adapters on the trial's layers through peft, for recipes that leave the base as it was loaded."""

from __future__ import annotations

from typing import Any

from bench.records import Trial
from bench.stack import Stack


def add(stack: Stack, trial: Trial, model: Any) -> Any:
    """`model` with everything frozen but fresh adapters, whose first values the trial's seed decides."""
    stack.transformers.set_seed(trial.seed)
    config = stack.peft.LoraConfig(
        r=trial.lora_rank,
        lora_alpha=trial.lora_alpha,
        lora_dropout=trial.lora_dropout,
        target_modules=list(trial.lora_targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    adapted = stack.peft.get_peft_model(model, config)
    adapted.train()
    return adapted
