"""`fast` against Unsloth on one GPU: same model, adapters, tokens and clock, each case in its own process.

    python -m tests.benchmarks.peers --model DIR [--cases fast,unsloth-keep,...] [--steps 12] [--json FILE]

Unsloth as its own page says to use it: FastLanguageModel, NF4, LoRA on q, k, v, o of rank 16, bf16 autocast as its
trainer has it, its fused loss, no attention mask, and its ways with activations. Its figure is the best of them that
fits. Its page advises against dropout, which is 5 % in the published configuration and in every other figure here; so
each side is measured with and without.

Cases within LIMIT_BYTES, the usable memory of a 24 GB card. Tokens are random: speed depends only on shapes. Packed
cases have samples of 194 tokens on average in one row; both sides get the same ones. Without a GPU, on a small model,
this is a rehearsal.

Unsloth patches transformers for a whole process. This project does not depend on it: if it is not installed, its cases
say so.
"""

import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from bench.data.collate import Unpacked
from bench.data.model_folder import read_config
from bench.data.packing import Row
from bench.records.bootstrap import summarize
from bench.records.validation import ATTENTION_PROJECTIONS
from tests.benchmarks import Figure, a_trial, print_figures
from tests.benchmarks._gpu import (
    HELD_IN_EIGHT,
    HELD_LAYERS,
    WARMUP,
    case_parser,
    format_result,
    limit_memory,
    run_cases,
)
from tests.benchmarks.fast_step import lengths

MODULE = "tests.benchmarks.peers"
MEAN_TOKENS, LONGEST = 194, 512  # mean and longest sample of the packed cases
PACKAGES = ("unsloth", "unsloth_zoo", "torch", "transformers", "peft", "trl", "triton", "bitsandbytes", "xformers")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration of one side. `checkpointing` is Unsloth's use_gradient_checkpointing."""

    unsloth: bool = False
    checkpointing: bool | str = False
    held_layers: int = 0
    matmul: str = "bf16"
    optimizer: str = "adamw_torch"
    packed: bool = False
    micro_batch_size: int = 8
    max_seq_len: int = 512
    dropout: float = 0.05
    limited: bool = True
    goal: str = "-"

    @property
    def tokens(self) -> int:
        return self.micro_batch_size * self.max_seq_len


FAST, HELD = Case(), Case(held_layers=HELD_LAYERS, goal=">= 1.15x")
INT8 = Case(held_layers=HELD_IN_EIGHT, matmul="int8", goal=">= 1.7x")
KEEP, OFFLOAD = Case(unsloth=True), Case(unsloth=True, checkpointing="unsloth")
FREE: dict[str, Any] = {"dropout": 0.0}
EIGHT: dict[str, Any] = {**FREE, "optimizer": "paged_adamw_8bit"}
PACKED: dict[str, Any] = {**FREE, "packed": True, "micro_batch_size": 1, "max_seq_len": 4096}
CASES = {
    "fast-held": HELD,
    "unsloth-keep": replace(KEEP, **FREE),
    "unsloth-offload": replace(OFFLOAD, **FREE),
    "fast-held-no-dropout": replace(HELD, **FREE),
    "fast-int8-no-dropout": replace(INT8, **FREE),
    "unsloth-keep-dropout": KEEP,
    "unsloth-offload-dropout": OFFLOAD,
    "fast": FAST,
    "unsloth-8bit": replace(KEEP, **EIGHT),
    "fast-8bit": replace(HELD, **EIGHT, goal=">= 1.08x"),
    "fast-int8-8bit": replace(INT8, **EIGHT, goal=">= 1.75x"),
    "unsloth-packed": replace(KEEP, limited=False, **PACKED),  # more than 21.5 GiB
    "unsloth-packed-offload": replace(OFFLOAD, **PACKED),
    "fast-packed": replace(HELD, **PACKED, goal="-"),
    "fast-int8-packed": replace(INT8, **PACKED, held_layers=17, goal=">= 2.2x"),
}


def main(argv: Sequence[str] = ()) -> list[Figure]:
    arguments = case_parser(MODULE, list(CASES)[:8], all_cases=list(CASES)).parse_args(argv)
    if arguments.model is None:
        return [Figure(name="against Unsloth", value="not run: give it a model folder with --model")]
    results = run_cases(arguments, MODULE, lambda name: _measure(CASES[name], arguments.model, arguments.steps))
    rates = {
        name: CASES[name].tokens / summarize(result["times"]).median
        for name, result in results.items()
        if "failed" not in result
    }
    return [
        Figure(
            name=name,
            value=format_result(result, CASES[name].tokens),
            ratio=", ".join(_ratios(name, rates)) or "-",
            goal=CASES[name].goal,
        )
        for name, result in results.items()
    ]


def _ratios(name: str, rates: dict[str, float]) -> list[str]:
    """Return the ratios of our case to the best of Unsloth's, and to the best that is alike."""
    ours = CASES[name]
    if ours.unsloth or name not in rates:
        return []
    theirs = [other for other in rates if CASES[other].unsloth]
    kind = ours.dropout, ours.optimizer, ours.packed
    alike = [each for each in theirs if (CASES[each].dropout, CASES[each].optimizer, CASES[each].packed) == kind]
    best = {max(some, key=rates.__getitem__): None for some in (theirs, alike) if some}
    return [f"{rates[name] / rates[other]:.2f}x {other}" for other in best]


