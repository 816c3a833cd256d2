"""A worker's forecast of a training before it starts."""

from dataclasses import dataclass, field

from bench.records.training import DataReport, DerivedSettings


@dataclass(frozen=True, kw_only=True)
class ChipForecast:
    """A training on one kind of GPU: does it fit, and the seconds of a packed row with the range of the estimate."""

    name: str
    fits: bool
    row_sec: float
    row_sec_low: float
    row_sec_high: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A worker's forecast of a training before it starts.

    `peak_bytes` is GPU memory, None without a GPU. `recipe` is the one that will be built, with the reason for a
    fallback; `can_use_int8`: it can multiply all layers in 8 bits here. `data` and `steps` are None until the data are
    read. `chips` have the times of a packed row, without communication, also on this GPU if its figures are published.
    """

    model_sha256: str
    gpu: str | None
    gpus: int
    gpu_memory_bytes: int | None
    peak_bytes: int | None
    recipe: str
    can_use_int8: bool = False
    data: DataReport | None = None
    steps: int | None = None
    chips: list[ChipForecast] = field(default_factory=list)
    derived: DerivedSettings = field(default_factory=DerivedSettings)
