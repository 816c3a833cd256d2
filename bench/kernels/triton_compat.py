"""Triton where it is installed. Without it the kernels' modules can still be imported."""

import importlib.util
import os
from functools import cache
from typing import Any

import torch

__all__ = [
    "HAS_TRITON",
    "HOPPER",
    "TensorDescriptor",
    "compiled",
    "gpu",
    "jit",
    "parts",
    "power_of_two",
    "tl",
    "triton",
]

HOPPER = (9, 0)
HAS_TRITON = importlib.util.find_spec("triton") is not None

if HAS_TRITON:
    import triton
    import triton.language as tl

    jit = triton.jit
    try:
        from triton.tools.tensor_descriptor import TensorDescriptor
    except ImportError:  # older than 3.4
        TensorDescriptor = None
else:
    TensorDescriptor = None

    def jit(function: Any = None, **_options: Any) -> Any:
        """Leaves a kernel a plain function: without Triton it is never launched."""
        return function if function is not None else jit

    class _MissingTriton:
        @staticmethod
        def constexpr(value: Any) -> Any:
            return value

        def __getattr__(self, name: str) -> Any:
            raise ImportError(f"triton is not installed; its {name} was needed")

    triton = tl = _MissingTriton()


def compiled(tensor: Any) -> bool:
    """Whether to use the Triton kernel for this tensor: on a GPU, or in Triton's interpreter, for tests."""
    return bool(tensor.is_cuda) or (HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1")


@cache
def gpu(device: Any) -> tuple[tuple[int, int], int]:
    """A GPU's compute capability and its multiprocessors; asked once, not for each kernel."""
    if device.type != "cuda":  # Triton's interpreter
        return (8, 6), 4
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), int(properties.multi_processor_count)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`: a side of a Triton tile."""
    return 1 << max(0, number - 1).bit_length()


def parts(total: int, size: int) -> int:
    """How many pieces of `size` cover `total`."""
    return -(-total // size)
