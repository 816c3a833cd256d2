"""Published results as data (`published.yaml`), and whether a run measured the same thing.

Only a run of profile gpu whose model has the published one's number of parameters stands beside them; on a model of
another size, or scaled down, the same words would mean something else.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reports.read.run import Run

_FILE = Path(__file__).parents[1] / "published.yaml"
# What every published training has in common; a row that differs in one of these measured something else.
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
    """One published configuration. Several rates where several were published."""

    max_seq_len: int
    micro_batch_size: int
    samples_per_sec: tuple[float, ...]
    usd_per_1000_samples: float
    peak_vram_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What one changed field does to samples per second; `samples_ratio` is None where it ended in `words`."""

    field: str
    value: Any
    samples_ratio: float | None
    words: str


@dataclass(frozen=True, kw_only=True)
class PublishedScaling:
    """One record of scaling: samples per second of all GPUs, and percent of linear, by number of GPUs."""

    name: str
    samples_per_sec: Mapping[int, float]
    efficiency_percent: Mapping[int, float]


@dataclass(frozen=True, kw_only=True)
class Published:
    """All of published.yaml. `loading` maps precision to name to value; `inference` precision to batch to tokens/s."""

    source: str
    model_parameters: int
    training: tuple[PublishedTraining, ...]
    factors: tuple[Factor, ...]
    hardware: Mapping[str, float]
    loading: Mapping[str, Mapping[str, float]]
    inference: Mapping[str, Mapping[int, float]]
    scaling: tuple[PublishedScaling, ...]
    cost_10000_samples: Mapping[str, Any]

    def training_like(self, trial: Any) -> PublishedTraining | None:
        """The published configuration that a trial measured again, or None."""
        if any(getattr(trial, name) != value for name, value in _COMMON.items()):
            return None
        like = (trial.max_seq_len, trial.micro_batch_size)
        return next((one for one in self.training if (one.max_seq_len, one.micro_batch_size) == like), None)


@functools.cache
def read() -> Published:
    """published.yaml."""
    document: dict[str, Any] = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    document["training"] = tuple(
        PublishedTraining(**(one | {"samples_per_sec": tuple(one["samples_per_sec"])})) for one in document["training"]
    )
    document["factors"] = tuple(Factor(**one) for one in document["factors"])
    document["scaling"] = tuple(PublishedScaling(**one) for one in document["scaling"])
    return Published(**document)


def beside(run: Run) -> Published | None:
    """The published results where this run measured the same thing, else None."""
    if run.record.profile != "gpu":
        return None
    found = read()
    parameters = {
        result.fingerprint["model_parameters"] for result in run.results if "model_parameters" in result.fingerprint
    }
    return found if parameters == {found.model_parameters} else None


def training_by_label(run: Run, known: Published | None) -> dict[str, PublishedTraining]:
    """Configuration's label -> the published one it measured again; configurations without one are left out."""
    if known is None:
        return {}
    found = {
        configuration.label: known.training_like(configuration.planned[0].trial)
        for configuration in run.configurations
        if configuration.kind == "training"
    }
    return {label: like for label, like in found.items() if like is not None}
