"""The trial of a training, built from settings, flags and the configuration that a benchmark recommends."""

import dataclasses
import json

from bench.records import Trial
from bench.records.training import DerivedSettings, Training, TrainingData
from bench.records.validation import LORA_TARGETS
from bench.records.workloads import FINETUNE
from tasks.errors import UsageError
from tasks.fleet.declared import (
    CONFIGURATION_FIELDS,
    SETTING_NAMES,
    declared_values,
    open_fields,
    option_values,
    setting_errors,
)
from tasks.fleet.run_store import TRAIN
from tasks.settings.layers import Settings

TRIAL_ID = "train"
# Measured on a 7B shape and on SmolLM2 with 12 seeds: docs/performance.md
INT8_OFFER = "train.matmul: int8 takes 0.61 of the time of a step on an H200, at a held-out loss of at most +0.05 %"


def training_of(trial: Trial) -> Training:
    """Return the settings of a trial that is a training."""
    if trial.training is None:
        raise ValueError("only a training has such settings")
    return trial.training


def training_data(settings: Settings) -> TrainingData:
    """Build the data specification from the settings. Raises UsageError, which names the setting."""
    train = settings.train
    files = list(train.data) or [settings.data.path]
    declared = declared_values(TrainingData, train) | option_values(settings)
    if train.validation_file is not None:
        declared["validation_share"] = 0.0
    with setting_errors():
        return TrainingData(files=files, max_seq_len=train.max_seq_len, **declared)


def worker_count(settings: Settings, flag: int | None) -> int:
    """Return the number of workers to train on: from the flag, else the setting, else all. Raises UsageError."""
    size = settings.fleet.size
    count = flag or settings.train.workers or size
    name = "train.workers" if flag is None else "train: --workers"
    if count > size:
        raise UsageError(f"{name}: {count} workers, but the fleet has {size}", remedy="use fewer, or raise fleet.size")
    rows = settings.train.rows_per_step
    if rows is not None and count > rows:
        raise UsageError(
            f"train.rows_per_step: {rows} packed rows in a step, too few for {count} workers",
            remedy=f"raise it, or pass --workers {rows}",
        )
    return count


def check_trial(settings: Settings, trial: Trial, source: str) -> Trial:
    """Return the trial. Raises UsageError if it is for another model or trains nothing."""
    if not (trial.workload.has_steps or trial.workload.has_training):
        raise UsageError(f"{source}: is of kind {trial.kind}, which trains nothing", remedy="name another trial")
    if trial.model != settings.model.path:
        raise UsageError(
            f"{source}: is for the model {trial.model}, but model.path is {settings.model.path}",
            remedy=f"set model.path to {trial.model}, or measure {settings.model.path} with `inv bench`: a "
            "configuration holds for one model only",
        )
    return trial


def with_training_row(settings: Settings, trial: Trial) -> Trial:
    """Return the trial with the row of section train if its profile measures shorter rows than the data's."""
    if not trial.is_scaled:
        return trial
    values = declared_values(Trial, settings.train)
    row = {name: values[name] for name in ("max_seq_len", "micro_batch_size")}
    return dataclasses.replace(trial, **row)


def make_trial(settings: Settings, workers: int, configuration: Trial | None = None) -> Trial:
    """Build the training's trial over `workers` ranks; a benchmark's `configuration` replaces that of the settings.

    Raises UsageError, which names the setting.
    """
    train, data = settings.train, training_data(settings)
    with setting_errors():
        values = declared_values(Training, train)
        if train.rows_per_step is None:
            values["rows_per_step"] = max(workers, values["rows_per_step"])
        training = Training(data=data, **values)
        trial = Trial(
            name=TRIAL_ID,
            reason="the training of this run",
            suite=TRAIN,
            kind=FINETUNE.name,
            profile=settings.bench.profile,
            model=settings.model.path,
            data=data.files[0],
            layout="varlen",
            world_size=workers,
            lora_targets=LORA_TARGETS[train.lora_targets],
            deadline_sec=FINETUNE.deadline_sec,
            training=training,
            derive=open_fields(settings),
            **declared_values(Trial, train),
        )
    if configuration is None:
        return trial
    return dataclasses.replace(
        trial,
        training=dataclasses.replace(training, data=dataclasses.replace(data, max_seq_len=configuration.max_seq_len)),
        derive=tuple(name for name in trial.derive if name not in CONFIGURATION_FIELDS),
        **{name: getattr(configuration, name) for name in CONFIGURATION_FIELDS},
    )


def derived_text(derived: DerivedSettings) -> list[str]:
    """Return a line with the settings that were derived from data and GPU; none without any."""
    values = {f"train.{SETTING_NAMES[key]}": value for key, value in derived.values.items() if key in SETTING_NAMES}
    text = ", ".join(
        f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()
    )
    return [f"derived from data and GPU: {text}"] if values else []
