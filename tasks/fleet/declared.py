"""Fields of records from the settings that they declare, in the section train."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.records import Trial, TrialError
from bench.records.atomic_files import read_regular
from bench.records.training import DEFAULT_DATA_OPTIONS, DataOptions, DerivedSettings
from bench.records.validation import LORA_TARGETS, FieldError, settings_of
from tasks.errors import UsageError
from tasks.settings.layers import Settings
from tasks.settings.sections import TRAIN_RECORDS

MAX_TEMPLATE_BYTES = 48 << 10  # a job spec, with it as JSON, is an environment variable of at most 128 KiB
# The setting in the section train of each field of a record.
SETTING_NAMES = {field: setting.name for record in TRAIN_RECORDS for field, setting in settings_of(record).items()} | {
    "files": "data",
}
_DERIVED_FIELDS = tuple(field.name for field in dataclasses.fields(DerivedSettings))
_ROW_FIELDS = ("max_seq_len", "micro_batch_size")
# Fields of a trial that a benchmark measures and a trial file sets; learning rate, seed, data and others are not here.
CONFIGURATION_FIELDS = (
    *("recipe", *_ROW_FIELDS, "base_precision", "optimizer"),
    *("lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints", "held_layers", "matmul"),
)


def data_options(settings: Settings) -> DataOptions | None:
    """Build the options by which benchmarks read data, None for the defaults. Raises UsageError."""
    with setting_errors():
        options = DataOptions(**option_values(settings))
    return None if options == DEFAULT_DATA_OPTIONS else options


def option_values(settings: Settings) -> dict[str, Any]:
    """Return the values of the fields of DataOptions. Raises UsageError for a chat template that cannot be read."""
    values = declared_values(DataOptions, settings.train)
    if settings.train.chat_template is not None:
        values["chat_template"] = _read_template(settings.train.chat_template)
    return values


@contextlib.contextmanager
def setting_errors() -> Iterator[None]:
    """Turn the error of a field into a UsageError that names the setting."""
    try:
        yield
    except FieldError as error:
        setting = f"train.{SETTING_NAMES.get(error.key, error.key)}"
        raise UsageError(f"{setting}: {error.detail}", remedy=error.remedy) from error
    except TrialError as error:
        raise UsageError.from_error(error, prefix="train: ") from error


def declared_values(record: type, section: object) -> dict[str, Any]:
    """Return the values of the fields that a record declares as settings, from the section train.

    A setting that is derived from the data, and that the user has not set, has its usual value.
    """
    values = {field: getattr(section, setting.name) for field, setting in settings_of(record).items()}
    for field, setting in settings_of(record).items():
        if values[field] is None and setting.usual is not None:
            values[field] = setting.usual
    return values


def open_fields(settings: Settings) -> tuple[str, ...]:
    """Return the fields that the workers derive, because the user has not set them."""
    declared = [field for field in _DERIVED_FIELDS if field in SETTING_NAMES]
    names = [field for field in declared if getattr(settings.train, SETTING_NAMES[field]) is None]
    has_file = settings.train.validation_file is not None
    return tuple(name for name in names if not (has_file and name == "validation_share"))


def with_training_configuration(settings: Settings, trial: Trial) -> Trial:
    """Return a benchmark's trial with the data and the configuration of `inv train`.

    In a profile that scales lengths down its row stays. Raises UsageError.
    """
    values = declared_values(Trial, settings.train) | {"lora_targets": LORA_TARGETS[settings.train.lora_targets]}
    names = {name for name in CONFIGURATION_FIELDS if name in values and not (trial.is_scaled and name in _ROW_FIELDS)}
    with setting_errors():
        return dataclasses.replace(
            trial,
            data=next(iter(settings.train.data), trial.data),
            derive=tuple(name for name in open_fields(settings) if name in names),
            **{name: values[name] for name in names},
        )


def _read_template(path: str) -> str:
    """Read a chat template. Raises UsageError."""
    try:
        return read_regular(Path(path).expanduser(), max_bytes=MAX_TEMPLATE_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"train.chat_template: {path}: {reason}", remedy="name a regular file of this machine with a Jinja template"
        ) from error
