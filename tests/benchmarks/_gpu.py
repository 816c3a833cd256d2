"""What the benchmarks on a GPU share: the memory they may use, their steps, and what the GPU draws meanwhile."""

import contextlib
import statistics
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.machine import nvml

LIMIT_BYTES = int(21.5 * 2**30)  # what a 24 GB card leaves for training
WARMUP, MEASURED = 5, 12
HELD_LAYERS = 11  # what the limit has room for beside the activations of 512 x 8, captured
HELD_IN_EIGHT = {"eight_backward": 22, "eight": 19}  # the former keeps one orientation alone
PERIOD_SEC = 0.05


@dataclass(kw_only=True)
class Draw:
    """Power in watts, the clock of the multiprocessors in MHz and what held it back, sampled by `metered`."""

    readings: list[nvml.GpuSample] = field(default_factory=list)

    @property
    def watts(self) -> float | None:
        return _median([reading.power_watts for reading in self.readings])

    @property
    def sm_clock_mhz(self) -> float | None:
        return _median([reading.sm_clock_mhz for reading in self.readings])

    @property
    def capped_percent(self) -> float | None:
        """Of the readings, how many had the clock below what it could be because of the power limit."""
        told = [reading.clock_limits for reading in self.readings if reading.clock_limits is not None]
        return 100.0 * sum(nvml.POWER_CAP in limits for limits in told) / len(told) if told else None

    def to_json(self) -> dict[str, Any]:
        return {"watts": self.watts, "sm_clock_mhz": self.sm_clock_mhz, "power_capped_percent": self.capped_percent}


def limit(torch: Any, *, limited: bool = True) -> None:
    """This process may use LIMIT_BYTES of the GPU, or again all of it."""
    if torch.cuda.is_available():
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / whole if limited else 1.0)


@contextlib.contextmanager
def metered() -> Iterator[Draw]:
    """Reads the first GPU every PERIOD_SEC while the block runs; on a machine without one, nothing is read."""
    draw, done = Draw(), threading.Event()
    gpus = nvml.gpus_here()

    def sample() -> None:
        while not done.wait(PERIOD_SEC):
            draw.readings.append(gpus[0].read())

    sampler = threading.Thread(target=sample, daemon=True)
    if gpus:
        sampler.start()
    try:
        yield draw
    finally:
        done.set()
        if gpus:
            sampler.join()


def drawn(said: dict[str, Any]) -> str:
    """A `Draw.to_json()` for a person, as the end of a list: ", 692 W at 1,470 MHz (at the power limit: 100 %)"."""
    if said.get("watts") is None or said.get("sm_clock_mhz") is None:
        return ""
    capped = said["power_capped_percent"]
    limit = "" if capped is None else f" (at the power limit: {capped:.0f} %)"
    return f", {said['watts']:.0f} W at {said['sm_clock_mhz']:,.0f} MHz{limit}"


def _median(values: list[Any]) -> float | None:
    told = [float(value) for value in values if value is not None]
    return statistics.median(told) if told else None
