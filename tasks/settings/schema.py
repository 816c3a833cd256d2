"""Schema of the settings: type, range and default of each, by section. The comments in `invoke.yaml` explain them."""

import os
import re
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from bench.records import Trial
from bench.records.paths import DEMO_INPUTS
from bench.records.training import Training, TrainingData
from bench.records.trial import SUITE_NAMES
from bench.records.validation import settings_of
from remote.cluster.quantities import parse_quantity
from remote.hosts.connectors import CONNECTORS
from remote.providers import PROVIDERS
from tasks.settings.sources import Keys

AUTO = "auto"
AUTO_WORKERS = 4  # the most workers of `fleet.size: auto` on one machine, and the number over pods
_EXPONENT = re.compile(r"[-+]?[0-9]{1,20}(\.[0-9]{0,20})?[eE][-+]?[0-9]{1,4}")


def _check_printable(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("blank, or with control characters")
    return value


def _list_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # a YAML `!!set` has no order and stays invalid


def _int_to_text(value: object) -> object:
    return str(value) if type(value) is int else value  # `cpu: 4` is a number in YAML, and valid in Kubernetes


Text = Annotated[str, AfterValidator(_check_printable)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_list_to_tuple)]


if TYPE_CHECKING:
    SuiteName = str
else:
    SuiteName = Literal[SUITE_NAMES]


class Section(BaseModel):
    # Strict: "4" instead of 4 in a file is an error. load.py casts text from the environment.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _parse_exponent(cls, value: object, info: ValidationInfo) -> object:
        # In YAML 1.1, 2e-4 without a decimal point is text.
        if isinstance(value, str) and info.field_name is not None and _EXPONENT.fullmatch(value):
            return float(value) if value_type(cls.model_fields[info.field_name].annotation)[0] is float else value
        return value


class ModelSection(Section):
    path: Text = Field(default=DEMO_INPUTS[False][0], description="a folder's path")


class DataSection(Section):
    path: Text = Field(default=DEMO_INPUTS[False][1], description="a file's path")


class ResultsSection(Section):
    folder: Text = Field(default="results", description="a folder's path")


def local_workers(threads: int = 1, *, uses_gpus: bool = False) -> int:
    """Return the number of workers of this machine: one per GPU, else one per `threads` cores; at most 4.

    Workers that share a core or a GPU measure each other.
    """
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*"))) if uses_gpus else 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(AUTO_WORKERS, gpus or cores // threads))


class LocalSection(Section):
    folder: Text = Field(default=".workers", description="a folder's path")
    threads: int = Field(default=1, ge=1, le=256)


class PodsSection(Section):
    selector: Text = Field(
        default="app.kubernetes.io/name=bench,app.kubernetes.io/component=worker", description="a label selector"
    )
    container: Text = Field(default="bench", description="a container's name")
    python: Text = Field(default="python3", description="a program in the image")
    scratch: Text = Field(default="/scratch/qlora-fleet", pattern="^/", description="an absolute path in the pod")
    shared: Text | None = Field(default=None, pattern="^/", description="an absolute path in the pod")
    threads: int = Field(default=4, ge=1, le=256)


class FleetSection(Section):
    kind: Text = Field(default="local", description="the name of a connector")
    # `auto` in a file or in the environment is resolved by `tasks.settings.load`, so that all others read a number.
    size: int = Field(default_factory=local_workers, ge=1, le=1024, description="auto, or a whole number")
    workspace: Text | None = Field(default=None, description="a folder's path")
    lost_after_sec: float = Field(default=60.0, ge=1, le=86_400)
    reconnect_timeout_sec: float = Field(default=600.0, ge=1, le=604_800)
    login_timeout_sec: float = Field(default=86_400.0, ge=1, le=604_800)
    max_attempts: int = Field(default=2, ge=1, le=10)
    after_success: Literal["keep", "teardown"] = "keep"
    local: LocalSection = LocalSection()
    pods: PodsSection = PodsSection()

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.kind not in CONNECTORS:
            context = {"at": ("fleet", "kind"), "name": "fleet.kind", "found": f'"{self.kind}"'}
            raise PydanticCustomError(TWO_SETTINGS, f"one of {', '.join(CONNECTORS)}", context)
        return self


