"""A trial is one configuration to measure; a suite is a named, commented list of trials.

Trials are plain values: what the operator plans, what travels to a host as `trial.json`, and what the result carries
back are the same dataclass. Ranges are checked at construction, so an impossible trial cannot be planned. This module
uses the standard library alone and runs on Python 3.10 to 3.13.

Not covered: whether a trial fits a given GPU, or whether its model and data exist; `bench.inputs` looks at those.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench import schema

OPTIMIZERS = ("paged_adamw_8bit", "adamw_torch")
BASE_PRECISIONS = ("nf4", "bf16")
LAYOUTS = ("pad", "bucket", "pack", "varlen")
RECIPES = ("reference", "stock", "fast")
PROFILES = ("gpu", "tiny")
# How the machines of a distributed trial are told their places: see bench.nodes, remote.gang.
NODE_COUNT, NODE_RANK = "QLORA_FLEET_NODES", "QLORA_FLEET_NODE_RANK"
NODE_ADDRESS, NODE_PORT, NODE_TOKEN = "QLORA_FLEET_RANK0_ADDRESS", "QLORA_FLEET_RANK0_PORT", "QLORA_FLEET_GANG"
KINDS = ("training", "hardware", "loading", "inference", "distributed")
ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


class TrialError(ValueError):
    """A trial, a trial file or a choice of trials that cannot be used; the message names the key and what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration. Paths are read on the host that runs it; lengths are in tokens, times in seconds.

    `kind` says what is measured; every kind reads the fields it needs. `world_size` is the number of ranks of a
    distributed trial. `layout` says how samples become rows: see `bench.data`. With `gradient_checkpointing`, one
    layer in `checkpoint_every` is computed again in backward, from an input that `offload_checkpoints` keeps in the
    host's memory meanwhile; the first `held_layers` keep their weights in 16 bit beside NF4. These three are the recipe
    fast's alone. `max_seq_len` and `new_tokens` are
    prompt and answer lengths of an inference trial, whose `micro_batch_size` is the largest batch it goes up to.
    """

    name: str
    reason: str
    suite: str
    profile: str
    model: str
    data: str
    kind: str = "training"
    recipe: str = "reference"
    max_seq_len: int = 512
    micro_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    layout: str = "pad"
    base_precision: str = "nf4"
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.05
    lora_targets: tuple[str, ...] = ATTENTION_PROJECTIONS
    optimizer: str = "paged_adamw_8bit"
    learning_rate: float = 2e-4
    gradient_checkpointing: bool = True
    checkpoint_every: int = 1
    offload_checkpoints: bool = False
    held_layers: int = 0
    data_workers: int = 0
    world_size: int = 1
    new_tokens: int = 64
    warmup_steps: int = 5
    measured_steps: int = 20
    seed: int = 42
    deadline_sec: float = 1800.0

    def __post_init__(self) -> None:
        _check_types(self)
        _expect(0 < len(self.name) <= 80 and self.name.isprintable(), "name", "1 to 80 printable characters")
        _expect(any(c.isalnum() for c in self.name), "name", "a name with at least one letter or digit")
        _expect(self.model != "", "model", "the model's folder")
        _expect(self.data != "", "data", "the data file")
        _among(self.profile, PROFILES, "profile")
        _among(self.kind, KINDS, "kind")
        _among(self.recipe, RECIPES, "recipe")
        _among(self.layout, LAYOUTS, "layout")
        _among(self.base_precision, BASE_PRECISIONS, "base_precision")
        _among(self.optimizer, OPTIMIZERS, "optimizer")
        _within(self.max_seq_len, 8, 1_048_576, "max_seq_len")
        _within(self.micro_batch_size, 1, 4096, "micro_batch_size")
        _within(self.gradient_accumulation_steps, 1, 4096, "gradient_accumulation_steps")
        _within(self.lora_rank, 1, 1024, "lora_rank")
        _within(self.lora_alpha, 1, 4096, "lora_alpha")
        _within(self.data_workers, 0, 64, "data_workers")
        _within(self.checkpoint_every, 1, 1024, "checkpoint_every")
        _within(self.held_layers, 0, 1024, "held_layers")
        _check_choices_of_fast(self)
        _within(self.world_size, 1, 1024, "world_size")
        _expect(self.world_size == 1 or self.kind == "distributed", "world_size", "1 unless kind is distributed")
        _within(self.new_tokens, 1, 65_536, "new_tokens")
        _within(self.warmup_steps, 0, 10_000, "warmup_steps")
        _within(self.measured_steps, 1, 100_000, "measured_steps")
        _within(self.seed, 0, 2**31 - 1, "seed")
        _expect(0.0 <= self.lora_dropout < 1.0, "lora_dropout", "a number from 0 to below 1")
        _expect(0.0 < self.learning_rate <= 1.0, "learning_rate", "a number above 0, at most 1")
        _expect(1.0 <= self.deadline_sec <= 604_800.0, "deadline_sec", "1 to 604800 seconds")
        _expect(
            bool(self.lora_targets) and all(self.lora_targets), "lora_targets", "at least one name of a linear layer"
        )

    @property
    def trial_id(self) -> str:
        """The name as a folder name: letters, digits, dot, dash and underscore only."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "trial"

    @property
    def tokens_per_step(self) -> int:
        """Token positions in one optimizer step on one device, padding included."""
        return self.max_seq_len * self.micro_batch_size * self.gradient_accumulation_steps

    def digest(self) -> str:
        """sha256 of the configuration without its name, reason and suite: equal digests measure the same thing."""
        document = self.to_json()
        for label in ("name", "reason", "suite"):
            del document[label]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def to_text(self) -> str:
        """The content of a trial file."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"

    def to_json(self) -> dict[str, Any]:
        return cast("dict[str, Any]", schema.to_json(self))

    @classmethod
    def from_json(cls, document: object, where: str = "trial") -> Trial:
        """Build a trial from parsed JSON. `where` names the file for the message. Raises TrialError."""
        try:
            return schema.from_json(cls, document, where)
        except schema.SchemaError as error:
            raise TrialError(str(error)) from None
        except TrialError as error:
            raise TrialError(f"{where}: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Trial:
        """Read one trial from a JSON file. Raises TrialError with the file and the place in it."""
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TrialError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TrialError(f"{path}: not UTF-8 text; a trial file is JSON") from None
        except json.JSONDecodeError as error:
            raise TrialError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from None
        return cls.from_json(document, str(path))


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the trials of a suite are. A profile is named in every result so that sizes cannot be confused."""

    profile: str
    note: str
    seq_divisor: int
    warmup_steps: int
    measured_steps: int
    learning_rate: float
    deadline_sec: float


