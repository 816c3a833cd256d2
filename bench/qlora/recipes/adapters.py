"""LoRA adapters on the trial's layers, created by peft."""

from typing import Any

from bench.records import Trial
from bench.torch_stack import Stack


def add(stack: Stack, trial: Trial, model: Any) -> Any:
    """Freeze `model` and add new adapters, initialized by the trial's seed."""
    stack.transformers.set_seed(trial.seed)
    config = stack.peft.LoraConfig(
        r=trial.lora_rank,
        lora_alpha=trial.lora_alpha,
        lora_dropout=trial.lora_dropout,
        target_modules=list(trial.lora_targets),
        bias="none",
        task_type="CAUSAL_LM",
        **({"use_rslora": True} if trial.training is not None and trial.training.rank_stabilized else {}),
    )
    adapted = stack.peft.get_peft_model(model, config)
    adapted.train()
    return adapted
