"""Triton, or placeholders without it, so that the kernels' modules can always be imported."""

import importlib.util
import os
from functools import cache
from typing import Any

import torch

HOPPER = (9, 0)
HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton

    jit, tl = triton.jit, triton.language
    try:
        from triton.tools import tensor_descriptor

        TensorDescriptor = tensor_descriptor.TensorDescriptor
    except ImportError:  # older than 3.4
        TensorDescriptor = None
else:
    TensorDescriptor = None

    def jit(function: Any = None, **_options: Any) -> Any:
        """Return the kernel as a plain function; without Triton it is never launched."""
        return function if function is not None else jit

    class _MissingTriton:
        @staticmethod
        def constexpr(value: Any) -> Any:
            return value

        def __getattr__(self, name: str) -> Any:
            raise ImportError(f"triton is not installed; its {name} was needed")

    tl = _MissingTriton()


def uses_triton(tensor: Any) -> bool:
    """Return True if Triton kernels run on this tensor: it is on a GPU, or tests use Triton's interpreter."""
    return on_gpu(tensor) or (HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1")


def on_gpu(tensor: Any) -> bool:
    """Return True for a tensor on a GPU, or on "meta": launches with such tensors only compile (`ahead`)."""
    return bool(tensor.is_cuda or tensor.is_meta)


_ahead: tuple[tuple[int, int], int] | None = None  # the GPU for which launches with tensors on "meta" compile


def gpu_properties(device: Any) -> tuple[tuple[int, int], int]:
    """Return a GPU's compute capability and its number of multiprocessors."""
    return _ahead if device.type == "meta" and _ahead is not None else _properties(device)


@cache
def _properties(device: Any) -> tuple[tuple[int, int], int]:
    if device.type != "cuda":  # Triton's interpreter
        return (8, 6), 4
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), int(properties.multi_processor_count)


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(0, number - 1).bit_length()


def ceil_div(total: int, size: int) -> int:
    """Return `total` / `size`, rounded up."""
    return -(-total // size)
