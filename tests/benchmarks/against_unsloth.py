"""`fast` against Unsloth on one GPU: same model, adapters, batch, optimizer and clock, each case in its own process.

    python -m tests.benchmarks.against_unsloth --model DIR [--cases fast,unsloth-keep,...] [--steps 12] [--json FILE]

Unsloth as its own page says to use it: FastLanguageModel, NF4, LoRA on q, k, v, o of rank 16, bf16 autocast as its
trainer has it, its fused loss, no attention mask, and each of its three ways with activations. Its figure is the best
of them that fits.

LoRA's dropout is 5 % in the published configuration and in every other figure here, and Unsloth's own page advises
against any. So each side is measured with and without: each at its best, which the goal is about, and both with the
same dropout.

All cases run below LIMIT_BYTES, the usable memory of a 24 GB card. Tokens are random: speed depends only on shapes. The
fast recipe runs before and after, which reveals a changing machine.

Unsloth patches transformers for its whole process, hence one each. It is not a dependency of this project: if it is not
installed, the benchmark says so and measures nothing. Without a GPU, on a small model, this is a rehearsal.
"""

import importlib.metadata
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

GOAL, GOAL_IN_EIGHT = ">= 1.15x", ">= 1.7x"
MODULE = "tests.benchmarks.against_unsloth"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration of one side. `checkpointing` is Unsloth's use_gradient_checkpointing."""

    name: str
    checkpointing: bool | str = False
    held_layers: int = 0
    matmul: str = "bf16"
    micro_batch_size: int = 8
    max_seq_len: int = 512
    dropout: float = 0.05

    @property
    def is_unsloth(self) -> bool:
        return self.name.startswith("unsloth")


CASES = (
    Case(name="fast-held", held_layers=HELD_LAYERS),
    Case(name="unsloth-keep", dropout=0.0),
    Case(name="unsloth-offload", checkpointing="unsloth", dropout=0.0),
    Case(name="unsloth-again", checkpointing=True, dropout=0.0),
    Case(name="unsloth-keep-4", micro_batch_size=4, dropout=0.0),
    Case(name="unsloth-offload-16", checkpointing="unsloth", micro_batch_size=16, dropout=0.0),
    Case(name="fast-held-no-dropout", held_layers=HELD_LAYERS, dropout=0.0),
    Case(name="fast-int8-no-dropout", held_layers=HELD_IN_EIGHT["int8"], matmul="int8", dropout=0.0),
    Case(name="unsloth-keep-dropout"),
    Case(name="unsloth-offload-dropout", checkpointing="unsloth"),
    Case(name="fast"),
)


def main(argv: Sequence[str] = ()) -> list[Figure]:
    arguments = case_parser(MODULE, (case.name for case in CASES)).parse_args(argv)
    if importlib.util.find_spec("unsloth") is None:
        return [Figure(name="against Unsloth", value="not run: `unsloth` is not installed here", goal=GOAL)]
    if arguments.model is None:
        return [Figure(name="against Unsloth", value="not run: give it a model folder with --model", goal=GOAL)]
    results = run_cases(arguments, MODULE, lambda name: _measure(_case(name), arguments.model, arguments.steps))
    rates = {
        name: _tokens_per_step(name) / summarize(result["times"]).median
        for name, result in results.items()
        if "failed" not in result
    }
    return [_figure(name, result, rates) for name, result in results.items()]


def _tokens_per_step(name: str) -> int:
    return _case(name).micro_batch_size * _case(name).max_seq_len


def _measure(case: Case, model: str, steps: int) -> dict[str, Any]:
    """Measure step times in seconds, tokens a step and peak bytes."""
    train, torch, about = (_unsloth if case.is_unsloth else _fast)(case, model)
    on_gpu = torch.cuda.is_available()
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    times = []
    try:
        for number, ids in enumerate(_tokens(torch, case, config["vocab_size"], WARMUP + steps)):
            if on_gpu:
                torch.cuda.synchronize()
                if number == 1:
                    torch.cuda.reset_peak_memory_stats()  # loading's own peak is not the training's
            start = time.perf_counter()
            loss = train(ids)
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
        "versions": _versions(),
        "times": times,
    }


