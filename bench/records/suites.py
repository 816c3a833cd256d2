"""Suites: named lists of trials, at the scale of a profile."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench.records.trial import ALL_LINEAR, Trial
from bench.records.validation import expect_one_of


@dataclass(frozen=True, kw_only=True)
class SuiteScale:
    """Size of a suite's trials. Every result names its profile, so that sizes cannot be confused."""

    profile: str
    note: str
    seq_divisor: int
    warmup_steps: int
    measured_steps: int
    learning_rate: float
    deadline_sec: float


SCALES: dict[str, SuiteScale] = {
    "gpu": SuiteScale(
        profile="gpu",
        note="the published sizes, for one GPU",
        seq_divisor=1,
        warmup_steps=5,
        measured_steps=30,
        learning_rate=2e-4,
        deadline_sec=1800.0,
    ),
    # With an eighth of each length both quick trials have 512 tokens a step; their originals both have 4096.
    "tiny": SuiteScale(
        profile="tiny",
        note="scaled down for a machine without a GPU: an eighth of each sequence length, few steps; "
        "these numbers say nothing about an A10",
        seq_divisor=8,
        warmup_steps=3,
        measured_steps=15,
        learning_rate=4e-3,  # the small random model learns visibly within 18 steps at this rate
        deadline_sec=300.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class TrialFactory:
    """Factory for the trials of a suite: the published sizes at a scale, and the fields that a trial changes."""

    suite: str
    scale: SuiteScale
    model: str
    data: str

    def __call__(self, name: str, max_seq_len: int, micro_batch_size: int, *, reason: str, **changed: Any) -> Trial:
        scale = self.scale
        return Trial(
            name=name,
            reason=reason,
            suite=self.suite,
            profile=scale.profile,
            model=self.model,
            data=self.data,
            max_seq_len=max_seq_len // scale.seq_divisor,
            micro_batch_size=micro_batch_size,
            warmup_steps=scale.warmup_steps,
            measured_steps=scale.measured_steps,
            learning_rate=scale.learning_rate,
            deadline_sec=scale.deadline_sec,
            **changed,
        )


def quick(make: TrialFactory) -> tuple[Trial, ...]:
    """Return the published baseline and optimum, to reproduce the speedup of 2.11x."""
    return (
        make("baseline", 1024, 4, reason="the published starting point: long sequences, small batch"),
        make("optimized", 512, 8, reason="the published optimum: same tokens a step, half the length, twice the batch"),
    )


def full(make: TrialFactory) -> tuple[Trial, ...]:
    """Return 12 trials: one factor at a time around the published optimum (seq 512, batch 8)."""
    return (
        make("optimized", 512, 8, reason="the centre, from which each other trial differs in one factor"),
        make("seq-256", 256, 8, reason="sequence length: half the centre's"),
        make("seq-1024", 1024, 8, reason="sequence length: twice the centre's"),
        make("seq-2048", 2048, 8, reason="sequence length: four times the centre's, where memory may run out"),
        make("batch-4", 512, 4, reason="micro batch: half the centre's"),
        make("batch-16", 512, 16, reason="micro batch: twice the centre's, where memory may run out"),
        make("rank-8", 512, 8, reason="LoRA rank: does a smaller adapter save time?", lora_rank=8, lora_alpha=16),
        make("adamw", 512, 8, reason="optimizer: plain 32-bit AdamW instead of paged 8-bit", optimizer="adamw_torch"),
        make("base-bf16", 512, 8, reason="base weights in 16 bit: what does NF4 cost in time?", base_precision="bf16"),
        make(
            "no-checkpointing",
            512,
            8,
            reason="activations kept instead of recomputed: faster if it fits",
            gradient_checkpointing=False,
        ),
        make("data-workers-2", 512, 8, reason="data loading: two loader processes instead of none", data_workers=2),
        make("packed", 512, 8, reason="samples packed end to end: no token position spent on padding", layout="pack"),
    )


def hardware(make: TrialFactory) -> tuple[Trial, ...]:
    """Return the trial that measures the hardware's ceilings, for comparison with other numbers."""
    return (make("hardware", 512, 8, reason="matrix products, copies and disk: the ceilings", kind="hardware"),)


def loading(make: TrialFactory) -> tuple[Trial, ...]:
    """Return trials that measure the time and memory for loading a model."""
    return (
        make("load-nf4", 512, 8, reason="4-bit, cold and warm: what QLoRA starts from", kind="loading"),
        make("load-bf16", 512, 8, reason="16-bit, cold and warm", kind="loading", base_precision="bf16"),
    )


def inference(make: TrialFactory) -> tuple[Trial, ...]:
    """Return trials for batches 1 to 32: prefill and decode separately, the default and the fast path."""
    return (
        make("generate-nf4", 512, 32, reason="4-bit generation, batches 1 to 32", kind="inference"),
        make("generate-bf16", 512, 32, reason="16-bit, batches 1 to 32", kind="inference", base_precision="bf16"),
    )


def distributed(make: TrialFactory) -> tuple[Trial, ...]:
    """Return the optimum on 1, 2 and 4 ranks with the same work on each: scaling and communication costs."""
    return (
        make("ddp-1", 512, 8, reason="one rank: the reference for efficiency", kind="distributed"),
        make("ddp-2", 512, 8, reason="two ranks, the same work on each", kind="distributed", world_size=2),
        make("ddp-4", 512, 8, reason="four ranks, the same work on each", kind="distributed", world_size=4),
    )


def recipes(make: TrialFactory) -> tuple[Trial, ...]:
    """Return one configuration with the reference, the usual libraries and our own kernels, padded and packed."""
    kept: dict[str, Any] = {"gradient_checkpointing": False, "optimizer": "adamw_torch"}
    everywhere = {"lora_targets": ALL_LINEAR}
    fast = kept | {"recipe": "fast"}
    lean = {"recipe": "fast", "optimizer": "adamw_torch", "offload_checkpoints": True}
    return (
        make("reference", 512, 8, reason="the published loop: the reference for the others"),
        make(
            "stock", 512, 8, reason="the usual libraries at their best: Liger, compiled layers", recipe="stock", **kept
        ),
        make("fast", 512, 8, reason="our kernels, activations kept", **fast),
        make("fast-lean", 512, 8, reason="our kernels, every layer recomputed from host memory", **lean),
        make("fast-1024", 1024, 4, reason="our kernels at the baseline's length", **fast),
        make("reference-varlen", 512, 8, reason="packed, samples isolated: the cost of padding", layout="varlen"),
        make("fast-bucket", 512, 8, reason="batches of about one length instead of packing", layout="bucket", **fast),
        make("fast-varlen", 512, 8, reason="our kernels on packed samples, isolated", layout="varlen", **fast),
        make("reference-all-linear", 512, 8, reason="adapters on every linear layer", **everywhere),
        make("fast-all-linear", 512, 8, reason="adapters on every linear layer, our kernels", **fast, **everywhere),
    )


def all_trials(make: TrialFactory) -> tuple[Trial, ...]:
    """Return every suite except recipes, ceilings first; of quick only the baseline: full has its optimum."""

    def trials(part: Callable[[TrialFactory], tuple[Trial, ...]]) -> tuple[Trial, ...]:
        return part(replace(make, suite=part.__name__))

    ceilings, quick_two = (*trials(hardware), *trials(loading)), trials(quick)
    return (*ceilings, quick_two[0], *trials(full), *trials(inference), *trials(distributed))


SUITES: dict[str, Callable[[TrialFactory], tuple[Trial, ...]]] = {
    **{part.__name__: part for part in (quick, full, hardware, loading, inference, distributed, recipes)},
    "all": all_trials,
}


def suite(name: str, profile: str, model: str, data: str) -> tuple[Trial, ...]:
    """Return the trials of a suite at a profile's scale. Raises TrialError for an unknown suite or profile."""
    expect_one_of(name, tuple(SUITES), "suite")
    expect_one_of(profile, tuple(SCALES), "profile")
    return SUITES[name](TrialFactory(suite=name, scale=SCALES[profile], model=model, data=data))
