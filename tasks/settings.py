"""Every setting, typed and checked once. `invoke.yaml` explains them; this file says what each may hold.

`load(context)` merges the layers Invoke knows (/etc/invoke.yaml, ~/.invoke.yaml, the project's invoke.yaml,
INVOKE_* variables, the -f file) and either returns frozen settings or raises UsageError with one line:

    invoke.yaml:27: fleet.size: expected a whole number from 1 to 1024, found "four"

Not covered: whether a folder or a model exists; that is looked at where it is used.
"""

from __future__ import annotations

import difflib
import os
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from invoke.config import Config
from invoke.context import Context
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from tasks import layers
from tasks.errors import UsageError
from tasks.layers import Keys, Layer, Layers, found_text


def _printable(value: str) -> str:
    if not value.strip() or not value.isprintable():
        raise ValueError("blank, or with control characters")
    return value


def _ordered(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # and not YAML's `!!set`: order is what one asked for


Text = Annotated[str, AfterValidator(_printable)]
Texts = Annotated[tuple[Text, ...], BeforeValidator(_ordered)]


class Section(BaseModel):
    # Strict: a file that says "4" where it means 4 has another mistake nearby. Text from the environment is cast here.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ModelSection(Section):
    path: Text = Field(default="models/qlora-fleet--tiny-mistral", description="a folder's path")


class DataSection(Section):
    path: Text = Field(default="data/python-docstrings.jsonl", description="a file's path")


class ResultsSection(Section):
    folder: Text = Field(default="results", description="a folder's path")


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
    kind: Literal["local", "pods"] = "local"
    size: int = Field(default=4, ge=1, le=1024)
    workspace: Text | None = Field(default=None, description="a folder's path")
    lost_after_sec: float = Field(default=60.0, ge=1, le=86_400)
    give_up_after_sec: float = Field(default=600.0, ge=1, le=604_800)
    max_attempts: int = Field(default=2, ge=1, le=10)
    local: LocalSection = LocalSection()
    pods: PodsSection = PodsSection()


class BenchSection(Section):
    suite: Literal["quick", "full", "hardware", "loading", "inference", "distributed", "recipes", "all"] = "quick"
    profile: Literal["gpu", "tiny"] = "tiny"
    spread: Literal["replicate", "shard"] = "replicate"
    repeats: int = Field(default=1, ge=1, le=100)
    strict: bool = Field(default=False, description="true or false")
    only: Texts = Field(default=(), description="a list of trial ids")
    deadline_sec: float | None = Field(default=None, ge=1, le=604_800)
    warmup_steps: int | None = Field(default=None, ge=0, le=10_000)
    measured_steps: int | None = Field(default=None, ge=1, le=100_000)
    learning_rate: float | None = Field(default=None, gt=0, le=1)
    seed: int = Field(default=42, ge=0, le=2**31 - 1)


SOURCE_OF_PRICE = {"price_usd_per_gpu_hour": "price_source", "hosted_usd_per_10000_samples": "hosted_source"}


class TuneSection(Section):
    recipes: Texts = Field(default=("reference", "stock", "fast"), description="a list of reference, stock, fast")
    keep_percent: int = Field(default=99, ge=90, le=100)
    memory_gib: float | None = Field(default=None, gt=0, le=1024)
    trials: int = Field(default=16, ge=1, le=1000)
    finalists: int = Field(default=3, ge=1, le=20)
    repeats: int = Field(default=2, ge=1, le=20)
    lora_targets: Literal["attention", "all-linear"] = "attention"
    lora_rank: int = Field(default=16, ge=1, le=1024)


class BuildSection(Section):
    host: Text | None = Field(default=None, description="what one would type after `ssh`")
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
    deadline_sec: float = Field(default=14_400.0, ge=60, le=604_800)


class RegistrySection(Section):
    image: Text | None = Field(default=None, description="a name like fra.ocir.io/namespace/repository:tag")
    user: Text | None = Field(default=None, description="a user's name in one of the three forms")
    password_file: Text | None = Field(default=None, description="a file's path")


class HubSection(Section):
    endpoint: Text | None = Field(default=None, description="an address like https://huggingface.co")
    token_file: Text | None = Field(default=None, description="a file's path")


class CostSection(Section):
    price_usd_per_gpu_hour: float | None = Field(default=None, gt=0, le=1000)
    price_source: Text | None = Field(default=None, description="text that says where the price is from")
    shape: Text | None = Field(default=None, description="a shape's name in the table of prices")
    prices: Text | None = Field(default=None, description="a file's path")
    hosted_usd_per_10000_samples: float | None = Field(default=None, gt=0, le=1_000_000)
    hosted_source: Text | None = Field(default=None, description="text that says where the price is from")

    @model_validator(mode="after")
    def _every_dollar_names_its_source(self) -> CostSection:
        for priced, source in SOURCE_OF_PRICE.items():
            if getattr(self, priced) is not None and getattr(self, source) is None:
                raise PydanticCustomError("price_without_source", "a price needs its source", {"priced": priced})
        return self


_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"  # Kubernetes: RFC 1123 label
_QUANTITY = r"^[1-9][0-9]*(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"

Name = Annotated[str, Field(pattern=_NAME)]
Quantity = Annotated[str, Field(pattern=_QUANTITY)]
_NAME_WORDS = "a Kubernetes name (lower-case letters, digits, '-')"


class FssSection(Section):
    volume_handle: Text | None = Field(
        default=None,
        pattern=r"^\S+:\S+:/\S*$",
        description="text like ocid1.filesystem...:MOUNT-TARGET-IP:/EXPORT",
    )
    capacity: Quantity = Field(default="200Gi", description="a Kubernetes quantity like 200Gi")


class ClusterSection(Section):
    kubeconfig: Text | None = Field(default=None, description="a file's path")
    context: Text | None = Field(default=None, description="the name of a kubeconfig's context")
    namespace: Name = Field(default="qlora-fleet", description=_NAME_WORDS)
    overlay: Literal[
        "pods", "preemptible", "interactive", "job-1gpu", "job-4gpu", "job-4gpu-jobset", "job-4gpu-kueue"
    ] = "pods"
    image: Text | None = Field(default=None, description="an image with its digest, HOST/REPOSITORY@sha256:...")
    pull_secret: Name | None = Field(default="ocir-secret", description=_NAME_WORDS)
    registry_user: Text | None = Field(default=None, description="a registry's user name")
    instance_type: Text = Field(
        default="VM.GPU.A10.1", pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", description="a node's label"
    )
    preemptible: bool = False
    cpu: Quantity = Field(default="4", description="a Kubernetes quantity like 4 or 500m")
    memory: Quantity = Field(default="24Gi", description="a Kubernetes quantity like 24Gi")
    shm: Quantity = Field(default="4Gi", description="a Kubernetes quantity like 4Gi")
    scratch: Quantity = Field(default="10Gi", description="a Kubernetes quantity like 10Gi")
    queue: Name = Field(default="qlora-fleet", description=_NAME_WORDS)
    ready_within_sec: float = Field(default=1800.0, ge=1, le=86_400)
    fss: FssSection = FssSection()


class Sections(Section):
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    results: ResultsSection = ResultsSection()
    fleet: FleetSection = FleetSection()
    bench: BenchSection = BenchSection()
    tune: TuneSection = TuneSection()
    build: BuildSection = BuildSection()
    image: ImageSection = ImageSection()
    registry: RegistrySection = RegistrySection()
    hub: HubSection = HubSection()
    cost: CostSection = CostSection()
    cluster: ClusterSection = ClusterSection()


_IMAGE_WORKSPACE, _SHARED_RESULTS = "/workspace", "/workspace/results"  # as image and manifests have them


class Settings(Sections):
    """The settings that count. `root` is the project's folder: where tasks.py and invoke.yaml are."""

    root: Path

    @property
    def workspace(self) -> Path:
        """The folder on a worker where `python -m bench` is started and relative paths begin."""
        if self.fleet.kind == "pods":
            return Path(_IMAGE_WORKSPACE, self.fleet.workspace or "")
        return self.root / (self.fleet.workspace or "")

    @property
    def shared_results(self) -> str | None:
        """A folder that every worker sees and that outlives them all; None where the fleet has none."""
        if self.fleet.kind != "pods":
            return None
        return self.fleet.pods.shared or (_SHARED_RESULTS if self.cluster.fss.volume_handle else None)

    @property
    def results_folder(self) -> Path:
        """Where runs are kept on this machine."""
        return self.root / self.results.folder

    def public(self) -> dict[str, Any]:
        """All settings as plain JSON values, for run.json. There is no secret among them to leave out."""
        return self.model_dump(mode="json", exclude={"root"})


def load(context: Context) -> Settings:
    """The settings of a task's context. Raises UsageError: one line naming the first problem and its place."""
    config = context.config
    found = layers.read(config, ENVIRONMENT)
    for layer in found.weakest_first:
        _refuse_unknown(layer, layer.data, Sections)
    _refuse_unknown_variables()
    merged = {key: value for key, value in found.merged().items() if key in Sections.model_fields}
    for name, keys in ENVIRONMENT.items():
        strongest = found.strongest(keys)
        if strongest is not None and strongest.environment:
            _put(merged, keys, _cast(os.environ[name], _field(keys)))
    try:
        sections = Sections.model_validate(merged)
    except ValidationError as error:
        raise UsageError(_first_problem(error, found)) from None
    return Settings(root=found.root, **{name: getattr(sections, name) for name in Sections.model_fields})


def _leaves(model: type[Section], above: Keys = ()) -> Iterator[Keys]:
    for name, info in model.model_fields.items():
        below = _section(info)
        if below is None:
            yield (*above, name)
        else:
            yield from _leaves(below, (*above, name))


def _section(info: FieldInfo) -> type[Section] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _field(keys: Keys) -> FieldInfo:
    model: type[Section] = Sections
    for key in keys[:-1]:
        model = typing.cast("type[Section]", model.model_fields[key].annotation)
    return model.model_fields[keys[-1]]


LEAVES: tuple[Keys, ...] = tuple(_leaves(Sections))
INVOKES_OWN: dict[str, Any] = Config.global_defaults()  # run, sudo, tasks, timeouts, ...
ENVIRONMENT: dict[str, Keys] = {layers.env_name(keys): keys for keys in LEAVES}


def _refuse_unknown(layer: Layer, data: Mapping[Any, Any], model: type[Section], above: Keys = ()) -> None:
    for key, value in data.items():
        keys = (*above, str(key))
        info = model.model_fields.get(key) if isinstance(key, str) else None
        if info is None:
            if not above and key in INVOKES_OWN:
                _refuse_unmergeable(layer, keys, value, INVOKES_OWN[key])
                continue
            nearest = _nearest(keys, model)
            if not above and layer.shared and nearest is None:
                continue  # another project's section in a file that all of the user's projects share
            names = f"{'.'.join(above) or 'the project'} has {', '.join(model.model_fields)}"
            advice = f"did you mean {nearest}?" if nearest else names
            raise UsageError(f"{layer.where(keys)}: {layers.clip('.'.join(keys))}: unknown setting; {advice}")
        below = _section(info)
        if below is not None and not isinstance(value, Mapping):
            names = ", ".join(below.model_fields)
            raise UsageError(
                f"{layer.where(keys)}: {'.'.join(keys)}: expected a section with {names}, found {found_text(value)}"
            )
        if below is not None:
            _refuse_unknown(layer, value, below, keys)


def _refuse_unmergeable(layer: Layer, keys: Keys, value: object, default: object) -> None:
    # What Invoke's own keys hold is not ours to judge, save what its merge would answer with a traceback.
    if isinstance(default, Mapping) != isinstance(value, Mapping):
        kind = "a section" if isinstance(default, Mapping) else "a value"
        raise UsageError(f"{layer.where(keys)}: {'.'.join(keys)}: expected {kind}, found {found_text(value)}")
    if isinstance(default, Mapping) and isinstance(value, Mapping):
        for key in value:
            if key in default:
                _refuse_unmergeable(layer, (*keys, str(key)), value[key], default[key])


def _nearest(keys: Keys, model: type[Section]) -> str | None:
    beside = difflib.get_close_matches(keys[-1].lower(), list(model.model_fields), 1, 0.6)
    elsewhere = [".".join(leaf) for leaf in LEAVES if leaf[-1] == keys[-1]]
    return ".".join((*keys[:-1], beside[0])) if beside else next(iter(elsewhere), None)


def _refuse_unknown_variables() -> None:
    ours = tuple(layers.env_name((name,)) + "_" for name in Sections.model_fields)
    for name in sorted(os.environ):
        if not name.startswith(layers.ENV_PREFIX) or name in ENVIRONMENT:
            continue
        near = difflib.get_close_matches(name, ENVIRONMENT, 1, 0.8 if name.startswith(ours) else 0.9)
        if near or name.startswith(ours):
            advice = f"did you mean {near[0]}?" if near else "`invoke.yaml` lists all settings"
            raise UsageError(f"environment {name}: unknown setting; {advice}")


def _cast(text: str, info: FieldInfo) -> Any:
    kind, nullable = _kind(info)
    if nullable and text == "":
        return None
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text  # validation names it
    return text


def _put(into: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        into = into.setdefault(key, {})
    into[keys[-1]] = value


def _first_problem(error: ValidationError, found: Layers) -> str:
    problem = error.errors()[0]
    if problem["type"] == "price_without_source":
        priced = ("cost", problem["ctx"]["priced"])
        price = found.strongest(priced)
        at = price.where(priced) if price is not None else "settings"
        source = SOURCE_OF_PRICE[priced[1]]
        return f"{at}: cost.{source}: expected text that says where the price is from, found null"
    place = problem["loc"]
    keys = tuple(part for part in place if isinstance(part, str))
    layer = found.strongest(keys)
    at = layer.where(keys) if layer is not None else "settings"
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    words = "text" if isinstance(place[-1], int) else expected(_field(keys))
    advice = "; a list stands in files only" if layer is not None and layer.environment and "list" in words else ""
    return f"{at}: {name}: expected {words}, found {found_text(problem['input'])}{advice}"


def expected(info: FieldInfo) -> str:
    """What a setting may hold, in words: its description or type, and its range."""
    kind, nullable = _kind(info)
    bounds = {name: getattr(rule, name) for rule in info.metadata for name in ("ge", "gt", "le") if hasattr(rule, name)}
    if typing.get_origin(kind) is Literal:
        choices = typing.get_args(kind)
        words = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    else:
        words = info.description or {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
    if "ge" in bounds:
        words += f" from {bounds['ge']} to {bounds['le']}"
    if "gt" in bounds:
        words += f" above {bounds['gt']}, at most {bounds['le']}"
    return f"{words}, or null" if nullable else words


def _kind(info: FieldInfo) -> tuple[Any, bool]:
    """A field's type without `| None` and annotations, and whether it may be null."""
    kind: Any = info.annotation
    parts = (
        typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union else ()
    )
    nullable = type(None) in parts
    if nullable:
        kind = next(part for part in parts if part is not type(None))
    return (typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind), nullable