def _tokens(torch: Any, case: Case, vocabulary: int, count: int) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        ids = torch.randint(1, vocabulary, (case.micro_batch_size, case.max_seq_len), generator=generator)
        yield ids.pin_memory() if torch.cuda.is_available() else ids


def _fast(case: Case, model: str) -> tuple[Callable[[Any], Any], Any, str]:
    from bench import torch_stack
    from bench.data.collate import Batch
    from bench.qlora import recipes
    from bench.qlora.step import choose_placement, load_base

    modules = torch_stack.load()
    placement = choose_placement(modules)
    limit_memory(modules.torch)
    trial = a_trial(
        case.name,
        model,
        recipe="fast",
        max_seq_len=case.max_seq_len,
        micro_batch_size=case.micro_batch_size,
        gradient_checkpointing=False,
        held_layers=case.held_layers,
        matmul=case.matmul,
        lora_dropout=case.dropout,
        optimizer="adamw_torch",
        lora_targets=ATTENTION_PROJECTIONS,
        warmup_steps=0,
        measured_steps=1,
    )
    step = recipes.build("fast", modules, trial, placement, load_base(modules, trial, placement))

    def train(ids: Any) -> Any:
        tokens = ids.numel()
        return step(iter([Batch(input_ids=ids, labels=ids, samples=1, tokens=tokens, useful_tokens=tokens)]), 1)

    return train, modules.torch, f"recipe {step.recipe}; {', '.join(step.notes)}"


def _unsloth(case: Case, model: str) -> tuple[Callable[[Any], Any], Any, str]:
    from unsloth import FastLanguageModel  # isort: skip - it patches later imports
    import torch

    limit_memory(torch)
    loaded, _ = FastLanguageModel.from_pretrained(
        model_name=model,
        max_seq_length=case.max_seq_len,
        dtype=torch.bfloat16,
        load_in_4bit=True,
        use_gradient_checkpointing=case.checkpointing,
        local_files_only=True,
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
    optimizer = torch.optim.AdamW(trained, lr=2e-4, weight_decay=0.0, fused=device.type == "cuda")

    def train(ids: Any) -> Any:
        ids = ids.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = adapted(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    count = sum(each.numel() for each in trained)
    return train, torch, f"use_gradient_checkpointing={case.checkpointing!r}; training {count:,} in {trained[0].dtype}"


def _versions() -> dict[str, str]:
    names = ("unsloth", "unsloth_zoo", "torch", "transformers", "peft", "trl", "triton", "bitsandbytes", "xformers")
    return {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name) is not None}


def _figure(name: str, result: dict[str, Any], rates: dict[str, float]) -> Figure:
    goal = "-" if _case(name).is_unsloth else GOAL if _case(name).matmul == "bf16" else GOAL_IN_EIGHT
    return Figure(
        name=name,
        value=format_result(result, _tokens_per_step(name)),
        ratio=", ".join(_ratios(name, rates)) or "-",
        goal=goal,
    )


def _ratios(name: str, rates: dict[str, float]) -> list[str]:
    """Return the ratios of our case to the best of theirs, and to the best of theirs with equal dropout."""
    ours = _case(name)
    if ours.is_unsloth or name not in rates:
        return []
    theirs = [_case(other) for other in rates if _case(other).is_unsloth]
    alike = [other for other in theirs if other.dropout == ours.dropout]
    best = {max(some, key=lambda case: rates[case.name]).name: None for some in (theirs, alike) if some}
    return [f"{rates[name] / rates[other]:.2f}x {other}" for other in best]


def _case(name: str) -> Case:
    (case,) = (case for case in CASES if case.name == name)
    return case


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
