"""A training's steps.jsonl: what it has measured so far, a line for each step and each held-out loss."""

import dataclasses
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.training import Evaluation, TrainedSteps

_MOST_BYTES = 1 << 30
_COLUMNS = [each.name for each in dataclasses.fields(TrainedSteps)]


def read(path: Path) -> tuple[TrainedSteps, list[Evaluation]]:
    """The steps and held-out losses there are; none without the file. Left out is what is no line of ours, such as a
    last line that was cut. Raises OSError."""
    try:
        lines = read_regular(path, most_bytes=_MOST_BYTES, follow=False).splitlines()
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
            one = schema.from_json(TrainedSteps, {name: [document[name]] for name in _COLUMNS})
        except (ValueError, TypeError, KeyError):
            continue
        for name in _COLUMNS:
            rows[name] += getattr(one, name)
    return TrainedSteps(**rows), evaluations
