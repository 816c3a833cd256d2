"""A weight as bitsandbytes keeps it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture
def quantized(modules) -> Callable[..., Any]:
    """In NF4 with double quantization, unless `how` says otherwise."""

    def make(rows: int, columns: int, dtype: Any = torch.bfloat16, **how: Any) -> Any:
        torch.manual_seed(rows * columns)
        options = {"quant_type": "nf4", "compress_statistics": True, "blocksize": 64} | how
        weight = (torch.randn(rows, columns) * 0.02).to(dtype)
        return modules.bitsandbytes.nn.Params4bit(weight, requires_grad=False, **options).to("cpu")

    return make
