"""Workloads: what trials of each kind need, which suites they have, and how reports and plans treat them.

A workload is an entry of `WORKLOADS` here, and `measure()` in `bench/workloads/<name>.py`. The entry is apart from the
module because plans and reports read it on machines without torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.records.validation import ALL_LINEAR

# Parts of the machine and of the software: `model` loads the trial's base model, `optimizer` its optimizer, `recipe`
# builds the training step by its recipe, `kernels` compiles kernels with any recipe.
NEEDS = ("model", "optimizer", "recipe")


@dataclass(frozen=True)
class SuiteTrial:
    """A trial of a suite, at the published size; `fields` are the fields of Trial that it changes."""

    name: str
    max_seq_len: int
    micro_batch_size: int
    reason: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A named list of trials. The suite `all` has those of each suite with `is_in_all`."""

    name: str
    trials: tuple[SuiteTrial, ...]
    is_in_all: bool = True


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload: what its trials need, and how plans and reports treat them.

    `title` is its heading in reports, `size` the format of a trial's size in a plan. `needs` are some of NEEDS.
    `module` has `measure(record, inputs, stops)`; that of a ranked one also `follow()`, and one that checks its own
    inputs `check_inputs()`.
    """

    name: str
    title: str
    size: str
    module: str = ""  # default: bench.workloads.<name>
    suites: tuple[Suite, ...] = ()
    needs: tuple[str, ...] = ("model",)
    deadline_sec: float = 0.0  # default: the profile's
    has_steps: bool = False  # it measures the warm-up and measured steps of a training, on samples of the data
    is_ranked: bool = False  # it runs as `world_size` ranks, on several machines if the fleet has pods
    is_compared: bool = False  # its configurations are compared by speed and cost, and one is recommended
    has_training: bool = False  # settings in Trial.training: epochs of its own data, resumed from checkpoints
    has_deciding_measurements: bool = True  # a slower measurement decides the exit code of a comparison
    measures_scaling: bool = False  # its trials use 1, 2, 4 ... GPUs of a host: idle ones are no flaw


_EVERYWHERE = {"lora_targets": ALL_LINEAR}
_KEPT = {"gradient_checkpointing": False, "optimizer": "adamw_torch"}
_FAST = _KEPT | {"recipe": "fast"}
_PACKED = _FAST | {"layout": "varlen"}
_LEAN = {"recipe": "fast", "optimizer": "adamw_torch", "offload_checkpoints": True}

# Its configuration comes from the settings; the fields here are those that no setting names.
_TRAIN = SuiteTrial(
    "train",
    512,
    8,
    "what inv train does with these settings: the others have to beat it",
    {"recipe": "fast", "layout": "varlen", "is_usual": True},
)
_QUICK_TRIALS = (  # the published baseline and optimum, to reproduce the speedup of 2.11x
    SuiteTrial("baseline", 1024, 4, "the published starting point: long sequences, small batch"),
    SuiteTrial("optimized", 512, 8, "the published optimum: same tokens a step, half the length, twice the batch"),
    _TRAIN,
)
_FULL_TRIALS = (  # one factor at a time around the published optimum
    SuiteTrial("optimized", 512, 8, "the centre, from which each other trial differs in one factor"),
    SuiteTrial("seq-256", 256, 8, "sequence length: half the centre's"),
    SuiteTrial("seq-1024", 1024, 8, "sequence length: twice the centre's"),
    SuiteTrial("seq-2048", 2048, 8, "sequence length: four times the centre's, where memory may run out"),
    SuiteTrial("batch-4", 512, 4, "micro batch: half the centre's"),
    SuiteTrial("batch-16", 512, 16, "micro batch: twice the centre's, where memory may run out"),
    SuiteTrial("rank-8", 512, 8, "LoRA rank: does a smaller adapter save time?", {"lora_rank": 8, "lora_alpha": 16}),
    SuiteTrial("adamw", 512, 8, "optimizer: plain 32-bit AdamW instead of paged 8-bit", {"optimizer": "adamw_torch"}),
    SuiteTrial("base-bf16", 512, 8, "base weights in 16 bit: what does NF4 cost in time?", {"base_precision": "bf16"}),
    SuiteTrial(
        "no-checkpointing",
        512,
        8,
        "activations kept instead of recomputed: faster if it fits",
        {"gradient_checkpointing": False},
    ),
    SuiteTrial("data-workers-2", 512, 8, "data loading: two loader processes instead of none", {"data_workers": 2}),
    SuiteTrial("packed", 512, 8, "whole samples in one row: few positions spent on padding", {"layout": "varlen"}),
    _TRAIN,
)
_RECIPE_TRIALS = (  # one configuration with the reference, the usual libraries and our own kernels
    SuiteTrial("reference", 512, 8, "the published loop: the reference for the others"),
    SuiteTrial(
        "stock", 512, 8, "the usual libraries at their best: Liger, compiled layers", _KEPT | {"recipe": "stock"}
    ),
    SuiteTrial("fast", 512, 8, "our kernels, activations kept", _FAST),
    SuiteTrial("fast-lean", 512, 8, "our kernels, every layer recomputed from host memory", _LEAN),
    SuiteTrial("fast-1024", 1024, 4, "our kernels at the baseline's length", _FAST),
    SuiteTrial("reference-varlen", 512, 8, "packed, samples isolated: the cost of padding", {"layout": "varlen"}),
    SuiteTrial("fast-varlen", 512, 8, "our kernels on packed samples, isolated", _PACKED),
    SuiteTrial("fast-int8", 512, 8, "8-bit products: add --quality", _PACKED | {"matmul": "int8"}),
    SuiteTrial("reference-all-linear", 512, 8, "adapters on every linear layer", _EVERYWHERE),
    SuiteTrial("fast-all-linear", 512, 8, "adapters on every linear layer, our kernels", _FAST | _EVERYWHERE),
)

HARDWARE = Workload(
    name="hardware",
    title="Hardware",
    size="-",
    needs=(),
    suites=(Suite("hardware", (SuiteTrial("hardware", 512, 8, "matrix products and copies: the ceilings"),)),),
)

LOADING = Workload(
    name="loading",
    title="Loading",
    size="{base_precision}",
    suites=(
        Suite(
            "loading",
            (
                SuiteTrial("load-nf4", 512, 8, "4-bit: what QLoRA starts from"),
                SuiteTrial("load-bf16", 512, 8, "16-bit, for comparison", {"base_precision": "bf16"}),
            ),
        ),
    ),
)

TRAINING = Workload(
    name="training",
    title="Training",
    size="{max_seq_len} x {micro_batch_size}",
    needs=("model", "optimizer", "recipe"),
    has_steps=True,
    is_compared=True,
    has_deciding_measurements=False,  # they are parts of a step; the steps decide
    suites=(
        Suite("quick", _QUICK_TRIALS),
        Suite("full", _FULL_TRIALS),
        Suite("recipes", _RECIPE_TRIALS, is_in_all=False),
    ),
)

INFERENCE = Workload(
    name="inference",
    title="Inference",
    size="{max_seq_len} + {new_tokens} x {micro_batch_size}",
    suites=(
        Suite(
            "inference",
            (
                SuiteTrial("generate-nf4", 512, 32, "4-bit generation, batches 1 to 32"),
                SuiteTrial("generate-bf16", 512, 32, "16-bit, batches 1 to 32", {"base_precision": "bf16"}),
            ),
        ),
    ),
)

DISTRIBUTED = Workload(
    name="distributed",
    title="Distributed",
    size="{max_seq_len} x {micro_batch_size} x {world_size}",
    needs=("model", "optimizer", "recipe"),
    has_steps=True,
    is_ranked=True,
    measures_scaling=True,
    suites=(
        Suite(
            "distributed",
            (
                SuiteTrial("ddp-1", 512, 8, "one rank: the reference for efficiency"),
                SuiteTrial("ddp-2", 512, 8, "two ranks, the same work on each", {"world_size": 2}),
                SuiteTrial("ddp-4", 512, 8, "four ranks, the same work on each", {"world_size": 4}),
            ),
        ),
    ),
)

FINETUNE = Workload(
    name="finetune",
    title="Fine-tuning",
    size="{max_seq_len} x {micro_batch_size} x {world_size}",
    module="bench.workloads.finetune.finetune",
    needs=("model", "optimizer", "recipe"),
    deadline_sec=604_800.0,  # the longest of any trial: train.max_hours limits a training
    is_ranked=True,
    has_training=True,
    has_deciding_measurements=False,
)

QUALITY = Workload(
    name="quality",
    title="Held-out loss",
    size="{max_seq_len} x {micro_batch_size}",
    needs=("model", "optimizer", "recipe"),
    deadline_sec=14_400.0,
    has_training=True,
    has_deciding_measurements=False,
)

# In this order they run in the suite `all`, ceilings first, and appear in reports.
WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload for workload in (HARDWARE, LOADING, TRAINING, INFERENCE, DISTRIBUTED, FINETUNE, QUALITY)
}
SUITES: Mapping[str, tuple[Workload, Suite]] = {
    suite.name: (workload, suite) for workload in WORKLOADS.values() for suite in workload.suites
}


def names_with(attribute: str) -> str:
    """List the workloads whose attribute is true, for a message."""
    return " or ".join(workload.name for workload in WORKLOADS.values() if getattr(workload, attribute))
