"""Published reference results (`published.yaml`), and whether a run measured the same thing.

A run is compared with them only if its profile is gpu and its model has the published number of parameters: with
another model the numbers mean something else.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.records import schema
from reports.read.loaded_run import Run

_FILE = Path(__file__).parents[1] / "published.yaml"
# Settings of every published training; a configuration that differs in one of them is not comparable.
_COMMON = {
    "gradient_accumulation_steps": 1,
    "layout": "pad",
    "base_precision": "nf4",
    "lora_rank": 16,
    "optimizer": "paged_adamw_8bit",
    "gradient_checkpointing": True,
    "data_workers": 0,
}


@dataclass(frozen=True, kw_only=True)
class PublishedTraining:
    """A published configuration, with every rate that was published for it."""

    max_seq_len: int
    micro_batch_size: int
    samples_per_sec: tuple[float, ...]
    peak_vram_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Factor:
    """The effect of one changed field on samples per second, also as text; `samples_ratio` is None if it failed."""

    field: str
    value: Any
    samples_ratio: float | None
    words: str  # vocabulary: a key of published.yaml


@dataclass(frozen=True, kw_only=True)
class PublishedScaling:
    """A published scaling record: samples per second of all GPUs, and percent of linear, by number of GPUs."""

    name: str
    samples_per_sec: dict[int, float]
    efficiency_percent: dict[int, float]


@dataclass(frozen=True, kw_only=True)
class PublishedResults:
    """The published.yaml data. `loading`: precision -> name -> value. `inference`: precision -> batch -> tokens/s."""

    source: str
    model_parameters: int
    training: tuple[PublishedTraining, ...]
    factors: tuple[Factor, ...]
    hardware: dict[str, float]
    loading: dict[str, dict[str, float]]
    inference: dict[str, dict[int, float]]
    scaling: tuple[PublishedScaling, ...]
    cost_10000_samples: dict[str, Any]

    def find_training(self, trial: Any) -> PublishedTraining | None:
        """Return the published configuration that a trial repeats, or None."""
        if any(getattr(trial, name) != value for name, value in _COMMON.items()):
            return None
        shape = (trial.max_seq_len, trial.micro_batch_size)
        return next(
            (training for training in self.training if (training.max_seq_len, training.micro_batch_size) == shape), None
        )


@functools.cache
def read() -> PublishedResults:
    """Read published.yaml."""
    return schema.from_json(PublishedResults, yaml.safe_load(_FILE.read_text(encoding="utf-8")))


def matching_results(run: Run) -> PublishedResults | None:
    """Return the published results if this run measured the same thing, else None."""
    if run.record.profile != "gpu":
        return None
    published = read()
    parameters = {
        result.fingerprint["model_parameters"] for result in run.results if "model_parameters" in result.fingerprint
    }
    return published if parameters == {published.model_parameters} else None


def training_by_label(run: Run, published: PublishedResults | None) -> dict[str, PublishedTraining]:
    """Map each configuration that repeats a published one to that one."""
    if published is None:
        return {}
    matches = {
        configuration.label: published.find_training(configuration.planned[0].trial)
        for configuration in run.configurations
        if configuration.workload.is_compared
    }
    return {label: training for label, training in matches.items() if training is not None}
