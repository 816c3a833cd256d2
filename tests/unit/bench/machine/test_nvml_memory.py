"""Memory that processes can use of a GPU."""

from types import SimpleNamespace

import pytest

from bench.machine import nvml

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
def test_the_drivers_memory_is_not_usable(info, expected):
    assert gpu_of(total=TOTAL, **info).usable_memory_bytes == expected
