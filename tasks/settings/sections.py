"""Sections of the settings. A setting is declared in the module that uses it: here are those of the commands.

`invoke.yaml` is written from the declarations: `UPDATE_GOLDEN=1 pytest tests/golden/test_invoke_yaml.py`.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.records import Trial
from bench.records.paths import DEMO_INPUTS
from bench.records.training import Training, TrainingData
from bench.records.trial import PROFILES, SUITE_NAMES
from bench.records.validation import AUTO, LORA_TARGETS, FieldError, Setting, declared_field, setting, settings_of
from remote.cluster.settings import ClusterSection
from remote.hosts.connectors import CONNECTORS
from remote.hosts.local import LocalSection
from remote.hosts.pods.host import PodsSection
from remote.image.settings import BuildSection, HubSection, ImageSection, RegistrySection
from remote.providers.oci import TenancySection
from tasks.settings.sources import Keys

AUTO_WORKERS = 4  # the most workers of `fleet.size: auto` on one machine, and the number over pods


def local_workers(threads: int = 1, *, uses_gpus: bool = False) -> int:
    """Return the number of workers of this machine: one per GPU, else one per `threads` cores; at most 4.

    Workers that share a core or a GPU measure each other.
    """
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) if uses_gpus else 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(AUTO_WORKERS, gpus or cores // threads))


@dataclass(frozen=True, kw_only=True)
class ModelSection:
    """Base model."""

    path: str = setting(
        DEMO_INPUTS[False][0], "model folder as the workers see it; relative paths start at fleet.workspace"
    )


@dataclass(frozen=True, kw_only=True)
class DataSection:
    """Data of benchmarks and trainings."""

    path: str = setting(
        DEMO_INPUTS[False][1],
        "chats (JSONL, JSON, CSV, Parquet, gzip, zstd) as workers see them; relative paths start at fleet.workspace",
    )


@dataclass(frozen=True, kw_only=True)
class ResultsSection:
    """Runs on this machine."""

    folder: str = setting("results", "folder for runs on this machine; relative paths start at this file's folder")


@dataclass(frozen=True, kw_only=True)
class FleetSection:
    """Workers, and how long they are waited for."""

    kind: str = setting(
        "local", "local: worker processes on this machine; pods: the pods that `inv deploy` made", choices=CONNECTORS
    )
    size: int = setting(
        AUTO,
        "number of workers; auto: 4 pods, or on this machine one worker per core, at most 4",
        stored_default=local_workers,
        ge=1,
        le=1024,
        expected="auto, or a whole number",
    )
    workspace: str | None = setting(
        None, "working directory of `python -m bench` on a worker; null: this file's folder (pods: /workspace)"
    )
    lost_after_sec: float = setting(
        60.0, "time without contact after which a worker is lost", unit="seconds", ge=1, le=86_400
    )
    reconnect_timeout_sec: float = setting(
        600.0, "time to wait for a lost worker to answer again", unit="seconds", ge=1, le=604_800
    )
    login_timeout_sec: float = setting(
        86_400.0, "time to wait while your credentials are rejected; then exit 3", unit="seconds", ge=1, le=604_800
    )
    max_attempts: int = setting(2, "attempts of a trial that was lost or preempted", ge=1, le=10)
    local: LocalSection = field(default_factory=LocalSection)
    pods: PodsSection = field(default_factory=PodsSection)


@dataclass(frozen=True, kw_only=True)
class BenchSection:
    """`inv bench`."""

    suite: str = setting(
        "quick",
        f"suite of trials: {', '.join(SUITE_NAMES)}",
        choices=SUITE_NAMES,
    )
    profile: str = setting(
        "tiny", "tiny: scaled down for a machine without a GPU; gpu: the published sizes", choices=PROFILES
    )
    repeats: int | None = setting(
        None, "processes per trial and worker; null: 2 where one worker compares configurations, else 1", ge=1, le=100
    )
    day_effect_percent: float = setting(
        1.0,
        "difference of two runs of equal code, for inv compare; from four earlier runs on, they show it",
        unit="percent",
        ge=0,
        le=100,
    )
    quality: bool = setting(
        False, "true: also compare the held-out loss of the fastest configuration with the reference (section quality)"
    )
    deadline_sec: float | None = setting(
        None, "time limit of one trial; null, here and below: the suite's value", unit="seconds", ge=1, le=604_800
    )
    warmup_steps: int | None = setting(None, "optimizer steps before measuring", ge=0, le=10_000)
    measured_steps: int | None = setting(None, "optimizer steps to measure", ge=1, le=100_000)
    learning_rate: float | None = setting(None, "learning rate", gt=0, le=1)
    seed: int = setting(
        42, "random seed of the adapter's initial weights, dropout and the order of samples", ge=0, le=2**31 - 1
    )


@dataclass(frozen=True, kw_only=True)
class QualitySection:
    """Held-out losses after pairs of short trainings, of `inv bench --quality`."""

    max_increase_percent: float = setting(
        0.15, "increase of the loss that counts as the same loss", unit="percent", gt=0, le=100
    )
    pairs: int = setting(8, "pairs of trainings; an undecided comparison says how many it needs", ge=2, le=100)
    steps: int = setting(60, "optimizer steps of each training", ge=1, le=100_000)


@dataclass(frozen=True, kw_only=True)
class TrainingInputs:
    """Settings of the section train that have another form in the record."""

    data: tuple[str, ...] = setting(
        (), "data files as the workers see them, or patterns, e.g. [data/a.jsonl, data/b-*.parquet]; empty: data.path"
    )
    lora_targets: str = setting(
        "attention",
        "layers with LoRA adapters: attention (q, k, v, o), or all-linear (gate, up and down as well)",
        choices=LORA_TARGETS,
    )


@dataclass(frozen=True, kw_only=True)
class TrainingFleet:
    """Settings of the section train that no record has."""

    workers: int | None = setting(None, "number of workers of the fleet that train; null: all", ge=1, le=1024)
    max_restarts: int = setting(
        10, "restarts after a lost or preempted worker; then `inv train --resume` continues", ge=0, le=1_000
    )


TRAIN_RECORDS = (TrainingInputs, TrainingData, Trial, Training, TrainingFleet)


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class TrainSection:
        """`inv train` and `inv data.check`."""

        def __getattr__(self, name: str) -> Any: ...
else:
    _declared = [each for record in TRAIN_RECORDS for each in settings_of(record).values()]
    TrainSection = dataclasses.make_dataclass(
        "TrainSection",
        [(each.name, Any, declared_field(each)) for each in _declared],
        namespace={"__doc__": "`inv train` and `inv data.check`."},
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class CostSection:
    """Prices in reports and forecasts."""

    price_usd_per_gpu_hour: float | None = setting(
        None,
        "price of a worker GPU and hour; null: the price in the table for the workers' GPU",
        unit="US dollars",
        gt=0,
        le=1_000,
    )
    price_source: str | None = setting(
        None, 'source and date of that price, e.g. "list price B95909, 2025-06"; required with a price'
    )
    shape: str | None = setting(
        None, "shape whose price applies, e.g. VM.GPU.A10.1; null: the shape in the table with the workers' GPU"
    )
    prices: str | None = setting(
        None, "table of prices, like reports/prices.yaml; relative paths start at this file's folder"
    )
    hosted_usd_per_10000_samples: float | None = setting(
        None,
        "price of a hosted service for fine-tuning on 10,000 samples, for comparison",
        unit="US dollars",
        gt=0,
        le=1_000_000,
    )
    hosted_usd_per_million_tokens: float | None = setting(
        None, "its price for a million trained tokens, as most services charge", unit="US dollars", gt=0, le=1_000_000
    )
    hosted_source: str | None = setting(None, "source and date of these prices; required with a price")

    def __post_init__(self) -> None:
        """Check that each price has its source. Raises FieldError."""
        for name in ("price_usd_per_gpu_hour", "hosted_usd_per_10000_samples", "hosted_usd_per_million_tokens"):
            source = f"{name.partition('_')[0]}_source"
            if getattr(self, name) is not None and not (getattr(self, source) or "").strip():
                raise FieldError(
                    name, f"expected cost.{source} with it, which says where the price is from, found null"
                )


@dataclass(frozen=True, kw_only=True)
class Sections:
    """All settings."""

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    results: ResultsSection = field(default_factory=ResultsSection)
    fleet: FleetSection = field(default_factory=FleetSection)
    bench: BenchSection = field(default_factory=BenchSection)
    quality: QualitySection = field(default_factory=QualitySection)
    train: TrainSection = field(default_factory=TrainSection)
    build: BuildSection = field(default_factory=BuildSection)
    image: ImageSection = field(default_factory=ImageSection)
    registry: RegistrySection = field(default_factory=RegistrySection)
    hub: HubSection = field(default_factory=HubSection)
    cost: CostSection = field(default_factory=CostSection)
    cluster: ClusterSection = field(default_factory=ClusterSection)
    tenancy: TenancySection = field(default_factory=TenancySection)


def flatten(kind: type, parents: Keys = ()) -> tuple[dict[Keys, Setting], dict[Keys, type]]:
    """Return the settings and the sections of a section, itself included, by their keys."""
    settings: dict[Keys, Setting] = {(*parents, name): declared for name, declared in settings_of(kind).items()}
    sections: dict[Keys, type] = {parents: kind}
    for each in dataclasses.fields(kind):
        if isinstance(each.default_factory, type):
            below = flatten(each.default_factory, (*parents, each.name))
            settings, sections = settings | below[0], sections | below[1]
    return settings, sections


SETTINGS, SECTIONS = flatten(Sections)
