"""Rows, losses, merged models and memory of every type that transformers registers: the table of docs/training.md.

    python -m tests.benchmarks.every_type            # rows, losses and merged models of tiny models; three minutes
    python -m tests.benchmarks.every_type --peaks    # peaks at published sizes with few layers, predicted and measured

Losses are equal if each sample's in its micro-batch is the single one to 1e-4; a merged model is equal if what is in
NF4 is the same before the training, in it and after the merge. Sizes are the defaults of transformers' configs. A step
of a training has 512 x 8 tokens and recomputes its layers; without a GPU nothing is measured.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.architectures import find
from bench.data import trial_inputs
from bench.data.collate import Batch
from bench.predict import memory
from bench.qlora import recipes
from bench.qlora.step import TrainingStep, choose_placement, sized_config
from bench.records.units import format_gib
from tests.benchmarks import a_trial
from tests.support import tiny_models
from tests.unit.bench.adapter.test_every_type import merge_fault
from tests.unit.bench.architectures.test_packing import error

TOLERANCE = 1e-4
SEQUENCE, ROWS, STEPS = 512, 8, 3
# By type, the number of layers: as many as show each kind of them and can be written in seconds.
LAYERS = {
    "qwen3_moe": 6, "qwen2_moe": 2, "glm4_moe": 3, "gpt_oss": 2, "llama4_text": 2, "olmo2": 8, "gpt_neox": 4,
    "cohere": 2, "phi": 4, "falcon_h1": 4,
}  # fmt: skip
# GLM-4.5's; the config's default makes heads of 42, for which PyTorch has only attention with all scores in memory.
SIZES = {"glm4_moe": {"head_dim": 128}}


def main(argv: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.every_type")
    parser.add_argument("--peaks", action="store_true", help="predict and measure memory")
    parser.add_argument("types", nargs="*", help="only these")
    arguments = parser.parse_args(argv)
    modules = torch_stack.load()
    if arguments.peaks and len(arguments.types) == 1:
        print(peak_row(modules, *arguments.types))
        return
    if arguments.peaks:  # a process for each: what is compiled for a model keeps it in memory
        print("| type | layers | recipe | predicted | measured |\n|---|---|---|---|---|", flush=True)
        for model_type in arguments.types or LAYERS:
            subprocess.run((sys.executable, "-m", "tests.benchmarks.every_type", "--peaks", model_type), check=False)
        return
    groups: dict[tuple[str, str, str], list[str]] = {}
    for model_type in arguments.types or tiny_models.types(modules):
        try:
            groups.setdefault(verdicts(modules, model_type), []).append(model_type)
        except tiny_models.NoTinyModel as reason:
            print(f"without a tiny model: {reason}", file=sys.stderr)
    print("| rows | losses equal | merged equal | number | types |\n|---|---|---|---|---|")
    for group, types in sorted(groups.items()):
        print(f"| {' | '.join(group)} | {len(types)} | {', '.join(types)} |")


def verdicts(modules: torch_stack.Stack, model_type: str) -> tuple[str, str, str]:
    """Return how rows are made, and whether losses and merged model are equal. Raises NoTinyModel."""
    config = tiny_models.tiny_model(modules, model_type).config.to_dict()
    separation = find(config).separation(config)
    rows = "packed" if separation.is_packed else "one sample each"
    rows = "equal lengths" if separation.padded < SEQUENCE else rows
    with tempfile.TemporaryDirectory() as folder:
        fault = merge_fault(modules, model_type, Path(folder))
    loss_error = error(modules, model_type)
    return rows, "yes" if loss_error < TOLERANCE else f"off by {loss_error:.0e}", fault or "yes"


def peak_row(modules: torch_stack.Stack, model_type: str) -> str:
    """Predict and measure the peak of a training step at published sizes, with few layers."""
    placement, torch = choose_placement(modules), modules.torch
    sizes = {"num_hidden_layers": (layers := LAYERS.get(model_type, 2)), **SIZES.get(model_type, {})}
    with tempfile.TemporaryDirectory() as folder:
        trial = a_trial(
            "peak", folder, is_cuda=placement.is_cuda, recipe="fast", max_seq_len=SEQUENCE, micro_batch_size=ROWS,
            optimizer="adamw_torch", gradient_checkpointing=True, layout="varlen",
        )  # fmt: skip
        config = modules.transformers.AutoConfig.for_model(model_type, **sizes)
        if not placement.is_cuda:
            tiny_models.write_shapes(modules, Path(folder), model_type, **sizes)
        else:
            with placement.device:
                model = modules.transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            model.save_pretrained(folder)
            del model
        known = sized_config(trial)
        built = trial if trial_inputs.unsupported_reason(known, trial, None) is None else trial_inputs.as_stock(trial)
        row = f"| {model_type} | {layers} | {built.recipe} | {format_gib(peak := memory.peak_bytes(known, built), 2)} |"
        if not placement.is_cuda:
            return f"{row} - |"
        measured = measure_peak(modules, recipes.load(modules, trial, placement), a_batch(torch, known))
    return f"{row} {format_gib(measured, 2)}, {peak / measured - 1:+.0%} |"


def a_batch(torch: Any, config: dict[str, Any]) -> Batch:
    """Make a batch of random ids as a training has it: samples end to end in one row, or one in each."""
    ids = torch.randint(4, find(config).geometry(config).vocabulary, (ROWS, SEQUENCE))
    sizes: dict[str, Any] = {"samples": ROWS, "tokens": ids.numel(), "useful_tokens": ids.numel()}
    if not find(config).is_packed:
        return Batch(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), **sizes)
    row = ids.view(1, -1)
    edges = torch.arange(0, ids.numel() + 1, SEQUENCE, dtype=torch.int32)
    return Batch(input_ids=row, labels=row, position_ids=torch.arange(SEQUENCE).repeat(1, ROWS), edges=edges, **sizes)


def measure_peak(modules: torch_stack.Stack, step: TrainingStep, batch: Batch) -> int:
    """Measure the allocator's peak over some steps. What compiled code of earlier models holds would count."""
    modules.torch.cuda.empty_cache()
    modules.torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step.run_timed(iter([batch]), 1)
    return int(modules.torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main(sys.argv[1:])