def _measure(case: Case, model: str, steps: int) -> dict[str, Any]:
    """Measure step times in seconds and peak bytes."""
    if case.unsloth and importlib.util.find_spec("unsloth") is None:
        return {"failed": "unsloth is not installed here"}
    train, torch, about = (_unsloth if case.unsloth else _fast)(case, model)
    on_gpu = torch.cuda.is_available()
    times = []
    try:
        for number, inputs in enumerate(_inputs(torch, case, read_config(Path(model))["vocab_size"], WARMUP + steps)):
            if on_gpu:
                torch.cuda.synchronize()
                if number == 1:
                    torch.cuda.reset_peak_memory_stats()  # loading's own peak is not the training's
            start = time.perf_counter()
            loss = train(inputs)
            if on_gpu:
                torch.cuda.synchronize()
            if number >= WARMUP:
                times.append(time.perf_counter() - start)
    except torch.OutOfMemoryError as error:
        return {"failed": f"out of memory: {str(error)[:200]}"}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "loss": float(loss),
        "about": about,
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES if importlib.util.find_spec(name)},
        "times": times,
    }


def _inputs(torch: Any, case: Case, vocabulary: int, count: int) -> Iterator[dict[str, Any]]:
    """Draw the batches: input_ids and labels of [rows, tokens]; with `packed`, edges and positions of one row, too."""
    generator = torch.Generator().manual_seed(7)
    drawn = chain.from_iterable(lengths(200, LONGEST, MEAN_TOKENS) for _ in range(count))
    for _ in range(count):
        ids = torch.randint(1, vocabulary, (case.micro_batch_size, case.max_seq_len), generator=generator)
        inputs = {"input_ids": ids, "labels": ids}
        if case.packed:
            samples = tuple(drawn_to(case.max_seq_len, drawn))
            row = Row(ids=ids[0].tolist(), lengths=samples)
            inputs, _ = Unpacked(LONGEST, case.max_seq_len, 0)([row])
        yield {name: each.pin_memory() if torch.cuda.is_available() else each for name, each in inputs.items()}


def drawn_to(total: int, drawn: Iterator[int]) -> Iterator[int]:
    """Yield lengths until their sum is `total`; the last one is cut."""
    while total > 0:
        yield (length := min(next(drawn), total))
        total -= length


def _fast(case: Case, model: str) -> tuple[Callable[[Any], Any], Any, str]:
    from bench import torch_stack
    from bench.data.collate import Batch
    from bench.qlora import recipes
    from bench.qlora.step import choose_placement

    modules = torch_stack.load()
    limit_memory(modules.torch, limited=case.limited)
    trial = a_trial(
        "peer",
        model,
        recipe="fast",
        layout="varlen" if case.packed else "pad",
        max_seq_len=LONGEST if case.packed else case.max_seq_len,
        micro_batch_size=case.tokens // LONGEST if case.packed else case.micro_batch_size,
        gradient_checkpointing=False,
        held_layers=case.held_layers,
        matmul=case.matmul,
        lora_dropout=case.dropout,
        optimizer=case.optimizer,
        warmup_steps=0,
        measured_steps=1,
    )
    step = recipes.load(modules, trial, choose_placement(modules))

    def train(inputs: dict[str, Any]) -> Any:
        return step(iter([Batch(**inputs, samples=1, tokens=case.tokens, useful_tokens=case.tokens)]), 1)

    return train, modules.torch, f"recipe {step.recipe}; {', '.join(step.notes)}"


def _unsloth(case: Case, model: str) -> tuple[Callable[[Any], Any], Any, str]:
    from unsloth import FastLanguageModel  # isort: skip - it patches later imports
    import torch

    limit_memory(torch, limited=case.limited)
    loaded, _ = FastLanguageModel.from_pretrained(
        model_name=model,
        max_seq_length=case.max_seq_len,
        dtype=torch.bfloat16,
        use_gradient_checkpointing=case.checkpointing,
        local_files_only=True,
        load_in_4bit=True,
    )
    adapted = FastLanguageModel.get_peft_model(
        loaded,
        r=16,
        lora_alpha=32,
        lora_dropout=case.dropout,
        target_modules=list(ATTENTION_PROJECTIONS),
        use_gradient_checkpointing=case.checkpointing,
    )
    FastLanguageModel.for_training(adapted, use_gradient_checkpointing=case.checkpointing)
    trained = [each for each in adapted.parameters() if each.requires_grad]
    device = trained[0].device
    if case.optimizer == "adamw_torch":
        optimizer: Any = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0, fused=device.type == "cuda")
    else:
        import bitsandbytes

        optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=2e-4, weight_decay=0.0)

    def train(inputs: dict[str, Any]) -> Any:
        arguments = {name: each.to(device, non_blocking=True) for name, each in inputs.items() if name != "edges"}
        if "edges" in inputs:
            arguments["packed_seq_lengths"] = inputs["edges"].diff()
        with torch.autocast(device.type, torch.bfloat16):
            loss = adapted(**arguments).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    count = sum(each.numel() for each in trained)
    return train, torch, f"use_gradient_checkpointing={case.checkpointing!r}; training {count:,} in {trained[0].dtype}"


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
