"""Readings of the GPUs from NVIDIA's management library; None where the card or driver does not report one.

The library is nvidia-ml-py (`import pynvml`), a thin layer of ctypes. Without it, a driver or a GPU there is nothing to
read. Reading needs no CUDA context, so it takes no GPU memory and works before torch is imported and in any process.

Not covered: the parts of a GPU split by MIG, for which the library reports memory but no utilization.
"""

import dataclasses
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
DRIVER = Path("/dev")
HIDING_ALL = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that hide every GPU

# Why a GPU's clock is limited, by bit. These four mean trouble (heat, or too little current) and make a result
# doubtful; the others are settings or, like the power cap at full load, normal.
SLOWDOWNS = {
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
POWER_CAP = "sw_power_cap"
LIMITS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: POWER_CAP,
    0x10: "sync_boost",
    0x100: "display_clocks",
    **SLOWDOWNS,
}


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One GPU at one moment. `clock_limits` names the reasons in force; memory excludes the driver's own if known."""

    utilization_percent: int | None = None
    memory_utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    clock_limits: tuple[str, ...] | None = None


class Gpu:
    """One GPU, as the library numbers them."""

    def __init__(self, library: Any, handle: Any, index: int) -> None:
        self._library, self._handle, self.index = library, handle, index

    def read(self) -> GpuSample:
        """Everything that changes, except processes. About ten calls; no error of the library is raised."""
        nvml = self._library
        use = self._ask("nvmlDeviceGetUtilizationRates")
        memory = self._memory()
        power = self._ask("nvmlDeviceGetPowerUsage")
        return GpuSample(
            utilization_percent=None if use is None else int(use.gpu),
            memory_utilization_percent=None if use is None else int(use.memory),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=None if power is None else power / 1000.0,
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            clock_limits=self._clock_limits(),
        )

    def processes(self) -> dict[int, int | None] | None:
        """Processes that compute on it: pid, as the host numbers it, to bytes held. None where unknown."""
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        return {int(one.pid): None if one.usedGpuMemory is None else int(one.usedGpuMemory) for one in running}

    def facts(self) -> dict[str, Any]:
        """What does not change while a trial runs, for the fingerprint."""
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        ecc = self._ask("nvmlDeviceGetEccMode")
        return {
            "gpu_uuid": self.uuid,
            "gpu_power_limit_watts": None if limit is None else limit / 1000.0,
            "gpu_ecc": None if ecc is None else bool(ecc[0]),
            "gpu_max_sm_clock_mhz": self._ask("nvmlDeviceGetMaxClockInfo", self._library.NVML_CLOCK_SM),
        }

    @property
    def name(self) -> str | None:
        return _text(self._ask("nvmlDeviceGetName"))

    @property
    def uuid(self) -> str | None:
        return _text(self._ask("nvmlDeviceGetUUID"))

    def _memory(self) -> Any:
        version = getattr(self._library, "nvmlMemory_v2", None)
        precise = None if version is None else self._ask("nvmlDeviceGetMemoryInfo", version)
        return precise if precise is not None else self._ask("nvmlDeviceGetMemoryInfo")

    def _clock_limits(self) -> tuple[str, ...] | None:
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the older name, which drivers before 535 answer to
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else tuple(name for bit, name in LIMITS.items() if bits & bit)

    def _ask(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(self._handle, *arguments)
        except self._library.NVMLError:
            return None


def open_library() -> Any | None:
    """The initialized library, or None: not installed, no driver, or one that does not answer."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except ImportError:
        return None
    except library.NVMLError:
        return None
    return library


def visible(library: Any, chosen: str | None) -> list[Gpu]:
    """The GPUs that CUDA will see, in its order. `chosen` is CUDA_VISIBLE_DEVICES, None where it is not set.

    As in CUDA, the first word that names no GPU ends the list. Numbers follow the order on the bus, which is CUDA's
    order with CUDA_DEVICE_ORDER=PCI_BUS_ID (set by `order_like_the_library`).
    """
    every = [Gpu(library, library.nvmlDeviceGetHandleByIndex(index), index) for index in range(_count(library))]
    if chosen is None:
        return every
    seen: list[Gpu] = []
    for word in (word.strip() for word in chosen.split(",")):
        named = [
            gpu
            for gpu in every
            if (word.isdecimal() and gpu.index == int(word))
            or (word.startswith("GPU-") and (gpu.uuid or "").startswith(word))
        ]
        if len(named) != 1:
            break
        seen += named
    return seen


def gpus_here() -> list[Gpu]:
    """The GPUs that CUDA will see in this environment; none without the library."""
    library = open_library()
    return [] if library is None else visible(library, os.environ.get("CUDA_VISIBLE_DEVICES"))


def sample() -> dict[str, Any]:
    """GPUs and host at this moment, for `python -m bench sample`: plain JSON values, null where not known."""
    return {
        "gpus": [{"gpu": gpu.index, "name": gpu.name, **dataclasses.asdict(gpu.read())} for gpu in gpus_here()],
        "load_average_1min": round(os.getloadavg()[0], 2),
        "cpu_logical_cores": os.cpu_count(),
    }


def driver_is_there() -> bool:
    """True where the system shows an NVIDIA device, with or without the library to ask it."""
    return any(DRIVER.glob("nvidia[0-9]*")) or (DRIVER / "dxg").exists()  # dxg: Windows' subsystem for Linux


def order_like_the_library() -> None:
    """Make CUDA number GPUs as the library does. Call it before torch is imported."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def _count(library: Any) -> int:
    try:
        return int(library.nvmlDeviceGetCount())
    except library.NVMLError:
        return 0


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value  # bytes in releases before 11.5