SCALES: dict[str, Scale] = {
    "gpu": Scale(
        profile="gpu",
        note="the published sizes, for one GPU",
        seq_divisor=1,
        warmup_steps=5,
        measured_steps=30,
        learning_rate=2e-4,
        deadline_sec=1800.0,
    ),
    # An eighth of each length keeps the two quick trials at 512 tokens a step, as their originals are both at 4096.
    "tiny": Scale(
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


def quick(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """The published baseline and the published optimum: is the 2.11x there on this hardware?"""
    make = _maker("quick", scale, model, data)
    return (
        make("baseline", 1024, 4, reason="the published starting point: long sequences, small batch"),
        make("optimized", 512, 8, reason="the published optimum: same tokens a step, half the length, twice the batch"),
    )


def full(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """One factor at a time around the published optimum (seq 512, batch 8): 12 trials."""
    make = _maker("full", scale, model, data)
    return (
        make("optimized", 512, 8, reason="the centre every other trial differs from in one factor"),
        make("seq-256", 256, 8, reason="sequence length: half the centre's"),
        make("seq-1024", 1024, 8, reason="sequence length: twice the centre's"),
        make("seq-2048", 2048, 8, reason="sequence length: four times the centre's, where memory may end"),
        make("batch-4", 512, 4, reason="micro batch: half the centre's"),
        make("batch-16", 512, 16, reason="micro batch: twice the centre's, where memory may end"),
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


def hardware(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """What the chip itself reaches: the ceilings that every other number is read against."""
    make = _maker("hardware", scale, model, data)
    return (make("hardware", 512, 8, reason="matrix products, copies and disk: the ceilings", kind="hardware"),)


def loading(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """How long a pod takes from an empty GPU to a model, and what it then holds."""
    make = _maker("loading", scale, model, data)
    return (
        make("load-nf4", 512, 8, reason="4-bit, cold and warm: what QLoRA starts from", kind="loading"),
        make("load-bf16", 512, 8, reason="16-bit, cold and warm", kind="loading", base_precision="bf16"),
    )


def inference(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """Batches 1 to 32, prefill and decode apart, the default path beside the fast one."""
    make = _maker("inference", scale, model, data)
    return (
        make("generate-nf4", 512, 32, reason="4-bit generation, batches 1 to 32", kind="inference"),
        make("generate-bf16", 512, 32, reason="16-bit, batches 1 to 32", kind="inference", base_precision="bf16"),
    )


def distributed(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """The optimum on 1, 2 and 4 ranks, the same work on each: does it scale, and what does talking cost?"""
    make = _maker("distributed", scale, model, data)
    return (
        make("ddp-1", 512, 8, reason="one rank: what efficiency is measured against", kind="distributed"),
        make("ddp-2", 512, 8, reason="two ranks, the same work on each", kind="distributed", world_size=2),
        make("ddp-4", 512, 8, reason="four ranks, the same work on each", kind="distributed", world_size=4),
    )


def recipes(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """What the reference, the usual libraries and our own kernels make of one configuration, padded and packed."""
    make = _maker("recipes", scale, model, data)
    kept: dict[str, Any] = {"gradient_checkpointing": False, "optimizer": "adamw_torch"}
    everywhere = {"lora_targets": (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")}
    fast = kept | {"recipe": "fast"}
    lean = {"recipe": "fast", "optimizer": "adamw_torch", "offload_checkpoints": True}
    return (
        make("reference", 512, 8, reason="the published loop: what the others are compared with"),
        make(
            "stock", 512, 8, reason="the usual libraries at their best: Liger, compiled layers", recipe="stock", **kept
        ),
        make("fast", 512, 8, reason="our kernels, activations kept", **fast),
        make("fast-lean", 512, 8, reason="our kernels, every layer recomputed from the host's memory", **lean),
        make("fast-1024", 1024, 4, reason="our kernels at the baseline's length", **fast),
        make("reference-varlen", 512, 8, reason="packed, each sample by itself: what padding costs", layout="varlen"),
        make("fast-bucket", 512, 8, reason="batches of about one length instead of packing", layout="bucket", **fast),
        make("fast-varlen", 512, 8, reason="our kernels on packed samples, each by itself", layout="varlen", **fast),
        make("reference-all-linear", 512, 8, reason="adapters on every linear layer", **everywhere),
        make("fast-all-linear", 512, 8, reason="adapters on every linear layer, our kernels", **fast, **everywhere),
    )


def everything(scale: Scale, model: str, data: str) -> tuple[Trial, ...]:
    """Every suite, ceilings first; the quick two are the full suite's first and the baseline."""
    return (
        *hardware(scale, model, data),
        *loading(scale, model, data),
        quick(scale, model, data)[0],
        *full(scale, model, data),
        *inference(scale, model, data),
        *distributed(scale, model, data),
    )


SUITES: dict[str, Callable[[Scale, str, str], tuple[Trial, ...]]] = {
    "quick": quick,
    "full": full,
    "hardware": hardware,
    "loading": loading,
    "inference": inference,
    "distributed": distributed,
    "recipes": recipes,
    "all": everything,
}


def suite(name: str, profile: str, model: str, data: str) -> tuple[Trial, ...]:
    """The trials of a suite at a profile's scale. Raises TrialError for an unknown suite or profile."""
    _among(name, tuple(SUITES), "suite")
    _among(profile, tuple(SCALES), "profile")
    return SUITES[name](SCALES[profile], model, data)


def read_trials(text: str, where: str) -> tuple[Trial, ...]:
    """The trials of a file: one as a JSON object, or several as a list. `where` names it. Raises TrialError."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise TrialError(f"{where}: line {error.lineno}: not JSON: {error.msg}") from None
    listed = document if isinstance(document, list) else [document]
    if not listed:
        raise TrialError(f"{where}: the list is empty; it must hold at least one trial")
    trials = tuple(Trial.from_json(one, f"{where}: trial {number}") for number, one in enumerate(listed, 1))
    seen: set[str] = set()
    for trial in trials:
        if trial.trial_id in seen:
            raise TrialError(f"{where}: two trials are called {trial.trial_id}; give each a name of its own")
        seen.add(trial.trial_id)
    return trials


def choose(trials: tuple[Trial, ...], ids: tuple[str, ...]) -> tuple[Trial, ...]:
    """The trials with these ids, in the order asked for. Raises TrialError for an unknown or an empty choice."""
    by_id = {trial.trial_id: trial for trial in trials}
    for trial_id in ids:
        if trial_id not in by_id:
            raise TrialError(f"trial {trial_id!r} is unknown; this suite has {', '.join(by_id)}")
    if not ids:
        raise TrialError(f"no trial was chosen; this suite has {', '.join(by_id) or 'none'}")
    return tuple(by_id[trial_id] for trial_id in dict.fromkeys(ids))


def _maker(suite_name: str, scale: Scale, model: str, data: str) -> Callable[..., Trial]:
    def make(name: str, max_seq_len: int, micro_batch_size: int, *, reason: str, **changed: Any) -> Trial:
        return Trial(
            name=name,
            reason=reason,
            suite=suite_name,
            profile=scale.profile,
            model=model,
            data=data,
            max_seq_len=max_seq_len // scale.seq_divisor,
            micro_batch_size=micro_batch_size,
            warmup_steps=scale.warmup_steps,
            measured_steps=scale.measured_steps,
            learning_rate=scale.learning_rate,
            deadline_sec=scale.deadline_sec,
            **changed,
        )

    return make


def _check_types(trial: Trial) -> None:
    # Annotations are strings under `from __future__`, which is all that is needed to check plain scalars exactly.
    for field in dataclasses.fields(trial):
        value = getattr(trial, field.name)
        kind, words = _SCALARS.get(str(field.type), (tuple, "a list of texts"))
        fits = type(value) is kind if kind is not tuple else isinstance(value, tuple)
        if fits and kind is float:
            fits = math.isfinite(value)
        if fits and kind is tuple:
            fits = all(type(item) is str for item in value)
        if not fits:  # the message is made only now: every result read carries a trial
            raise TrialError(f"{field.name}: expected {words}, found {schema.kind(value)}")


_SCALARS: dict[str, tuple[type, str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "float": (float, "a finite number"),
    "bool": (bool, "true or false"),
}


def _check_choices_of_fast(trial: Trial) -> None:
    """What the recipe fast alone can do."""
    plain = f"its default with recipe {trial.recipe!r}: only 'fast' has a choice here"
    _expect(trial.recipe == "fast" or trial.checkpoint_every == 1, "checkpoint_every", plain)
    _expect(trial.recipe == "fast" or not trial.offload_checkpoints, "offload_checkpoints", plain)
    _expect(trial.recipe == "fast" or trial.held_layers == 0, "held_layers", plain)


def _expect(holds: bool, key: str, expected: str) -> None:
    if not holds:
        raise TrialError(f"{key}: expected {expected}")


def _among(value: str, allowed: tuple[str, ...], key: str) -> None:
    if value not in allowed:
        raise TrialError(f"{key}: expected one of {', '.join(allowed)}, found {value!r}")


def _within(value: int, low: int, high: int, key: str) -> None:
    if not low <= value <= high:
        raise TrialError(f"{key}: expected {low} to {high}, found {value}")
