"""A training's steps.jsonl: its steps and held-out losses so far, one per line."""

import dataclasses
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.training import Evaluation, TrainedSteps

_MAX_STEPS_BYTES = 1 << 30
_COLUMNS = [field.name for field in dataclasses.fields(TrainedSteps)]


def read(path: Path) -> tuple[TrainedSteps, list[Evaluation]]:
    """Read the steps and held-out losses; empty without the file. Raises OSError.

    Skips invalid lines, such as a truncated last line.
    """
    try:
        lines = read_regular(path, max_bytes=_MAX_STEPS_BYTES, follow=False).splitlines()
    except FileNotFoundError:
        lines = []
    rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    evaluations = []
    for line in lines:
        try:
            document = schema.parse(line)
            if "evaluation" in document:
                evaluations.append(schema.from_json(Evaluation, document["evaluation"]))
                continue
            step = schema.from_json(TrainedSteps, {name: [document[name]] for name in _COLUMNS})
        except (ValueError, TypeError, KeyError):
            continue
        for name in _COLUMNS:
            rows[name] += getattr(step, name)
    return TrainedSteps(**rows), evaluations
