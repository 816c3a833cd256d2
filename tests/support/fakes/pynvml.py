"""Fake of nvidia-ml-py for machines without a GPU: the library's names, with values from `GPUS`.

On PYTHONPATH it precedes the real library, so that the sampler's process imports it too; FAKE_NVML, a JSON list, then
defines its GPUs. The file FAKE_NVML_SWITCH, a JSON object, replaces values of the first GPU once it exists, so that a
test can let an error happen in the middle of a trial.

Not covered: the real structs and symbol versions, the duration of calls, and a driver that hangs.
"""

import json
import os
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 10, 15
nvmlEventTypeXidCriticalError = 8  # noqa: N816
nvmlMemory_v2 = 0x02000028  # noqa: N816
GIB = 1 << 30
USUAL = {
    "uuid": "GPU-aaaa",
    "use": [90, 40],
    "used": 20 * GIB,
    "reserved": GIB,
    "total": 140 * GIB,
    "power": 412_500,
    "clocks": {"1": 1980, "2": 3201},
    "temperature": 54,
    "reasons": 0x4,
    "processes": [],
    "unsupported": [],
    "ecc": [0, 0],  # corrected, uncorrected
    "rows": [0, 0, 0, 0],  # remapped after corrected and uncorrected errors, pending, failed
    "xids": [],
    "lost": False,
}
GPUS = [{**USUAL, **gpu} for gpu in json.loads(os.environ.get("FAKE_NVML", "[]"))]


class NVMLError(Exception):
    def __init__(self, text, value=999):
        super().__init__(text)
        self.value = value


def _gpu(index, function):
    switch = os.environ.get("FAKE_NVML_SWITCH", "")
    if index == 0 and os.path.exists(switch):
        with open(switch, encoding="utf-8") as file:
            GPUS[0].update(json.load(file))
    if GPUS[index]["lost"]:
        raise NVMLError("GPU is lost", NVML_ERROR_GPU_IS_LOST)
    if function in GPUS[index]["unsupported"]:
        raise NVMLError(function)
    return GPUS[index]


def nvmlInit():  # noqa: N802 - the library's names
    pass


def nvmlDeviceGetCount():  # noqa: N802
    return len(GPUS)


def nvmlDeviceGetHandleByIndex(index):  # noqa: N802
    return index


def nvmlDeviceGetName(_handle):  # noqa: N802
    return "NVIDIA H200"


def nvmlDeviceGetMemoryInfo(handle, version=None):  # noqa: N802
    gpu = _gpu(handle, "nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo")
    if version:
        return SimpleNamespace(used=gpu["used"], total=gpu["total"], reserved=gpu["reserved"])
    return SimpleNamespace(used=gpu["used"] + gpu["reserved"], total=gpu["total"])


def _clock(gpu, clock):
    return gpu["clocks"][str(clock)]


VALUES = {
    "nvmlDeviceGetUUID": lambda gpu: gpu["uuid"],
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu["use"][0], memory=gpu["use"][1]),
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu["power"],
    "nvmlDeviceGetEnforcedPowerLimit": lambda _gpu: 700_000,
    "nvmlDeviceGetEccMode": lambda _gpu: [1, 1],
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetMaxClockInfo": _clock,
    "nvmlDeviceGetTemperature": lambda gpu, _sensor: gpu["temperature"],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu["reasons"],
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu["reasons"],
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [
        SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in gpu["processes"]
    ],
    "nvmlDeviceGetTotalEccErrors": lambda gpu, kind, _counter: gpu["ecc"][kind],
    "nvmlDeviceGetRemappedRows": lambda gpu: tuple(gpu["rows"]),
}


def _function(name):
    return lambda handle, *arguments: VALUES[name](_gpu(handle, name), *arguments)


globals().update({name: _function(name) for name in VALUES})


def nvmlEventSetCreate():  # noqa: N802
    return {"gpu": None, "given": 0}


def nvmlDeviceRegisterEvents(handle, _types, events):  # noqa: N802
    _gpu(handle, "nvmlDeviceRegisterEvents")
    events["gpu"] = handle


def nvmlEventSetWait_v2(events, _timeout):  # noqa: N802
    xids = _gpu(events["gpu"], "nvmlEventSetWait_v2")["xids"]
    if events["given"] >= len(xids):
        raise NVMLError("Timeout", NVML_ERROR_TIMEOUT)
    events["given"] += 1
    return SimpleNamespace(eventData=xids[events["given"] - 1])
