"""A trial: one configuration to measure, planned by the operator, sent as `trial.json`, returned in the result.

A suite of a workload becomes trials at the scale of a profile (`suite`).

Ranges are checked at construction, so an impossible trial cannot be planned.

Not covered: whether a trial fits a given GPU; whether its model and data exist (`bench.data.trial_inputs`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.training import DEFAULT_DATA_OPTIONS, DataOptions, DerivedSettings, Training
from bench.records.validation import (
    ATTENTION_PROJECTIONS,
    TrialError,
    check_ranges,
    checked,
    expect,
    expect_one_of,
    setting,
)
from bench.records.workloads import SUITES, WORKLOADS, Workload, names_with

OPTIMIZERS = ("paged_adamw_8bit", "adamw_torch")
BASE_PRECISIONS = ("nf4", "bf16")
LAYOUTS = ("pad", "varlen")
RECIPES = ("reference", "stock", "fast")
MATMULS = ("bf16", "int8")
PROFILES = ("gpu", "tiny")
FAST_ONLY_FIELDS = ("checkpoint_every", "offload_checkpoints", "held_layers", "matmul")
MAX_BYTES = 16 << 20  # size limit of a file of trials; one trial takes about 1000 bytes


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One configuration. Paths are those of the host that runs it; lengths are in tokens, times in seconds.

    `kind` selects the workload; each workload reads the fields that it needs. `world_size` is the number of ranks of a
    distributed trial or a fine-tuning. `layout` selects how samples become rows: see `bench.data.collate`. An inference
    trial has prompts of `max_seq_len`, answers of `new_tokens` and batches up to `micro_batch_size`.

    A fine-tuning (kind finetune) packs samples into rows of `max_seq_len` x `micro_batch_size` tokens, and ignores
    layout, step counts and accumulation. So does a quality trial, which is evaluated on one of `held_out_parts` of the
    held-out examples, chosen by its seed. Only these two have `training`; the others have `data_options`, None for the
    defaults.

    With `gradient_checkpointing`, one layer in `checkpoint_every` is recomputed in backward; `offload_checkpoints`
    keeps its input in the host's memory meanwhile, and the embeddings and the head always. The first `held_layers` keep
    dequantized weights in addition to NF4. `matmul` is the precision of matrix products with the frozen weights,
    those of forward and those of each input's gradient; held layers keep the weights in the form that is used. Only the
    recipe fast reads these four.

    `derive` are fields that the user left open, which follow from GPU and data (`with_derived`). `is_usual`: a
    benchmark's trial with the configuration of `inv train`, to which reports compare the others.
    """

    name: str
    reason: str
    suite: str
    profile: str = checked(choices=PROFILES)
    model: str
    data: str
    kind: str = "training"
    recipe: str = setting(
        "fast",
        "implementation of the training step: reference, stock or fast",
        stored_default="reference",
        choices=RECIPES,
    )
    max_seq_len: int = setting(512, "maximum length of an example", unit="tokens", ge=8, le=1_048_576)
    micro_batch_size: int = setting(
        None,
        "size of a packed row; auto: the fastest configuration that fits the GPU",
        stored_default=8,
        usual=8,
        unit="times max_seq_len tokens",
        ge=1,
        le=4096,
    )
    gradient_accumulation_steps: int = checked(1, ge=1, le=4096)
    layout: str = checked("pad", choices=LAYOUTS)
    base_precision: str = setting("nf4", "precision of the frozen base weights: nf4 or bf16", choices=BASE_PRECISIONS)
    lora_rank: int = setting(16, "rank of the LoRA adapters", ge=1, le=1024)
    lora_alpha: int = setting(32, "LoRA alpha; an adapter's output is scaled by alpha / rank", ge=1, le=4096)
    lora_dropout: float = setting(0.05, "dropout of the adapters' input", ge=0, le=0.99)
    lora_targets: tuple[str, ...] = ATTENTION_PROJECTIONS
    optimizer: str = setting(
        None,
        "adamw_torch, or paged_adamw_8bit, which needs a quarter of the memory; auto: as memory allows",
        stored_default="paged_adamw_8bit",
        usual="adamw_torch",
        choices=OPTIMIZERS,
    )
    learning_rate: float = setting(2e-4, "peak learning rate", gt=0, le=1)
    gradient_checkpointing: bool = setting(
        None,
        "true: recompute activations in backward to save memory; auto: as memory allows",
        stored_default=True,
        usual=True,
    )
    checkpoint_every: int = checked(1, ge=1, le=1024)
    offload_checkpoints: bool = False
    held_layers: int = setting(
        None,
        "layers whose weights are also kept in 16 bits; auto: as memory allows",
        stored_default=0,
        usual=0,
        ge=0,
        le=1024,
    )
    matmul: str = setting("bf16", "products with the frozen weights: bf16 or int8", choices=MATMULS)
    data_workers: int = checked(0, ge=0, le=64)
    world_size: int = checked(1, ge=1, le=1024)
    new_tokens: int = checked(64, ge=1, le=65_536)
    held_out_parts: int = checked(1, ge=1, le=1024)
    warmup_steps: int = checked(5, ge=0, le=10_000)
    measured_steps: int = checked(20, ge=1, le=100_000)
    seed: int = setting(
        42, "random seed of the adapter's initial weights, dropout and the order of the data", ge=0, le=2**31 - 1
    )
    deadline_sec: float = checked(1800.0, ge=1, le=604_800)
    training: Training | None = None
    data_options: DataOptions | None = None
    derive: tuple[str, ...] = ()
    is_usual: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        expect(0 < len(self.name) <= 80 and self.name.isprintable(), "name", "1 to 80 printable characters")
        expect(any(c.isalnum() for c in self.name), "name", "a name with at least one letter or digit")
        expect(self.model != "", "model", "the model's folder")
        expect(self.data != "", "data", "the data file")
        expect_one_of(self.kind, tuple(WORKLOADS), "kind")
        expected = f"its default with recipe {self.recipe!r}: only 'fast' has a choice here"
        for name in self.fast_only_changes:
            expect(self.recipe == "fast", name, expected)
        is_ranked, has_training = self.workload.is_ranked, self.workload.has_training
        expect(self.world_size == 1 or is_ranked, "world_size", f"1 unless kind is {names_with('is_ranked')}")
        expected = f"a value for kind {names_with('has_training')} only"
        expect((self.training is not None) == has_training, "training", expected)
        expect(self.data_options is None or not has_training, "data_options", "null, because training has its data")
        expect(
            bool(self.lora_targets) and all(self.lora_targets), "lora_targets", "at least one name of a linear layer"
        )

    @property
    def workload(self) -> Workload:
        """Workload that runs this trial, registered under `kind`."""
        return WORKLOADS[self.kind]

    @property
    def is_scaled(self) -> bool:
        """Tell whether its profile divides the published lengths."""
        return SEQ_DIVISORS[self.profile] > 1

    @property
    def reading(self) -> DataOptions:
        """Options by which the lines of its data are read."""
        return self.training.data if self.training is not None else self.data_options or DEFAULT_DATA_OPTIONS

    @property
    def fast_only_changes(self) -> list[str]:
        """Fields that only the recipe fast reads and that differ from their defaults."""
        return [name for name in FAST_ONLY_FIELDS if getattr(self, name) != getattr(Trial, name)]

    @property
    def trial_id(self) -> str:
        """Folder name made from the trial's name: letters, digits, dot, dash and underscore only."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "trial"

    @property
    def tokens_per_step(self) -> int:
        """Token positions in one optimizer step on one device, padding included."""
        return self.max_seq_len * self.micro_batch_size * self.gradient_accumulation_steps

    def with_derived(self, derived: DerivedSettings) -> Trial:
        """Return the trial with its derived values; its other open fields keep their usual ones."""
        own = {name: value for name, value in derived.values.items() if name in Trial.__dataclass_fields__}
        training = None if self.training is None else self.training.with_derived(derived)
        return replace(self, training=training, derive=(), **own)

    def digest(self) -> str:
        """Return the sha256 of the configuration without name, reason and suite.

        Trials of equal digest measure the same thing.
        """
        document = self.to_json()
        for label in ("name", "reason", "suite"):
            del document[label]
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()

    def to_text(self) -> str:
        """Return the content of a trial file."""
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return cast("dict[str, Any]", schema.to_json(self))

    @classmethod
    def from_json(cls, document: object, where: str = "trial") -> Trial:
        """Build a trial from parsed JSON. `where` names the file for the message. Raises TrialError."""
        return schema.from_json(cls, document, where)

    @classmethod
    def read(cls, path: Path) -> Trial:
        """Read one trial from a JSON file. Raises TrialError with the file's path and the place in it."""
        document = parse_json(read_text(path), str(path))
        return cls.from_json(document, str(path))


