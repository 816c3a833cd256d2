"""`fast` against other programs on one GPU: same model, adapters, tokens and clock, each case in its own process.

    python -m tests.benchmarks.peers --model DIR [--cases fast,unsloth-keep,...] [--steps 12] [--json FILE]

Unsloth as its own page says to use it: FastLanguageModel, NF4 or FP8, LoRA on q, k, v, o of rank 16, bf16 autocast as
its trainer has it, its fused loss, no attention mask, and each of its three ways with activations. Its figure is the
best of them that fits.

NVIDIA's AutoModel as its published benchmark of Llama-3.1-8B has it: two sequences of 4,096 tokens, LoRA of rank 16 on
all linear layers with 10 % of dropout, a frozen base in bf16, nothing recomputed, on one H100 (`--shape llama-3.1-8b`).
Ours has NF4 behind it, and with every layer held the same 16-bit products.

LoRA's dropout is 5 % in the published configuration and in every other figure here, and Unsloth's own page advises
against any. So each side is measured with and without: each at its best, which the goal is about, and both with the
same dropout.

Cases within LIMIT_BYTES, the usable memory of a 24 GB card, except AutoModel's. Tokens are random: speed depends only
on shapes. Packed cases have samples of 194 tokens on average in one row; both sides get the same ones. The fast recipe
runs before and after, which reveals a changing machine.

Both peers patch transformers for a whole process, hence one each. They are no dependencies of this project: what is not
installed is not measured, and the benchmark says so. Without a GPU, on a small model, this is a rehearsal.
"""

