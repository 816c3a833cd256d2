"""Fixture for a weight quantized by bitsandbytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture
def quantized(modules) -> Callable[..., Any]:
    """Return a factory of weights in NF4 with double quantization, unless overridden."""

    def make(rows: int, columns: int, dtype: Any = torch.bfloat16, **overrides: Any) -> Any:
        torch.manual_seed(rows * columns)
        options = {"quant_type": "nf4", "compress_statistics": True, "blocksize": 64} | overrides
        weight = (torch.randn(rows, columns) * 0.02).to(dtype)
        return modules.bitsandbytes.nn.Params4bit(weight, requires_grad=False, **options).to("cpu")

    return make
