"""One configuration to measure, as a value: planned by the operator, sent as `trial.json`, returned in the result.

Ranges are checked at construction, so an impossible trial cannot be planned.

Not covered: whether a trial fits a given GPU; whether its model and data exist (`bench.data.trial_inputs`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.training import Training
from bench.records.validation import TrialError, among, check_types, expect, within

OPTIMIZERS = ("paged_adamw_8bit", "adamw_torch")
BASE_PRECISIONS = ("nf4", "bf16")
LAYOUTS = ("pad", "bucket", "pack", "varlen")
RECIPES = ("reference", "stock", "fast")
PRODUCTS = ("bf16", "eight_backward", "eight")
PROFILES = ("gpu", "tiny")
KINDS = ("training", "hardware", "loading", "inference", "distributed", "finetune")
RANKED = ("distributed", "finetune")  # kinds that run as ranks
MOST_BYTES = 16 << 20  # in a file of trials; one takes a thousand
ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_LINEAR = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")


@schema.shared
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration. Paths are those of the host that runs it; lengths are in tokens, times in seconds.

    `kind` says what is measured; every kind reads the fields it needs. `world_size` is the number of ranks of a
    distributed trial or a fine-tuning. `layout` says how samples become rows: see `bench.data.collate`. An inference
    trial has prompts of `max_seq_len`, answers of `new_tokens` and batches up to `micro_batch_size`.

    A fine-tuning (kind finetune, which alone has `training`) packs samples into rows of `max_seq_len` x
    `micro_batch_size` tokens, and reads no layout, step counts or accumulation.

    With `gradient_checkpointing`, one layer in `checkpoint_every` is recomputed in backward; `offload_checkpoints`
    keeps its input in the host's memory meanwhile, and the embeddings and the head always. The first `held_layers` keep
    their weights beside NF4. `products` says which products with the frozen weights are done in 8 bits: none, the
    gradient of each input, or both; held layers then keep the weights in the form that is used. Only the recipe fast
    reads these four.
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
    products: str = "bf16"
    data_workers: int = 0
    world_size: int = 1
    new_tokens: int = 64
    warmup_steps: int = 5
    measured_steps: int = 20
    seed: int = 42
    deadline_sec: float = 1800.0
    training: Training | None = None

    def __post_init__(self) -> None:
        check_types(self)
        expect(0 < len(self.name) <= 80 and self.name.isprintable(), "name", "1 to 80 printable characters")
        expect(any(c.isalnum() for c in self.name), "name", "a name with at least one letter or digit")
        expect(self.model != "", "model", "the model's folder")
        expect(self.data != "", "data", "the data file")
        among(self.profile, PROFILES, "profile")
        among(self.kind, KINDS, "kind")
        among(self.recipe, RECIPES, "recipe")
        among(self.products, PRODUCTS, "products")
        among(self.layout, LAYOUTS, "layout")
        among(self.base_precision, BASE_PRECISIONS, "base_precision")
        among(self.optimizer, OPTIMIZERS, "optimizer")
        within(self.max_seq_len, 8, 1_048_576, "max_seq_len")
        within(self.micro_batch_size, 1, 4096, "micro_batch_size")
        within(self.gradient_accumulation_steps, 1, 4096, "gradient_accumulation_steps")
        within(self.lora_rank, 1, 1024, "lora_rank")
        within(self.lora_alpha, 1, 4096, "lora_alpha")
        within(self.data_workers, 0, 64, "data_workers")
        within(self.checkpoint_every, 1, 1024, "checkpoint_every")
        within(self.held_layers, 0, 1024, "held_layers")
        _check_choices_of_fast(self)
        within(self.world_size, 1, 1024, "world_size")
        expect(self.world_size == 1 or self.kind in RANKED, "world_size", f"1 unless kind is {' or '.join(RANKED)}")
        within(self.new_tokens, 1, 65_536, "new_tokens")
        within(self.warmup_steps, 0, 10_000, "warmup_steps")
        within(self.measured_steps, 1, 100_000, "measured_steps")
        within(self.seed, 0, 2**31 - 1, "seed")
        expect(0.0 <= self.lora_dropout < 1.0, "lora_dropout", "a number from 0 to below 1")
        expect(0.0 < self.learning_rate <= 1.0, "learning_rate", "a number above 0, at most 1")
        expect(1.0 <= self.deadline_sec <= 604_800.0, "deadline_sec", "1 to 604800 seconds")
        expect((self.training is not None) == (self.kind == "finetune"), "training", "one where kind is finetune alone")
        expect(
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
        """sha256 of the configuration without name, reason and suite: trials of equal digest measure the same thing."""
        document = self.to_json()
        for label in ("name", "reason", "suite"):
            del document[label]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def to_text(self) -> str:
        """The content of a trial file."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"

    def to_json(self) -> dict[str, Any]:
        document = cast("dict[str, Any]", schema.to_json(self))
        if self.training is None:  # as before there was any: older workers read it, and digests stay what they were
            del document["training"]
        return document

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
            text = read_regular(path, most_bytes=MOST_BYTES).decode("utf-8")
        except OSError as error:
            raise TrialError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise TrialError(f"{path}: not UTF-8 text; a trial file is JSON") from None
        return cls.from_json(parsed(text, str(path)), str(path))


def parsed(text: str, where: str) -> object:
    """The JSON value of a trial file's text. Raises TrialError with the line, where the parser names one."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TrialError(f"{where}: line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets nested as deep
        raise TrialError(f"{where}: not usable JSON: {error}") from None


def _check_choices_of_fast(trial: Trial) -> None:
    """Refuse what only the recipe fast can do."""
    plain = f"its default with recipe {trial.recipe!r}: only 'fast' has a choice here"
    for name in ("checkpoint_every", "offload_checkpoints", "held_layers", "products"):
        expect(trial.recipe == "fast" or getattr(trial, name) == getattr(Trial, name), name, plain)


def read_trials(text: str, where: str) -> tuple[Trial, ...]:
    """The trials of a file: one JSON object, or a list of several. `where` names the file. Raises TrialError."""
    document = parsed(text, where)
    listed = document if isinstance(document, list) else [document]
    if not listed:
        raise TrialError(f"{where}: the list is empty; it must hold at least one trial")
    trials = tuple(Trial.from_json(one, f"{where}: trial {number}") for number, one in enumerate(listed, 1))
    seen: set[str] = set()
    for trial in trials:
        if trial.trial_id in seen:
            raise TrialError(f"{where}: two trials are called {trial.trial_id}; give each its own name")
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
