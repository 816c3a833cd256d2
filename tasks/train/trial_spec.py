"""From settings, flags and a trial file to the one trial that a training is. Pure, but it reads the file."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import ALL_LINEAR, ATTENTION_PROJECTIONS, Trial, TrialError
from bench.records.training import LIMITS, Training
from bench.records.training_data import TrainingData
from tasks.errors import UsageError, translate_errors
from tasks.fleet.plan import read_trials
from tasks.fleet.run_store import TRAIN
from tasks.settings.load import Settings

TRIAL_ID = "train"
TARGETS = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}
NAMES = {"files": "data", "validation_share": "validation"}  # fields of TrainingData that are a setting of another name
DEADLINE_SEC = 604_800.0  # the longest that a trial may have
# What a trial file decides; the rest (learning rate, seed, data, ...) is the settings'.
FROM_THE_FILE = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer"),
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints", "held_layers", "products"),
)
# Fields of the trial and its training that are a setting of the same name.
OF_THE_TRIAL = (
    *("recipe", "max_seq_len", "micro_batch_size", "base_precision", "optimizer", "learning_rate", "seed"),
    *("lora_rank", "lora_alpha", "lora_dropout", "gradient_checkpointing"),
)
OF_THE_TRAINING = (
    *("rows_per_step", "epochs", "max_steps", "schedule", "warmup_share", "weight_decay", "max_gradient_norm"),
    *("rank_stabilized", "lora_plus_ratio", "gradients", "evaluate_every", "patience", "prompts", "answer_tokens"),
    *("checkpoint_sec", "keep_checkpoints"),
)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The flags of `inv train`."""

    workers: str | None
    trial: str | None
    elastic: bool
    resume: str | None
    changed: bool
    dry_run: bool
    plain: bool
    job: bool
    yes: bool
    discard_results: bool


@dataclass(frozen=True, kw_only=True)
class TrainLimits:
    """What a training may take at most: hours, and dollars at `usd_per_hour` for one worker. None: no limit."""

    max_hours: float | None = None
    budget_usd: float | None = None

    def hours(self, usd_per_hour: float | None, workers: int) -> tuple[float | None, str]:
        """The smaller of the two in hours of `workers`, and the setting it comes from (train.max_hours where neither is
        set). Raises UsageError: a budget, but no price.
        """
        of_hours, of_budget = LIMITS
        if self.budget_usd is None:
            return self.max_hours, of_hours
        if usd_per_hour is None:
            raise UsageError(
                "train.budget_usd: no price is known for these workers; set cost.price_usd_per_gpu_hour and "
                "cost.price_source, or leave the budget out"
            )
        hours = self.budget_usd / (usd_per_hour * workers)
        if self.max_hours is not None and self.max_hours <= hours:
            return self.max_hours, of_hours
        return hours, of_budget


def data_of(settings: Settings) -> TrainingData:
    """What the settings say of the data. Raises UsageError that names the setting."""
    train = settings.train
    files = list(train.data) or [settings.data.path]
    try:
        return TrainingData(
            files=files,
            weights=list(train.weights) or [1.0] * len(files),
            max_seq_len=train.max_seq_len,
            validation_share=0.0 if train.validation_file is not None else train.validation,
            validation_file=train.validation_file,
            labels=train.labels,
            too_long=train.too_long,
        )
    except TrialError as error:
        field, _, message = str(error).partition(": ")
        raise UsageError(f"train.{NAMES.get(field, field)}: {message}") from None


def limits_of(settings: Settings) -> TrainLimits:
    return TrainLimits(max_hours=settings.train.max_hours, budget_usd=settings.train.budget_usd)


def how_many(settings: Settings, asked: str | None) -> int:
    """How many workers train: the flag's, else the setting's, else all. Raises UsageError."""
    size = settings.fleet.size
    if asked is None:
        count, name = settings.train.workers or size, "train.workers"
    elif asked.isdecimal() and len(asked) < 6 and int(asked) > 0:
        count, name = int(asked), "train: --workers"
    else:
        raise UsageError(f"train: --workers: expected a whole number from 1 to {size}, found {asked!r}")
    if count > size:
        raise UsageError(f"{name}: {count} workers, but the fleet has {size}; take fewer, or raise fleet.size")
    rows = settings.train.rows_per_step
    if count > rows:
        raise UsageError(
            f"train.rows_per_step: {rows} packed rows in a step, too few for {count} workers; raise it, or take "
            f"--workers {rows}"
        )
    return count


def with_trial_file(settings: Settings, file: str | None) -> tuple[Settings, Trial | None]:
    """The trial of a file to start from, and the settings with its lengths. Raises UsageError."""
    if file is None:
        return settings, None
    found = read_trials(settings, file, None, flag="train: --trial")
    if len(found) != 1:
        raise UsageError(f"train: --trial: {file}: expected one trial, found {len(found)}; `inv tune` writes best.json")
    (given,) = found
    if given.model != settings.model.path:
        raise UsageError(
            f"train: --trial: {file}: is for the model {given.model}, but model.path is {settings.model.path}; "
            "its configuration says nothing about another model: change the setting or the file"
        )
    if unknown := [name for name in given.lora_targets if name not in ALL_LINEAR]:
        raise UsageError(
            f"train: --trial: {file}: lora_targets: {unknown[0]!r} is no layer of this architecture; "
            f"it has {', '.join(ALL_LINEAR)}"
        )
    lengths = {"max_seq_len": given.max_seq_len, "micro_batch_size": given.micro_batch_size}
    train = settings.train.model_copy(update=lengths)
    return settings.model_copy(update={"train": train}), given


def trial_of(settings: Settings, given: Trial | None, *, workers: int, max_hours: float | None) -> Trial:
    """The training as a trial over `workers` ranks; `given` is the trial of a file. Raises UsageError by setting."""
    train, data = settings.train, data_of(settings)
    with translate_errors(UsageError, TrialError, before="train."):
        training = Training(data=data, max_hours=max_hours, **_of(train, OF_THE_TRAINING))
        trial = Trial(
            name=TRIAL_ID,
            reason="the training of this run",
            suite=TRAIN,
            kind="finetune",
            profile=settings.bench.profile,
            model=settings.model.path,
            data=data.files[0],
            layout="varlen",
            world_size=workers,
            lora_targets=TARGETS[train.lora_targets],
            deadline_sec=DEADLINE_SEC,
            training=training,
            **_of(train, OF_THE_TRIAL),
        )
    return trial if given is None else dataclasses.replace(trial, **_of(given, FROM_THE_FILE))


def _of(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}