class BenchSection(Section):
    suite: SuiteName = "quick"
    profile: Literal["gpu", "tiny"] = "tiny"
    spread: Literal["replicate", "shard"] = "replicate"
    repeats: int | None = Field(default=None, ge=1, le=100)
    day_effect_percent: float = Field(default=1.0, ge=0, le=100)
    strict: bool = False
    quality: bool = False
    only: Texts = Field(default=(), description="a list of trial ids")
    deadline_sec: float | None = Field(default=None, ge=1, le=604_800)
    warmup_steps: int | None = Field(default=None, ge=0, le=10_000)
    measured_steps: int | None = Field(default=None, ge=1, le=100_000)
    learning_rate: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(default=42, ge=0, le=2**31 - 1)


TWO_SETTINGS = "two_settings"  # pydantic error type: the message is the expected value, the context has the place
SOURCE_SETTINGS = {
    "price_usd_per_gpu_hour": "price_source",
    "hosted_usd_per_10000_samples": "hosted_source",
    "hosted_usd_per_million_tokens": "hosted_source",
}


class TuneSection(Section):
    recipes: Texts = Field(
        default=("reference", "stock", "fast"),
        description="a list of reference, stock, fast, fast-int8-backward, fast-int8",
    )
    length_percentile: int = Field(default=99, ge=90, le=100)
    memory_gib: float | None = Field(default=None, gt=0, le=1024)
    trials: int = Field(default=8, ge=1, le=1000)
    repeats: int = Field(default=2, ge=1, le=20)
    quality: bool = True
    lora_targets: Literal["attention", "all-linear"] = "attention"
    lora_rank: int = Field(default=16, ge=1, le=1024)


class QualitySection(Section):
    max_increase_percent: float = Field(default=0.15, gt=0, le=100)
    pairs: int | None = Field(default=None, ge=2, le=100)
    max_pairs: int = Field(default=16, ge=2, le=100)
    steps: int = Field(default=60, ge=1, le=100_000)


def value_type(kind: Any) -> tuple[Any, bool]:
    """Return a type without `| None` and annotations, and True if it may be null."""
    parts = typing.get_args(kind)
    is_nullable = type(None) in parts
    if is_nullable:
        kind = next(part for part in parts if part is not type(None))
    return (typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind), is_nullable


SETTING_TYPES: dict[Any, Any] = {str: Text, tuple[str, ...]: Texts}  # types that differ from the record's
TRAIN_RECORDS = (TrainingData, Trial, Training)  # their declared settings are in the section `train`


def declared_fields(records: Iterable[type]) -> dict[str, Any]:
    """Return the fields of a section for the settings that these records declare (`bench.records.validation`)."""
    fields: dict[str, Any] = {}
    for record in records:
        annotations = typing.get_type_hints(record)
        for name, declared in settings_of(record).items():
            plain, is_nullable = value_type(annotations[name])
            is_nullable |= declared.usual is not None
            value_annotation = Literal[declared.choices] if declared.choices else SETTING_TYPES.get(plain, plain)
            bounds = {rule: getattr(declared, rule) for rule in ("ge", "gt", "le")}
            info = Field(default=declared.default, description=declared.expected or None, **bounds)
            fields[declared.name] = (value_annotation | None if is_nullable else value_annotation, info)
    return fields


class _TrainingFleet(Section):
    """Settings of a training that no record declares: the fleet's part, and those with another form in the record."""

    data: Texts = Field(default=(), description="a list of data files")
    data_weights: Annotated[tuple[float, ...], BeforeValidator(_list_to_tuple)] = Field(
        default=(), description="a list of numbers, one for each file of train.data"
    )
    lora_targets: Literal["attention", "all-linear"] = "attention"
    workers: int | None = Field(default=None, ge=1, le=1024)
    max_restarts: int = Field(default=10, ge=0, le=1000)
    replacement_timeout_sec: float = Field(default=600.0, ge=1, le=604_800)
    budget_usd: float | None = Field(default=None, gt=0, le=10_000_000)
    max_hours: float | None = Field(default=None, gt=0, le=8760)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def train_section(records: Iterable[type]) -> type[_TrainingFleet]:
    """Build the section `train`."""
    return create_model("TrainSection", __base__=_TrainingFleet, **declared_fields(records))


if TYPE_CHECKING:
    TrainSection = _TrainingFleet
else:
    TrainSection = train_section(TRAIN_RECORDS)


class BuildSection(Section):
    host: Text | None = Field(default=None, description="an SSH destination")
    user: Text | None = Field(default=None, description="a user's name there")
    port: int | None = Field(default=None, ge=1, le=65535)
    identity: Text | None = Field(default=None, description="a private key's path")
    tmpdir: Text | None = Field(default=None, description="an absolute path on the VM")