import importlib.metadata
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bench.data.collate import Unpacked
from bench.data.model_folder import read_config
from bench.data.packing import Row
from bench.records.bootstrap import summarize
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
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
WIDE_LAYERS = 32  # Llama-3.1-8B
# What both published: https://github.com/NVIDIA-NeMo/Automodel, docs/performance-summary.md, read 2026-11-26.
PUBLISHED = {"automodel": 12_472.87}  # tokens per second, one H100, accumulation of 16
IN_EIGHT = {"held_layers": HELD_IN_EIGHT, "matmul": "int8"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration of one side. `checkpointing` is Unsloth's use_gradient_checkpointing.

    `peer`: whose code runs; ours has none. `group`: the peer that ours is compared with.
    """

    name: str
    group: str = "unsloth"
    peer: str = ""
    checkpointing: bool | str = False
    held_layers: int = 0
    matmul: str = "bf16"
    optimizer: str = "adamw_torch"
    base: str = "nf4"
    packed: bool = False
    lora_targets: tuple[str, ...] = ATTENTION_PROJECTIONS
    micro_batch_size: int = 8
    max_seq_len: int = 512
    dropout: float = 0.05
    limited: bool = True
    force_hf: bool = True
    goal: str = "-"

    @property
    def tokens(self) -> int:
        return self.micro_batch_size * self.max_seq_len


def _cases() -> tuple[Case, ...]:
    free: dict[str, Any] = {"dropout": 0.0}
    unsloth: dict[str, Any] = {"peer": "unsloth"}
    eight: dict[str, Any] = {**free, "optimizer": "paged_adamw_8bit"}
    packed: dict[str, Any] = {**free, "packed": True, "micro_batch_size": 1, "max_seq_len": 4096}
    held: dict[str, Any] = {"held_layers": HELD_LAYERS}
    wide: dict[str, Any] = {
        "group": "automodel", "lora_targets": ALL_LINEAR, "micro_batch_size": 2, "max_seq_len": 4096, "dropout": 0.1,
        "limited": False,
    }  # fmt: skip
    ours: dict[str, Any] = {"held_layers": WIDE_LAYERS}
    return (
        Case(name="fast-held", goal=">= 1.15x", **held),
        Case(name="unsloth-keep", **unsloth, **free),
        Case(name="unsloth-offload", checkpointing="unsloth", **unsloth, **free),
        Case(name="unsloth-again", checkpointing=True, **unsloth, **free),
        Case(name="unsloth-keep-4", micro_batch_size=4, **unsloth, **free),
        Case(name="unsloth-offload-16", checkpointing="unsloth", micro_batch_size=16, **unsloth, **free),
        Case(name="fast-held-no-dropout", goal=">= 1.15x", **held, **free),
        Case(name="fast-int8-no-dropout", goal=">= 1.7x", **IN_EIGHT, **free),
        Case(name="unsloth-keep-dropout", **unsloth),
        Case(name="unsloth-offload-dropout", checkpointing="unsloth", **unsloth),
        Case(name="fast"),
        Case(name="unsloth-8bit", **unsloth, **eight),
        Case(name="fast-8bit", goal=">= 1.08x", **held, **eight),
        Case(name="fast-int8-8bit", goal=">= 1.75x", **IN_EIGHT, **eight),
        Case(name="unsloth-packed", limited=False, **unsloth, **packed),  # more than 21.5 GiB
        Case(name="unsloth-packed-offload", checkpointing="unsloth", **unsloth, **packed),
        Case(name="fast-packed", **held, **packed),
        Case(name="fast-int8-packed", goal=">= 2.2x", **{**IN_EIGHT, "held_layers": 17}, **packed),
        Case(name="unsloth-fp8", base="fp8", limited=False, **unsloth, **free),
        Case(name="automodel-hf", peer="automodel", **wide),
        Case(name="automodel-own", peer="automodel", force_hf=False, **wide),
        Case(name="fast-wide", goal=">= 1.3x of the published", **ours, **wide),
        Case(name="fast-wide-int8", goal=">= 2.2x of the published", matmul="int8", **ours, **wide),
        Case(name="fast-wide-int8-no-dropout", matmul="int8", **ours, **{**wide, **free}),
    )


CASES = _cases()
DEFAULT_CASES = [case.name for case in CASES if case.group == "unsloth"][:11]


def main(argv: Sequence[str] = ()) -> list[Figure]:
    arguments = case_parser(MODULE, DEFAULT_CASES, all_cases=[case.name for case in CASES]).parse_args(argv)
    if arguments.model is None:
        return [Figure(name="against other programs", value="not run: give it a model folder with --model")]
    results = run_cases(arguments, MODULE, lambda name: _measure(_case(name), arguments.model, arguments.steps))
    rates = {
        name: _case(name).tokens / summarize(result["times"]).median
        for name, result in results.items()
        if "failed" not in result
    }
    return [_figure(name, result, rates) for name, result in results.items()]


def _measure(case: Case, model: str, steps: int) -> dict[str, Any]:
    """Measure step times in seconds, tokens a step and peak bytes."""
    if case.peer and importlib.util.find_spec(PEERS[case.peer].package) is None:
        return {"failed": f"{PEERS[case.peer].package} is not installed here"}
    train, torch, about = (PEERS[case.peer].load if case.peer else _fast)(case, model)
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
        "versions": _versions(),
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
            row = Row(ids=ids[0].tolist(), samples=len(samples), lengths=samples)
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
    from bench.qlora.step import choose_placement, load_base

    modules = torch_stack.load()
    placement = choose_placement(modules)
    limit_memory(modules.torch, limited=case.limited)
    trial = a_trial(
        case.name,
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
        lora_targets=case.lora_targets,
        warmup_steps=0,
        measured_steps=1,
    )
    step = recipes.build("fast", modules, trial, placement, load_base(modules, trial, placement))

    def train(inputs: dict[str, Any]) -> Any:
        return step(iter([Batch(**inputs, samples=1, tokens=case.tokens, useful_tokens=case.tokens)]), 1)

    return train, modules.torch, f"recipe {step.recipe}; {', '.join(step.notes)}"


def _unsloth(case: Case, model: str) -> tuple[Callable[[Any], Any], Any, str]:
    from unsloth import FastLanguageModel  # isort: skip - it patches later imports
    import torch

    limit_memory(torch, limited=case.limited)
    precision = {"load_in_4bit": case.base == "nf4"} | ({"load_in_fp8": True} if case.base == "fp8" else {})
    loaded, _ = FastLanguageModel.from_pretrained(
        model_name=model,
        max_seq_length=case.max_seq_len,
        dtype=torch.bfloat16,
        use_gradient_checkpointing=case.checkpointing,
        local_files_only=True,
        **precision,
    )
    adapted = FastLanguageModel.get_peft_model(
        loaded,
        r=16,
        lora_alpha=32,
        lora_dropout=case.dropout,
        target_modules=list(case.lora_targets),
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
        return _optimize(torch, optimizer, trained, loss)

    count = sum(each.numel() for each in trained)
    return train, torch, f"use_gradient_checkpointing={case.checkpointing!r}; training {count:,} in {trained[0].dtype}"


def _automodel(case: Case, model: str) -> tuple[Callable[[Any], Any], Any, str]:
    import torch
    from nemo_automodel import NeMoAutoModelForCausalLM
    from nemo_automodel.components._peft.lora import PeftConfig
    from nemo_automodel.components.loss.masked_ce import MaskedCrossEntropy

    adapters = PeftConfig(match_all_linear=True, dim=16, alpha=32, dropout=case.dropout, use_triton=True)
    adapted = NeMoAutoModelForCausalLM.from_pretrained(
        model, torch_dtype=torch.bfloat16, peft_config=adapters, force_hf=case.force_hf
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    adapted.to(device).train()
    trained = [each for each in adapted.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.01, fused=device.type == "cuda")
    entropy = MaskedCrossEntropy()

    def train(inputs: dict[str, Any]) -> Any:
        ids = inputs["input_ids"].to(device, non_blocking=True)
        logits = adapted(input_ids=ids).logits
        labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
        loss = entropy(logits, labels, num_label_tokens=ids[:, 1:].numel())
        loss.backward()
        return _optimize(torch, optimizer, trained, loss)

    count = sum(each.numel() for each in trained)
    kind = f"{type(adapted).__module__}.{type(adapted).__name__}"
    return train, torch, f"{kind}, {getattr(adapted.config, '_attn_implementation', '')}; training {count:,}"


def _optimize(torch: Any, optimizer: Any, trained: Sequence[Any], loss: Any) -> Any:
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another program: its package, and what builds its step."""

    package: str
    load: Callable[[Case, str], tuple[Callable[[Any], Any], Any, str]]


PEERS = {
    "unsloth": Peer(package="unsloth", load=_unsloth),
    "automodel": Peer(package="nemo_automodel", load=_automodel),
}


def _versions() -> dict[str, str]:
    names = (
        *("unsloth", "unsloth_zoo", "nemo_automodel", "torch", "transformers", "peft", "trl", "triton"),
        *("bitsandbytes", "xformers", "liger_kernel"),
    )
    return {name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name) is not None}


def _figure(name: str, result: dict[str, Any], rates: dict[str, float]) -> Figure:
    case = _case(name)
    return Figure(
        name=name,
        value=format_result(result, case.tokens),
        ratio=", ".join(_ratios(name, rates)) or "-",
        goal=case.goal,
    )


def _ratios(name: str, rates: dict[str, float]) -> list[str]:
    """Return the ratios of our case to the best of theirs, to the best that is alike, and to what was published."""
    ours = _case(name)
    if ours.peer or name not in rates:
        return []
    theirs = [case for other in rates if (case := _case(other)).peer and case.group == ours.group]
    alike = [
        other
        for other in theirs
        if (other.dropout, other.optimizer, other.packed) == (ours.dropout, ours.optimizer, ours.packed)
    ]
    best = {max(some, key=lambda case: rates[case.name]).name: None for some in (theirs, alike) if some}
    ratios = [f"{rates[name] / rates[other]:.2f}x {other}" for other in best]
    if published := PUBLISHED.get(ours.group):
        ratios.append(f"{rates[name] / published:.2f}x the published {published:,.0f}")
    return ratios


def _case(name: str) -> Case:
    (case,) = (case for case in CASES if case.name == name)
    return case


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
