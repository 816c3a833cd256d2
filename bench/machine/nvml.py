"""Readings of the GPUs from NVIDIA's management library; None if the card or driver does not report a value.

The library is nvidia-ml-py (`import pynvml`), a thin layer of ctypes. Without it, a driver or a GPU the list of GPUs is
empty. Reading needs no CUDA context, so it takes no GPU memory and works before torch is imported and in any process.

Not covered: the parts of a GPU split by MIG, for which the library reports memory but no utilization.
"""

import dataclasses
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIB = 1 << 20
TIMEOUT, GPU_IS_LOST = 10, 15  # values of nvmlReturn_t
MAX_EVENTS = 64  # in one call
DEVICE_FOLDER = Path("/dev")
HIDE_ALL_VALUES = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that hide every GPU

# Reasons for a limited clock, by bit. These four (heat, or too little current) make a result doubtful; the others are
# settings or, like the power cap at full load, normal.
SLOWDOWNS = {
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
POWER_CAP = "sw_power_cap"
CLOCK_LIMITS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: POWER_CAP,
    0x10: "sync_boost",
    0x100: "display_clocks",
    **SLOWDOWNS,
}


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """Readings of one GPU at one moment. `clock_limits`: active reasons; memory excludes the driver's if known."""

    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    sm_clock_mhz: int | None = None
    temperature_celsius: int | None = None
    clock_limits: tuple[str, ...] | None = None


