"""`inv data.check`: one worker reads the data as a training would, and what it found is shown.

Every worker has the same files (`inv bench` and `inv train` refuse others), so one is asked. Examples are kept in its
work folder: the next look, and the training, read them from there.
"""

import json
from pathlib import Path

from invoke.context import Context

from bench.records import TrialError, schema
from bench.records.training_data import DataReport, TrainingData
from tasks.cli.terminal import console
from tasks.connect.workers import examined, workers
from tasks.errors import Resumable, UsageError
from tasks.settings.load import Settings, load
from tasks.train import printed

SETTINGS = {"files": "data", "validation_share": "validation"}  # of the record's fields with another name


def check_data(context: Context, page: str | None, *, as_json: bool) -> None:
    settings = load(context)
    spec = data_of(settings)
    report = _report(examined(settings, workers(settings)[0], spec, row_tokens=row_tokens(settings)))
    if as_json:
        print(json.dumps(schema.to_json(report), indent=1, ensure_ascii=False))
    else:
        printed.show(console(), report, settings)
    if page is not None:
        _write(Path(page), printed.page(report, settings))


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
        raise UsageError(f"train.{SETTINGS.get(field, field)}: {message}") from None


def row_tokens(settings: Settings) -> int:
    """Tokens of one packed row: as many as a padded micro-batch has."""
    return settings.train.micro_batch_size * settings.train.max_seq_len


def _report(answer: object) -> DataReport:
    try:
        return schema.from_json(DataReport, answer)
    except schema.SchemaError as error:
        raise Resumable(f"the worker's answer cannot be read: {error}; is its bench of another version?") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"data.check: --page: {path}: {error.strerror}; name another file") from None
    print(path)
