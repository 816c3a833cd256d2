"""Loss and adapter gradients of small random models of every family, by a recipe, padded and packed.

`families()` are cases: `input` is a model's type and changed sizes, `expected` the recipes that compute it apart from
`reference`. Peft draws its dropout masks from torch's generator, `fast` by a hash. Where both must agree, peft's
dropout layers are replaced by ones that apply the masks of `fast`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench import torch_stack
from bench.architectures import find
from bench.architectures.architecture import PRODUCT_INPUTS
from bench.data.collate import Batch, make_batches
from bench.data.packing import Row, pack_whole_samples
from bench.kernels.lora import LoraInput, MaskSeed, keep_mask_reference
from bench.qlora import recipes
from bench.qlora.recipes.layer import PRODUCTS_PER_LAYER
from bench.qlora.step import Placement, TrainingStep
from bench.records import Trial
from tests.support.cases import load_cases
from tests.support.random_adapters import with_random_b

LossAndGradients = tuple[float, dict[str, torch.Tensor]]
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "sliding_window": None,
}
LENGTHS, MAX_SEQ_LEN, SEED = (24, 9, 17, 1), 24, 77
WIDE = {"initializer_range": 0.1}  # attention is not uniform, so gradients of q and k are not lost in rounding
TOKENIZER: Any = SimpleNamespace(pad_token_id=0, eos_token_id=1)


def families() -> list[Any]:
    """Return the families as pytest parameters."""
    return load_cases(__file__, "families.yaml")


def write_model(modules: torch_stack.Stack, folder: Path, model_type: str, **changes: Any) -> Path:
    """Write a small model of random bf16 weights, without a tokenizer."""
    config = modules.transformers.AutoConfig.for_model(model_type, **(SIZES | changes))
    torch.manual_seed(1)
    modules.transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    return folder


class HashedDropout(torch.nn.Module):
    """Dropout of an adapter's input by the masks of `fast`: of adapter `target`, for the seed of its product."""

    def __init__(self, adapters: LoraInput, target: int) -> None:
        super().__init__()
        self._adapters, self._target = adapters, target

    def forward(self, x: Any) -> Any:
        rows = x.view(-1, x.shape[-1])
        kept = keep_mask_reference(*rows.shape, self._target, self._adapters, x.device).view(x.shape)
        return x * kept / (1.0 - self._adapters.p)


def run_recipe(
    modules: torch_stack.Stack, placement: Placement, trial: Trial, lengths: Sequence[int] = LENGTHS
) -> dict[str, LossAndGradients]:
    """Compute loss and gradients of one micro-batch by the trial's recipe, which must not fall back, for each layout.

    Adapters are on all linear layers, with a random B. `reference` without dropout also computes the layout `single`:
    the library's own model, one sample at a time.
    """
    config = modules.transformers.AutoConfig.from_pretrained(trial.model).to_dict()
    layers = tuple(layer.name for layer in find(config).linear_layers)
    trial = dataclasses.replace(trial, lora_targets=layers, warmup_steps=0, measured_steps=1)
    step = recipes.load(modules, trial, placement)
    assert (step.recipe, step.flags) == (trial.recipe, ())
    with_random_b(step.model)
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(2, SIZES["vocab_size"], (length,), generator=generator).tolist() for length in lengths]
    results = {}
    for layout in ("pad", "varlen"):
        rows = [Row(ids=text) for text in texts]
        if layout == "varlen":
            rows = pack_whole_samples(texts, trial.max_seq_len, trial.max_seq_len * len(texts), 1)
        (batch,) = make_batches(
            modules, dataclasses.replace(trial, layout=layout), rows, TOKENIZER, pin_memory=placement.is_cuda
        )
        results[layout] = loss_and_gradients(step, batch, SEED if trial.lora_dropout else None)
    if trial.recipe == "reference" and not trial.lora_dropout:
        results["single"] = _run_single_samples(step, texts, placement.device)
    return results


def _run_single_samples(step: TrainingStep, texts: list[list[int]], device: Any) -> LossAndGradients:
    targets = sum(len(text) - 1 for text in texts)
    total = 0.0
    for text in texts:
        if len(text) == 1:
            continue  # it has no target, and the library would divide by their number
        ids = torch.tensor([text], device=device)
        with step.autocast():
            loss = step.model(input_ids=ids, labels=ids).loss * (len(text) - 1) / targets
        loss.backward()
        total += float(loss.detach())
    return total, _take_gradients(step)


def loss_and_gradients(step: TrainingStep, batch: Batch, seed: int | None = None) -> LossAndGradients:
    """Compute the loss and the float32 gradient of every adapter weight; with `seed`, by the masks of `fast`."""
    inputs = step.inputs(batch)
    if seed is not None:
        base = torch.tensor(seed, device=inputs["input_ids"].device)
        if hasattr(step.model, "peft_model"):
            inputs["seed"] = base
        else:
            _set_masks(step.model.get_base_model(), base)
    with step.autocast():
        loss = step.model(**inputs).loss
    loss.backward()
    return float(loss.detach()), _take_gradients(step)


def _take_gradients(step: TrainingStep) -> dict[str, torch.Tensor]:
    named = ((name.removeprefix("peft_model."), each) for name, each in step.model.named_parameters())
    gradients = {name: each.grad.float().cpu() for name, each in named if each.grad is not None}
    step.optimizer.zero_grad()
    return gradients


def _set_masks(base: Any, seed: Any) -> None:
    architecture = find(base.config.to_dict())
    for index, block in enumerate(base.model.layers):
        for number, product in enumerate(PRODUCT_INPUTS):
            mask_seed = MaskSeed(base=seed, offset=index * PRODUCTS_PER_LAYER + number)
            adapted = [linear for linear in architecture.modules(block, product) if hasattr(linear, "lora_A")]
            for target, linear in enumerate(adapted):
                ((name, dropout),) = linear.lora_dropout.items()
                p = dropout.p if isinstance(dropout, torch.nn.Dropout) else dropout._adapters.p
                adapters = LoraInput(rank=linear.r[name], scaling=linear.scaling[name], p=p, seed=mask_seed)
                linear.lora_dropout[name] = HashedDropout(adapters, target)


def gradient_errors(result: LossAndGradients, expected: LossAndGradients) -> dict[str, float]:
    """Map each gradient to ||gradient - expected|| / ||expected||."""
    assert sorted(result[1]) == sorted(expected[1])
    return {name: float((result[1][name] - each).norm() / each.norm()) for name, each in expected[1].items()}
