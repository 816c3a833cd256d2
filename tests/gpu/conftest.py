"""Fixtures for tests on a GPU: skip if torch cannot use it, and undo the TF32 setting of training steps."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def _cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(scope="session")
def gpus() -> int:
    """The number of GPUs, counted by another process: a context in this one would keep memory."""
    argv = (sys.executable, "-c", "import torch; print(torch.cuda.device_count())")
    return int(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120).stdout)


@pytest.fixture(scope="session")
def modules() -> Any:
    """The deep-learning libraries."""
    pytest.importorskip("torch")
    from bench import torch_stack

    return torch_stack.load()
