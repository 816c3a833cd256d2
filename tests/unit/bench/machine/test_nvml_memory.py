"""Memory that processes can use of a GPU, and the largest peak that a survey predicts to fit."""

from types import SimpleNamespace

import pytest

from bench.machine import nvml
from bench.predict import memory, throughput

TOTAL, DRIVER = 23028 << 20, 446 << 20  # an A10


def gpu_of(**memory_info: int) -> nvml.Gpu:
    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlMemory_v2=2,
        nvmlDeviceGetMemoryInfo=lambda *_: SimpleNamespace(**memory_info),
        nvmlDeviceGetName=lambda _: "NVIDIA A10",
    )
    return nvml.Gpu(library, None, 0)


@pytest.mark.parametrize(("info", "expected"), [({"reserved": DRIVER}, TOTAL - DRIVER), ({}, TOTAL)])
def test_the_drivers_memory_is_not_usable(info, expected, monkeypatch):
    gpu = gpu_of(total=TOTAL, **info)
    assert gpu.usable_memory_bytes == expected
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [gpu])
    assert throughput._gpu() == {
        "name": "NVIDIA A10",
        "memory_bytes": expected,
        "largest_peak_bytes": memory.largest_peak(expected),
    }
