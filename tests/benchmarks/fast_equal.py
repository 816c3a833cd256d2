"""Gradients of the recipes fast and reference against float32, in bf16 and, on a GPU, with products in 8 bits.

    python -m tests.benchmarks.fast_equal [--model DIR --data FILE]

Of all adapters, on one micro-batch without dropout and with B drawn at random (at 0, as training begins, A has no
gradient), as ||gradient - exact|| / ||exact||. Exact is the same quantized model in float32, TF32 off.
"""

import argparse
import dataclasses
import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.collate import Batch, make_batches, make_rows
from bench.data.readers import read_data
from bench.data.tokenizer import load_tokenizer
from bench.kernels import nf4
from bench.qlora import recipes
from bench.qlora.step import Placement, TrainingStep, add_lora, choose_placement, load_base
from bench.records import Trial
from tests.benchmarks import Figure, a_trial, demo_inputs, print_figures

Compared = tuple[str, str, dict[str, Any]]  # a name, a recipe, and what it changes
REFERENCE: Compared = ("reference", "reference", {})
IN_8_BITS: tuple[Compared, ...] = (("fast, both products in 8 bits", "fast", {"matmul": "int8"}),)


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fast_equal")
    parser.add_argument("--model", help="default: the demo's small model, made for this")
    parser.add_argument("--data", help="default: the demo's data")
    arguments = parser.parse_args(argv)
    modules = torch_stack.load()
    placement = choose_placement(modules)
    with tempfile.TemporaryDirectory() as folder:
        model, chats = arguments.model, arguments.data
        if model is None or chats is None:
            model, chats = demo_inputs(Path(folder))
        on_gpu = placement.is_cuda
        trial = a_trial(
            "equal",
            model,
            is_cuda=on_gpu,
            data=chats,
            max_seq_len=256 if on_gpu else 64,
            micro_batch_size=4,
            warmup_steps=0,
            measured_steps=1,
        )
        compared = [REFERENCE, ("fast", "fast", {}), *(IN_8_BITS if on_gpu else ())]
        return Equality(modules, placement, trial).gradients(compared)


class Equality:
    """One model and data set on one device."""

    def __init__(self, modules: torch_stack.Stack, placement: Placement, trial: Trial) -> None:
        self.modules, self.placement, self.trial = modules, placement, trial
        tokenizer = load_tokenizer(Path(trial.model))
        rows = make_rows(trial, read_data(Path(trial.data))[1], tokenizer)
        self.batches = list(make_batches(modules, trial, rows, tokenizer, pin_memory=False))

    def gradients(self, compared: Sequence[Compared]) -> list[Figure]:
        exact = self.gradient("exact")
        figures = []
        for name, recipe, changes in compared:
            gradient = self.gradient(recipe, **changes)
            error = float((gradient - exact).norm() / exact.norm())
            cosine = float(gradient @ exact / (gradient.norm() * exact.norm()))
            value = f"{error:.4f}, cosine {cosine:.4f}"
            figures.append(
                Figure(name=f"gradient error, {name}", value=value, goal="<= 0.12" if name == "fast" else "-")
            )
            print(figures[-1], flush=True)
        return figures

    def gradient(self, recipe: str, **changes: Any) -> Any:
        """Return all adapters' gradients concatenated in the order of names, float64 on the host."""
        torch = self.modules.torch
        batch = self.batches[0]
        inputs = self.inputs(batch)
        mask = {"attention_mask": batch.attention_mask.to(self.placement.device)}
        if recipe == "exact":
            before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            model = self._exact()
            with self._random_b(model):
                model(**inputs, **mask).loss.backward()
            torch.set_float32_matmul_precision(before)
        else:
            step = self.build(recipe, lora_dropout=0.0, **changes)
            model = step.model
            bf16 = recipe == "reference" and self.placement.compute_dtype == torch.bfloat16
            with self._random_b(model), torch.autocast(self.placement.device.type, torch.bfloat16, enabled=bf16):
                model(**inputs, **(mask if recipe == "reference" else {})).loss.backward()
        gradient = torch.cat([each.grad.double().flatten().cpu() for _, each in _named(model) if each.grad is not None])
        self.free()
        return gradient

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {name: getattr(batch, name).to(self.placement.device) for name in ("input_ids", "labels")}

    def _random_b(self, model: Any) -> Any:
        torch = self.modules.torch
        generator = torch.Generator().manual_seed(3)
        for name, each in _named(model):
            if "lora_B" in name:
                with torch.no_grad():
                    each.copy_(0.01 * torch.randn(each.shape, generator=generator))
        return torch.enable_grad()

    def build(self, recipe: str, **changes: Any) -> TrainingStep:
        trial = dataclasses.replace(self.trial, recipe=recipe, **changes)
        base = load_base(self.modules, trial, self.placement)
        return recipes.build(recipe, self.modules, trial, self.placement, base)

    def _exact(self) -> Any:
        torch = self.modules.torch
        trial = dataclasses.replace(self.trial, lora_dropout=0.0)
        base = load_base(self.modules, trial, self.placement)
        quantized = self.modules.bitsandbytes.nn.Linear4bit
        for layer in (module for module in base.modules() if isinstance(module, quantized)):
            weight = nf4.dequantize_reference(nf4.from_bitsandbytes(layer.weight))
            layer.forward = lambda x, weight=weight: torch.nn.functional.linear(x, weight)
        for parameter in base.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.float()
        return add_lora(self.modules, trial, base)

    def free(self) -> None:
        gc.collect()
        if self.placement.is_cuda:
            self.modules.torch.cuda.empty_cache()


def _named(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters in the order of their names, which do not depend on the recipe's wrapper."""
    return sorted((name.removeprefix("peft_model."), each) for name, each in model.named_parameters())


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