class ImageSection(Section):
    profile: Text = Field(default="current", description="a profile of image/profiles.yaml")
    name: Text = Field(default="qlora-fleet", description="an image's name without a tag")
    base: Text | None = Field(default=None, description="an image, best with its digest")
    python: Text | None = Field(default=None, description="a version like 3.12")
    target: Literal["prod", "dev"] = "prod"
    models: Texts = Field(default=(), description="a list of models, each an organisation and a name")
    extra_packages: Texts = Field(default=(), description="a list of the base's packages")
    index_url: Text | None = Field(default=None, description="a package index's address")
    wheels: Text | None = Field(default=None, description="a folder's path")
    pip_conf: Text | None = Field(default=None, description="a file's path on the VM")
    network: Literal["default", "host", "none"] = "default"
    client: Text = Field(default="docker", description="a program's name or path")
    engine: Text | None = Field(default=None, description="an engine's address")
    torch: Literal["wheel", "source"] = "wheel"
    extension: Text | None = Field(default=None, description="a folder's path")
    nvcc: bool = False
    apt_snapshot: Text | None = Field(
        default=None, pattern=r"^\d{8}T\d{6}Z$", description="a time like 20260901T000000Z, as text"
    )
    cache_from: Texts = Field(default=(), description="a list of images in a registry")
    cache_to: Text | None = Field(default=None, description="inline, or an image's name in a registry")
    deadline_sec: float = Field(default=14_400.0, ge=60, le=604_800)


class RegistrySection(Section):
    image: Text | None = Field(default=None, description="a name like HOST/REPOSITORY:TAG")
    user: Text | None = Field(default=None, description="a user's name at the registry")
    password_file: Text | None = Field(default=None, description="a file's path")
    token_hosts: Texts = Field(default=(), description="a list of hosts' names")


class HubSection(Section):
    endpoint: Text | None = Field(default=None, description="an address like https://huggingface.co")
    token_file: Text | None = Field(default=None, description="a file's path")


class CostSection(Section):
    price_usd_per_gpu_hour: float | None = Field(default=None, gt=0, le=1000)
    price_source: Text | None = Field(default=None, description="text that says where the price is from")
    shape: Text | None = Field(default=None, description="a shape's name in the table of prices")
    prices: Text | None = Field(default=None, description="a file's path")
    hosted_usd_per_10000_samples: float | None = Field(default=None, gt=0, le=1_000_000)
    hosted_usd_per_million_tokens: float | None = Field(default=None, gt=0, le=1_000_000)
    hosted_source: Text | None = Field(default=None, description="text that says where the price is from")

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        for value, source in SOURCE_SETTINGS.items():
            if getattr(self, value) is not None and getattr(self, source) is None:
                context = {"at": ("cost", value), "name": f"cost.{source}", "found": "null"}
                raise PydanticCustomError(TWO_SETTINGS, "text that says where the price is from", context)
        return self


class ServeSection(Section):
    image: Text | None = Field(default=None, description="an image with its digest, HOST/REPOSITORY@sha256:...")
    name: Text = Field(
        default="tuned", pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]{0,62}$", description="a name of letters, digits, '-'"
    )
    arguments: Texts = Field(default=(), description="a list of words")


_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # Kubernetes: RFC 1123 label
_QUANTITY = r"^[1-9][0-9]*(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"