def read_text(path: Path) -> str:
    """Read the text of a trial file or of a file of settings. Raises TrialError."""
    try:
        return read_regular(path, max_bytes=MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise TrialError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TrialError(f"{path}: not UTF-8 text", remedy="the file is JSON") from error


def parse_json(text: str, where: str) -> object:
    """Parse a trial file's text. Raises TrialError, with the line if the parser names one."""
    try:
        return schema.parse(text)
    except json.JSONDecodeError as error:
        raise TrialError(f"{where}: line {error.lineno}: not JSON: {error.msg}") from error
    except ValueError as error:  # a number with thousands of digits; brackets nested too deep
        raise TrialError(f"{where}: not usable JSON: {error}") from error


def read_trials(text: str, where: str) -> tuple[Trial, ...]:
    """Parse a file of trials: one JSON object, or a list of several. `where` names the file. Raises TrialError."""
    document = parse_json(text, where)
    items = document if isinstance(document, list) else [document]
    if not items:
        raise TrialError(f"{where}: the list is empty", remedy="it must hold at least one trial")
    trials = tuple(Trial.from_json(item, f"{where}: trial {number}") for number, item in enumerate(items, 1))
    seen: set[str] = set()
    for trial in trials:
        if trial.trial_id in seen:
            raise TrialError(f"{where}: two trials are called {trial.trial_id}", remedy="give each its own name")
        seen.add(trial.trial_id)
    return trials


def choose(trials: tuple[Trial, ...], ids: tuple[str, ...]) -> tuple[Trial, ...]:
    """Return the trials with these ids, in the order of `ids`. Raises TrialError for an unknown id or no id."""
    by_id = {trial.trial_id: trial for trial in trials}
    for trial_id in ids:
        if trial_id not in by_id:
            raise TrialError(f"trial {trial_id!r} is unknown", remedy=f"this suite has {', '.join(by_id)}")
    if not ids:
        raise TrialError("no trial was chosen", remedy=f"this suite has {', '.join(by_id) or 'none'}")
    return tuple(by_id[trial_id] for trial_id in dict.fromkeys(ids))


# Suites ---------------------------------------------------------------------------------------------------------------


# Fields of a suite's trials by profile, and by what their lengths are divided: with an eighth of each length both quick
# trials have 512 tokens a step; their originals both have 4096.
SEQ_DIVISORS = {"gpu": 1, "tiny": 8}
SCALES: dict[str, dict[str, Any]] = {
    "gpu": {"measured_steps": 30},
    # The small random model learns visibly within 18 steps at this rate.
    "tiny": {"warmup_steps": 3, "measured_steps": 15, "learning_rate": 4e-3, "deadline_sec": 300.0},
}
ALL = "all"
SUITE_NAMES = (*SUITES, ALL)


def suite(name: str, profile: str, model: str, data: str) -> tuple[Trial, ...]:
    """Return the trials of a suite at a profile's scale. Raises TrialError for an unknown suite or profile.

    `all` has every suite with `is_in_all`; of trials with the same name it has the last.
    """
    expect_one_of(name, SUITE_NAMES, "suite")
    expect_one_of(profile, tuple(SCALES), "profile")
    names = [part for part, (_, suite) in SUITES.items() if suite.is_in_all] if name == ALL else [name]
    trials = {}
    for part in names:
        workload, planned_suite = SUITES[part]
        deadline = {"deadline_sec": workload.deadline_sec} if workload.deadline_sec else {}
        for planned in planned_suite.trials:
            trials[planned.name] = Trial(
                name=planned.name,
                reason=planned.reason,
                suite=part,
                kind=workload.name,
                profile=profile,
                model=model,
                data=data,
                max_seq_len=planned.max_seq_len // SEQ_DIVISORS[profile],
                micro_batch_size=planned.micro_batch_size,
                **{**SCALES[profile], **deadline, **planned.fields},
            )
    return tuple(trials.values())
