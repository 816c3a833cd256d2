"""Gradient errors of products in 8 and 4 bits with a Hadamard rotation of the summed columns, emulated on a CPU.

    python -m tests.benchmarks.rotation --model DIR [--batches 2]

DIR holds real weights, such as those of `inv model.demo --real`: random ones have no outliers. The frozen weights are
rounded to NF4, activations stay in float32, and each case rounds the operands of the products with frozen weights:
y = x W^T in the forward pass, d_x = d_y W in the backward pass. A row has one scale, or one for each `group` of its
numbers. A rotation multiplies both operands by a block-diagonal Hadamard matrix, which does not change the exact
product. The `apart` columns with the largest activations are multiplied in float32. The error is ||gradient - exact|| /
||exact|| over all adapters (rank 16 on attention, B drawn at random) on 4 x 256 tokens, mean over the batches.

Not covered: the speed of a rotation; training to the end.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit

from bench import torch_stack
from bench.data import demo
from bench.data.tokenizer import load_tokenizer
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from tests.benchmarks import Figure, print_figures

ROWS, LENGTH = 4, 256


@dataclass(frozen=True, kw_only=True)
class Case:
    """Bits of the weight and of the activation in the forward pass, of both in the backward pass; None is exact."""

    name: str
    weight_bits: int | None = None
    input_bits: int | None = None
    backward_bits: int | None = None
    rotated: int = 0
    backward_rotated: int = 0
    apart: int = 0
    group: int = 0


def int8(name: str, **more: Any) -> Case:
    return Case(name=name, weight_bits=8, input_bits=8, **more)


EXACT = Case(name="exact")
CASES = (
    int8("INT8 forward"),
    int8("INT8 forward, 32 columns apart", apart=32),
    int8("INT8 forward, rotated by 64", rotated=64),
    int8("INT8 forward, rotated by 64, 8 columns apart", rotated=64, apart=8),
    int8("INT8 forward, rotated by 64, 32 columns apart", rotated=64, apart=32),
    int8("INT8 forward, rotated by 16, 32 columns apart: as built", rotated=16, apart=32),
    Case(name="INT8 backward", backward_bits=8),
    Case(name="INT8 backward, rotated by 64", backward_bits=8, backward_rotated=64),
    int8("INT8 both, 32 columns apart", apart=32, backward_bits=8),
    int8("INT8 both, forward rotated by 16, 32 columns apart: as built", rotated=16, apart=32, backward_bits=8),
    int8("INT8 both, rotated by 64", rotated=64, backward_bits=8, backward_rotated=64),
    int8("INT8 both, rotated by 64, 32 columns apart", rotated=64, apart=32, backward_bits=8, backward_rotated=64),
    Case(name="INT4 forward, rotated by 64", weight_bits=4, input_bits=4, rotated=64),
    Case(name="INT4 forward, rotated, 32 apart, by 64", weight_bits=4, input_bits=4, rotated=64, apart=32, group=64),
    Case(name="INT4 weights by 64, INT8 inputs, 32 columns apart", weight_bits=4, input_bits=8, apart=32, group=64),
)  # fmt: skip


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.rotation")
    parser.add_argument("--model", required=True)
    parser.add_argument("--batches", type=int, default=2)
    arguments = parser.parse_args(argv)
    model, batches = load(Path(arguments.model), arguments.batches)
    exact = [gradient(model, EXACT, batch) for batch in batches]
    figures = []
    for case in CASES:
        pairs = list(zip((gradient(model, case, batch) for batch in batches), exact, strict=True))
        errors = [float((each - right).norm() / right.norm()) for (each, _), (right, _) in pairs]
        losses = [100.0 * (loss / right - 1.0) for (_, loss), (_, right) in pairs]
        value = f"{statistics.fmean(errors):.4f} ({min(errors):.3f} to {max(errors):.3f})"
        figures.append(Figure(name=case.name, value=value, ratio=f"loss {statistics.fmean(losses):+.2f} %"))
        print(figures[-1], flush=True)
    return figures


def load(folder: Path, count: int) -> tuple[Any, list[Any]]:
    """Load the model with adapters and rounded products, and make the batches of token ids."""
    modules = torch_stack.load()
    base = modules.transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = modules.peft.LoraConfig(r=16, lora_alpha=32, target_modules=list(ATTENTION_PROJECTIONS))
    torch.manual_seed(0)
    model = modules.peft.get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    for name, module in list(model.named_modules()):
        frozen = getattr(module, "base_layer", module)
        if name.rpartition(".")[2] in ALL_LINEAR:
            rounded = RoundedLinear(frozen.weight)
            parent, _, attribute = name.rpartition(".")
            owner = module if frozen is not module else model.get_submodule(parent)
            setattr(owner, "base_layer" if frozen is not module else attribute, rounded)
    tokenizer = load_tokenizer(folder)
    text = "\n".join(answer for _, answer in demo.documentation_pairs())[: 8 * count * ROWS * LENGTH]
    ids = torch.tensor(tokenizer(text)["input_ids"][: count * ROWS * LENGTH])
    return model, list(ids.view(count, ROWS, LENGTH))


class RoundedLinear(torch.nn.Module):  # type: ignore[misc]
    """A frozen layer whose weight went through NF4, and whose products are rounded as `case` says."""

    case = EXACT

    def __init__(self, weight: Any) -> None:
        super().__init__()
        codes, state = quantize_4bit(weight.detach(), quant_type="nf4")
        self.register_buffer("weight", dequantize_4bit(codes, state))

    def forward(self, x: Any) -> Any:
        return Product.apply(x, self.weight, RoundedLinear.case)


class Product(torch.autograd.Function):  # type: ignore[misc]
    """x W^T with rounded operands, and its input gradient."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, case: Case) -> Any:
        context.weight, context.case = weight, case
        if case.weight_bits is None or case.input_bits is None:
            return x @ weight.T
        columns = x.abs().flatten(0, -2).amax(0).topk(case.apart).indices
        exact = x[..., columns] @ weight[:, columns].T
        x, weight = x.index_fill(-1, columns, 0.0), weight.index_fill(-1, columns, 0.0)
        x, weight = rotate(x, case.rotated), rotate(weight, case.rotated)
        return exact + quantize(x, case.input_bits, case.group) @ quantize(weight, case.weight_bits, case.group).T

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        (d_y,), weight, case = gradients, context.weight, context.case
        if case.backward_bits is None:
            return d_y @ weight, None, None
        d_y, columns = rotate(d_y, case.backward_rotated), rotate(weight.T, case.backward_rotated)
        return quantize(d_y, case.backward_bits) @ quantize(columns, case.backward_bits).T, None, None


def gradient(model: Any, case: Case, ids: Any) -> tuple[Any, float]:
    """Return the gradient of all adapters, flat, and the loss."""
    RoundedLinear.case = case
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    trained = [parameter.grad.flatten() for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat(trained), float(loss.detach())


def rotate(x: Any, size: int) -> Any:
    """Multiply each `size` neighbouring columns by a Hadamard matrix, or as many as divide the width."""
    size = min(size, x.shape[-1] & -x.shape[-1])
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return x if size < 2 else (x.unflatten(-1, (-1, size)) @ (matrix / math.sqrt(size))).flatten(-2)


def quantize(x: Any, bits: int, group: int = 0) -> Any:
    """Round to integers of `bits` bits, with a scale for each row or for each `group` numbers of it."""
    parts = x.unflatten(-1, (-1, group or x.shape[-1]))
    scales = parts.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return ((parts / scales).round() * scales).flatten(-2)


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
