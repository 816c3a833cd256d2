"""transformers' Trainer with `bench.qlora.patch`, the plain Trainer, and the Trainer with Liger, on one GPU.

    python -m tests.benchmarks.trainer_patch --model DIR [--cases plain,patch,...] [--steps 12] [--json FILE]

Every case has the same NF4 base, LoRA on q, k, v, o of rank 16 without dropout, 8 x 512 random tokens, bf16, fused
AdamW and arguments of the Trainer, below LIMIT_BYTES, the usable memory of a 24 GB card. A step is timed from the
Trainer's `on_step_begin` to `on_step_end`, device synchronised. Liger patches transformers for its whole process, hence
a process for each case. The plain case runs before and after, which reveals a changing machine.
"""

import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

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

MODULE = "tests.benchmarks.trainer_patch"
ROWS, LENGTH = 8, 512


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train: `patch` holds the options of `bench.qlora.patch`, None without it."""

    patch: dict[str, Any] | None = None
    liger: bool = False
    checkpointing: bool = False


CASES = {
    "plain": Case(checkpointing=True),
    "plain-keep": Case(),
    "liger": Case(liger=True, checkpointing=True),
    "liger-keep": Case(liger=True),
    "patch": Case(patch={}),
    "patch-checkpointing": Case(patch={}, checkpointing=True),
    "patch-held": Case(patch={"held_layers": HELD_LAYERS}),
    "patch-int8": Case(patch={"held_layers": HELD_IN_EIGHT, "matmul": "int8"}),
    "plain-again": Case(checkpointing=True),
}


def main(argv: Sequence[str] = ()) -> list[Figure]:
    arguments = case_parser(MODULE, CASES).parse_args(argv)
    if not torch.cuda.is_available():
        return [Figure(name="Trainer with our patch", value="not run: no GPU")]
    if arguments.model is None:
        return [Figure(name="Trainer with our patch", value="not run: give it a model folder with --model")]
    results = run_cases(arguments, MODULE, lambda name: measure(CASES[name], arguments.model, arguments.steps))
    medians = {name: summarize(each["times"]).median for name, each in results.items() if "failed" not in each}
    best = min((median for name, median in medians.items() if CASES[name].patch is None), default=None)
    return [_figure(name, result, best) for name, result in results.items()]


def measure(case: Case, model: str, steps: int) -> dict[str, Any]:
    """Train by the Trainer; return step times in seconds, peak bytes and the last loss."""
    from bench import torch_stack
    from bench.qlora.patch import patch
    from bench.qlora.step import add_lora, choose_placement, load_base

    modules = torch_stack.load()
    placement = choose_placement(modules)
    limit_memory(torch)
    trial = a_trial("trainer", model, lora_dropout=0.0, lora_targets=ATTENTION_PROJECTIONS)
    base = load_base(modules, trial, placement)
    if case.liger:
        if importlib.util.find_spec("liger_kernel") is None:
            return {"failed": "`liger_kernel` is not installed"}
        liger = importlib.import_module("liger_kernel.transformers")
        getattr(liger, f"apply_liger_kernel_to_{base.config.model_type}")(model=base)
    peft_model = add_lora(modules, trial, base)
    if case.patch is not None:
        patch(peft_model, **case.patch)
    times: list[float] = []
    trainer = modules.transformers.Trainer(
        model=peft_model,
        args=_arguments(modules, case, WARMUP + steps, is_cuda=placement.is_cuda),
        train_dataset=_rows(base.config.vocab_size, (WARMUP + steps) * ROWS),
        data_collator=lambda rows: {name: torch.stack([row[name] for row in rows]) for name in rows[0]},
        callbacks=[_timer(modules, times)],
    )
    outcome = trainer.train()
    return {
        "times": times[WARMUP:],
        "peak_bytes": torch.cuda.max_memory_allocated() if placement.is_cuda else None,
        "loss": outcome.training_loss,
    }


def _arguments(modules: Any, case: Case, steps: int, *, is_cuda: bool) -> Any:
    return modules.transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=ROWS,
        max_steps=steps,
        learning_rate=2e-4,
        optim="adamw_torch_fused" if is_cuda else "adamw_torch",
        bf16=is_cuda,
        use_cpu=not is_cuda,
        gradient_checkpointing=case.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _rows(vocabulary: int, count: int) -> list[dict[str, Any]]:
    """Make rows of random tokens: speed depends only on shapes."""
    ids = torch.randint(1, vocabulary, (count, LENGTH), generator=torch.Generator().manual_seed(7))
    return [{"input_ids": row, "labels": row} for row in ids]


def _timer(modules: Any, times: list[float]) -> Any:
    """Return a callback that appends each step's seconds, and counts memory from the second step on."""
    cuda = torch.cuda if torch.cuda.is_available() else None

    class Timer(modules.transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_args: Any, **_options: Any) -> None:
            if cuda is not None:
                cuda.synchronize()
                if len(times) == 1:
                    cuda.reset_peak_memory_stats()  # loading's own peak is not the training's
            self.began = time.perf_counter()

        def on_step_end(self, *_args: Any, **_options: Any) -> None:
            if cuda is not None:
                cuda.synchronize()
            times.append(time.perf_counter() - self.began)

    return Timer()


def _figure(name: str, result: dict[str, Any], best: float | None) -> Figure:
    ratio = "-"
    if best is not None and CASES[name].patch is not None and "failed" not in result:
        ratio = f"{best / summarize(result['times']).median:.2f}x the best other"
    return Figure(name=f"Trainer, {name}", value=format_result(result, ROWS * LENGTH), ratio=ratio)


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
