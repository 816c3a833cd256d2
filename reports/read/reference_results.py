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
from bench.records.trial import Trial
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
class PublishedResults:
    """The data of published.yaml, which says what they are.

    `training` are configurations with every rate that was published for each, `factors` changes of one field with
    their effect as ratio (None: it failed) and text, `scaling` records of several GPUs. `loading` maps precision to
    name to value, `inference` precision to batch to tokens per second.
    """

    source: str
    model_parameters: int
    training: tuple[dict[str, Any], ...]
    factors: tuple[dict[str, Any], ...]
    hardware: dict[str, float]
    loading: dict[str, dict[str, float]]
    inference: dict[str, dict[int, float]]
    scaling: tuple[dict[str, Any], ...]
    cost_10000_samples: dict[str, Any]

    def find_training(self, trial: Trial) -> dict[str, Any] | None:
        """Return the published configuration that a trial repeats, or None."""
        for training in self.training:
            same = _COMMON | {name: training[name] for name in ("max_seq_len", "micro_batch_size")}
            if all(getattr(trial, name) == value for name, value in same.items()):
                return training
        return None


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


def training_by_label(run: Run, published: PublishedResults | None) -> dict[str, dict[str, Any]]:
    """Map each configuration that repeats a published one to that one."""
    trained = [each for each in run.configurations if published is not None and each.workload.is_compared]
    return {
        configuration.label: training
        for configuration in trained
        if published is not None and (training := published.find_training(configuration.planned[0].trial))
    }