Name = Annotated[str, Field(pattern=_NAME)]
NodeLabel = Annotated[Text, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
Quantity = Annotated[str, BeforeValidator(_int_to_text), Field(pattern=_QUANTITY)]
_NAME_TEXT = "a Kubernetes name (lower-case letters, digits, '-')"


class NotifySection(Section):
    command: Texts = Field(default=(), description="a list: a program and its arguments")


class VolumeSection(Section):
    handle: Text | None = Field(default=None, pattern=r"^\S+:/\S*$", description="text like SERVER:/EXPORT")
    capacity: Quantity = Field(default="200Gi", description="a Kubernetes quantity like 200Gi")


class ClusterSection(Section):
    provider: Text = Field(default=AUTO, description="the name of a provider")
    kubeconfig: Text | None = Field(default=None, description="a file's path")
    context: Text | None = Field(default=None, description="the name of a kubeconfig's context")
    namespace: Name = Field(default="qlora-fleet", description=_NAME_TEXT)
    overlay: Literal[
        "pods", "preemptible", "interactive", "job-1gpu", "job-4gpu", "job-4gpu-jobset", "job-4gpu-kueue"
    ] = "pods"
    image: Text | None = Field(default=None, description="an image with its digest, HOST/REPOSITORY@sha256:...")
    pull_secret: Name | None = Field(default=AUTO, description=_NAME_TEXT)
    instance_type: NodeLabel | None = Field(default=None, description="a node's label")
    preemptible: bool = False
    one_per_node: bool = True
    gpus_per_pod: int = Field(default=1, ge=1, le=16)
    gpu: NodeLabel | None = Field(default=None, description="a node's label, or any")
    cpu: Quantity = Field(default="4", description="a Kubernetes quantity like 4 or 500m")
    cpu_limit: Quantity | None = Field(default=None, description="a Kubernetes quantity like 4 or 500m")
    memory: Quantity = Field(default="24Gi", description="a Kubernetes quantity like 24Gi")
    shm: Quantity = Field(default="4Gi", description="a Kubernetes quantity like 4Gi")
    scratch: Quantity = Field(default="10Gi", description="a Kubernetes quantity like 10Gi")
    queue: Name = Field(default="qlora-fleet", description=_NAME_TEXT)
    ready_timeout_sec: float = Field(default=1800.0, ge=1, le=86_400)
    volume: VolumeSection = VolumeSection()

    @model_validator(mode="after")
    def _check_provider(self) -> Self:
        if self.provider not in (AUTO, *PROVIDERS):
            context = {"at": ("cluster", "provider"), "name": "cluster.provider", "found": repr(self.provider)}
            raise PydanticCustomError(TWO_SETTINGS, f"one of {', '.join((AUTO, *PROVIDERS))}", context)
        return self

    @model_validator(mode="after")
    def _check_shm(self) -> Self:
        if parse_quantity(self.shm) > parse_quantity(self.memory):
            context = {"at": ("cluster", "shm"), "name": "cluster.shm", "found": self.shm}
            raise PydanticCustomError(
                TWO_SETTINGS, f"at most cluster.memory, {self.memory}, of which it is a part", context
            )
        return self

    @model_validator(mode="after")
    def _check_cpu_limit(self) -> Self:
        if self.cpu_limit is not None and parse_quantity(self.cpu_limit) < parse_quantity(self.cpu):
            context = {"at": ("cluster", "cpu_limit"), "name": "cluster.cpu_limit", "found": self.cpu_limit}
            raise PydanticCustomError(TWO_SETTINGS, f"at least cluster.cpu, {self.cpu}", context)
        return self


class TenancySection(Section):
    auth: Literal["config", "instance_principal"] = "config"
    config_file: Text = Field(default="~/.oci/config", description="a file's path")
    profile: Text = Field(default="DEFAULT", description="the name of a profile in that file")
    region: Text | None = Field(default=None, description="a region like eu-frankfurt-1")
    compartment: Text | None = Field(default=None, description="a compartment's name or OCID")


class Sections(Section):
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    results: ResultsSection = ResultsSection()
    fleet: FleetSection = FleetSection()
    bench: BenchSection = BenchSection()
    tune: TuneSection = TuneSection()
    quality: QualitySection = QualitySection()
    train: TrainSection = TrainSection()
    build: BuildSection = BuildSection()
    image: ImageSection = ImageSection()
    registry: RegistrySection = RegistrySection()
    hub: HubSection = HubSection()
    cost: CostSection = CostSection()
    notify: NotifySection = NotifySection()
    serve: ServeSection = ServeSection()
    cluster: ClusterSection = ClusterSection()
    tenancy: TenancySection = TenancySection()


def _leaves(model: type[Section], parents: Keys = ()) -> Iterator[Keys]:
    for name, info in model.model_fields.items():
        subsection = section_type(info)
        if subsection is None:
            yield (*parents, name)
        else:
            yield from _leaves(subsection, (*parents, name))


def section_type(info: FieldInfo) -> type[Section] | None:
    """Return the section class of a field; None for a field with a value."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def field(keys: Keys) -> FieldInfo:
    """Return the field of a setting, e.g. of ("fleet", "size")."""
    model: type[Section] = Sections
    for key in keys[:-1]:
        model = typing.cast("type[Section]", model.model_fields[key].annotation)
    return model.model_fields[keys[-1]]


LEAVES: tuple[Keys, ...] = tuple(_leaves(Sections))


def expected_text(info: FieldInfo) -> str:
    """Describe the values that a setting accepts: its description or type, and its range."""
    kind, is_nullable = value_type(info.annotation)
    bounds = {name: getattr(rule, name) for rule in info.metadata for name in ("ge", "gt", "le") if hasattr(rule, name)}
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        text = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    else:
        text = info.description or {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
    if "ge" in bounds:
        text += f" from {bounds['ge']} to {bounds['le']}"
    if "gt" in bounds:
        text += f" above {bounds['gt']}, at most {bounds['le']}"
    return f"{text}, or null" if is_nullable else text