class Gpu:
    """One GPU, with the library's index."""

    def __init__(self, library: Any, handle: Any, index: int) -> None:
        self._library, self._handle, self.index = library, handle, index

    def read(self) -> GpuSample:
        """Read everything that changes, except processes: about ten calls. Library errors become None."""
        use = self._query("nvmlDeviceGetUtilizationRates")
        memory = self._memory()
        power = self._query("nvmlDeviceGetPowerUsage")
        return GpuSample(
            utilization_percent=None if use is None else int(use.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=None if power is None else power / 1000.0,
            sm_clock_mhz=self._query("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM),
            temperature_celsius=self._query("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU),
            clock_limits=self._clock_limits(),
        )

    def processes(self) -> dict[int, int | None] | None:
        """Return the computing processes: host pid to bytes used. None if unknown."""
        running = self._query("nvmlDeviceGetComputeRunningProcesses")
        if running is None:
            return None
        return {
            int(process.pid): None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            for process in running
        }

    def settings(self) -> dict[str, Any]:
        """Return what does not change during a trial."""
        limit = self._query("nvmlDeviceGetEnforcedPowerLimit")
        ecc = self._query("nvmlDeviceGetEccMode")
        return {
            "uuid": self.uuid,
            "power_limit_watts": None if limit is None else limit / 1000.0,
            "ecc": None if ecc is None else bool(ecc[0]),
            "max_sm_clock_mhz": self._query("nvmlDeviceGetMaxClockInfo", self._library.NVML_CLOCK_SM),
            "max_memory_clock_mhz": self._query("nvmlDeviceGetMaxClockInfo", self._library.NVML_CLOCK_MEM),
        }

    def uncorrected_errors(self) -> int:
        """Count uncorrected ECC errors since the driver was loaded; 0 if unknown."""
        kinds = self._library.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self._library.NVML_VOLATILE_ECC
        return int(self._query("nvmlDeviceGetTotalEccErrors", *kinds) or 0)

    def remaps(self) -> tuple[bool, bool]:
        """Return whether a row of memory waits for a reset to be remapped, and whether a remapping failed."""
        rows = self._query("nvmlDeviceGetRemappedRows") or (0, 0, 0, 0)
        return bool(rows[2]), bool(rows[3])

    def is_lost(self) -> bool:
        """Return whether the driver reports that it has lost the GPU."""
        try:
            self._library.nvmlDeviceGetTemperature(self._handle, self._library.NVML_TEMPERATURE_GPU)
        except self._library.NVMLError as error:
            return getattr(error, "value", None) == GPU_IS_LOST
        return False

    def xid_events(self) -> "XidEvents":
        """Return the XID events from now on."""
        return XidEvents(self._library, self._handle)

    @property
    def name(self) -> str | None:
        name: str | None = self._query("nvmlDeviceGetName")
        return name

    @property
    def usable_memory_bytes(self) -> int | None:
        """Memory that processes can use: without the driver's, if the driver tells it."""
        memory = self._memory()
        return None if memory is None else int(memory.total) - int(getattr(memory, "reserved", 0))

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        version = self._query("nvmlDeviceGetCudaComputeCapability")
        return None if version is None else (int(version[0]), int(version[1]))

    @property
    def uuid(self) -> str | None:
        uuid: str | None = self._query("nvmlDeviceGetUUID")
        return uuid

    def _memory(self) -> Any:
        version = getattr(self._library, "nvmlMemory_v2", None)
        precise = None if version is None else self._query("nvmlDeviceGetMemoryInfo", version)
        return precise if precise is not None else self._query("nvmlDeviceGetMemoryInfo")

    def _clock_limits(self) -> tuple[str, ...] | None:
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the older name, for drivers before 535
            bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if bits is None else tuple(name for bit, name in CLOCK_LIMITS.items() if bits & bit)

    def _query(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._library, function, None)
        if call is None:
            return None
        try:
            return call(self._handle, *arguments)
        except self._library.NVMLError:
            return None


class XidEvents:
    """XID events of one GPU since this object was made; none if the driver does not report them."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._events = library, None
        try:
            events = library.nvmlEventSetCreate()
            library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
            self._events = events
        except (library.NVMLError, AttributeError):  # an older library or driver
            pass

    def drain(self) -> list[int]:
        """Return the events since the last call, without waiting."""
        xids: list[int] = []
        while self._events is not None and len(xids) < MAX_EVENTS:
            try:
                xids.append(int(self._library.nvmlEventSetWait_v2(self._events, 0).eventData))
            except self._library.NVMLError as error:
                if getattr(error, "value", None) != TIMEOUT:
                    self._events = None  # a lost GPU: another call would report the same error at once
                break
        return xids


def select_gpus(gpus: list[Gpu], visible_devices: str | None) -> list[Gpu]:
    """Return the GPUs that CUDA will see, in its order. `visible_devices` is CUDA_VISIBLE_DEVICES, None if unset.

    As in CUDA, the first entry that names no GPU ends the list. Numbers follow the order on the bus, which is CUDA's
    order with CUDA_DEVICE_ORDER=PCI_BUS_ID (set by `number_gpus_by_bus`).
    """
    if visible_devices is None:
        return gpus
    selected: list[Gpu] = []
    for word in (word.strip() for word in visible_devices.split(",")):
        matches = [
            gpu
            for gpu in gpus
            if (word.isdecimal() and gpu.index == int(word))
            or (word.startswith("GPU-") and (gpu.uuid or "").startswith(word))
        ]
        if len(matches) != 1:
            break
        selected += matches
    return selected


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA will see in this environment; empty without the library or a working driver."""
    return select_gpus(all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def all_gpus() -> list[Gpu]:
    """Return the driver's GPUs; empty without the library or a working driver."""
    library = _load_library()
    if library is None:
        return []
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
    except library.NVMLError:
        return []
    return [Gpu(library, handle, index) for index, handle in enumerate(handles)]


def driver_version() -> str | None:
    """Return the driver's version; None without the library or a working driver."""
    library = _load_library()
    return None if library is None else library.nvmlSystemGetDriverVersion()


def _load_library() -> Any:
    """Return the initialized library; None without it or a working driver."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


def current_sample() -> dict[str, Any]:
    """Read GPUs and host for `python -m bench sample`: plain JSON values, null if unknown."""
    return {
        "gpus": [{"gpu": gpu.index, "name": gpu.name, **dataclasses.asdict(gpu.read())} for gpu in visible_gpus()],
        "load_average_1min": round(os.getloadavg()[0], 2),
        "cpu_logical_cores": os.cpu_count(),
    }


def has_device_file() -> bool:
    """Return True if the system has an NVIDIA device file, with or without the library."""
    return any(DEVICE_FOLDER.glob("nvidia[0-9]*"))


def number_gpus_by_bus() -> None:
    """Make CUDA number GPUs like the library, by PCI bus. Call it before torch is imported."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
