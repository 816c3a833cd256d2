"""`reference`: the published loop, unchanged. All other recipes are compared with it.

1. the base in NF4 with double quantization, bf16 compute (`bench.qlora.step.load_base`);
2. `prepare_model_for_kbit_training`: norms, embeddings and the output layer raised to float32, gradient checkpointing;
3. LoRA of rank 16, alpha 32, on the attention projections; only the adapters are trained;
4. every sample padded to max_seq_len (`bench.data.collate`, layout `pad`);
5. forward under bf16 autocast with the model's own loss, backward, gradients clipped at norm 1;
6. bitsandbytes' `paged_adamw_8bit` at a constant 2e-4, no weight decay.

With a 16-bit base, step 2 is omitted: it would cast the whole base to float32.
"""

from typing import Any

from bench.qlora.step import Placement, TrainingStep, add_lora, make_optimizer, recompute_layers
from bench.records import Trial
from bench.torch_stack import Stack


def build(stack: Stack, trial: Trial, placement: Placement, base: Any) -> TrainingStep:
    if trial.base_precision == "nf4":
        base = stack.peft.prepare_model_for_kbit_training(
            base,
            use_gradient_checkpointing=trial.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
    elif trial.gradient_checkpointing:
        recompute_layers(base)
    model = add_lora(stack, trial, base)
    optimizer, name = make_optimizer(stack, trial, model, placement)
    return TrainingStep(stack, model, optimizer, placement, name)
