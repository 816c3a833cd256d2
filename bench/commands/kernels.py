"""kernels: compile what the recipe `fast` launches, for GPUs that need not be there, into a folder.

The model has the shapes of a folder's config.json and no weights: two of its layers on "meta", one of them held. A step
of each kind runs on it: products in 16 and in 8 bits, short and long samples, activations kept and recomputed,
and an evaluation.
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench import torch_stack
from bench.data.inputs import InputError
from bench.data.model_folder import read_config
from bench.data.trial_inputs import unsupported_model
from bench.kernels import adamw8, nf4
from bench.qlora.recipes.fast import FastModel, unsupported_software
from bench.qlora.step import add_lora
from bench.records import Trial, choose, suite
from bench.torch_stack import Stack

LAYERS = 2
ROW_TOKENS, ROW_SAMPLES = 4096, (64, 128, 256)  # most samples of a row; their power of two is a constant of a kernel
SHORT_TOKENS = 1024  # longer samples have another kernel of attention


def compile_kernels(models: Sequence[Path], architectures: Sequence[str], out: Path) -> int:
    """Compile the models' kernels for these compute capabilities, as "8.6", into `out`; return their number.

    It is 0 if the recipe does not support this torch, or no model. Raises InputError for another capability than those
    of `ahead.PROCESSORS`.
    """
    if unsupported_software(torch) is not None:
        return 0
    from bench.kernels import ahead, cache  # import Triton

    os.environ |= {"TRITON_CACHE_DIR": str(out), "TRITON_CACHE_MANAGER": cache.MANAGER}
    kernels: list[Any] = []
    stack = torch_stack.load()
    for architecture in architectures:
        if architecture not in ahead.PROCESSORS:
            known = ", ".join(ahead.PROCESSORS)
            raise InputError(f"compute capability {architecture}: unknown", remedy=f"these are known: {known}")
        with ahead.compiling_for(architecture) as compiled:
            for model in models:
                (trial,) = choose(suite("quick", "gpu", str(model), "none"), ("train",))
                if unsupported_model(read_config(model), trial.max_seq_len) is None:
                    for variant in variants(trial):
                        run_steps(stack, variant)
                    update_adapters()
        kernels += compiled
    ahead.build_launchers(kernels)
    return len({kernel.hash for kernel in kernels})


def variants(trial: Trial, **changes: Any) -> Iterator[Trial]:
    """Yield the trials whose steps have all kernels of a training, with further changes of each."""
    for matmul_type in ("bf16", "int8"):
        for longest in sorted({min(SHORT_TOKENS, trial.max_seq_len), trial.max_seq_len}):
            for recompute in (False, True):
                yield dataclasses.replace(
                    trial, recipe="fast", matmul=matmul_type, max_seq_len=longest, gradient_checkpointing=recompute,
                    checkpoint_every=1, held_layers=LAYERS - 1, offload_checkpoints=False,
                    **changes,
                )  # fmt: skip


def run_steps(stack: Stack, trial: Trial) -> None:
    """Run a packed row forward and backward, and an evaluation."""
    base = _base(stack, Path(trial.model))
    peft_model = add_lora(stack, trial, base)
    for name, module in base.model.layers.named_modules():
        if isinstance(module, torch.nn.Linear) and "lora_" not in name:
            module.weight = _quantized(*module.weight.shape)
    model = FastModel(peft_model, base, trial)
    ids = _meta(1, ROW_TOKENS, dtype=torch.int64)
    rows = [(ids, ids, ids, _meta(samples + 1, dtype=torch.int32)) for samples in ROW_SAMPLES]
    for row in rows:
        model(*row).loss.backward()
    model.eval()
    for row in rows:
        model.token_losses(*row)


def _base(stack: Stack, folder: Path) -> Any:
    """Make the model's first layers without weights."""
    config = stack.transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    config.num_hidden_layers = LAYERS
    with torch.device("meta"):
        return stack.transformers.AutoModelForCausalLM.from_config(config, **stack.dtype_argument(torch.bfloat16))


def _quantized(height: int, width: int) -> Any:
    """Make a weight that looks like bitsandbytes' NF4 with double quantization."""
    blocks = height * width // nf4.BLOCK
    weight = torch.nn.Parameter(_meta(height * width // 2, 1, dtype=torch.uint8), requires_grad=False)
    weight.quant_state = SimpleNamespace(
        quant_type="nf4",
        nested=True,
        blocksize=nf4.BLOCK,
        shape=(height, width),
        dtype=torch.bfloat16,
        code=_meta(16),
        absmax=_meta(blocks, dtype=torch.uint8),
        offset=_meta(),
        state2=SimpleNamespace(
            blocksize=nf4.SCALE_BLOCK, code=_meta(256), absmax=_meta(math.ceil(blocks / nf4.SCALE_BLOCK))
        ),
    )
    return weight


def update_adapters() -> None:
    """Run the optimizer's kernel."""
    codes, largest = _meta(1024, dtype=torch.uint8), _meta(4)
    table = adamw8.TensorTable([(_meta(1024), _meta(1024), codes, codes, largest, largest)])
    rates: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    adamw8.update_(table, adamw8.codebook(_meta(256), _meta(256)), step=1, **rates)


def _meta(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")
