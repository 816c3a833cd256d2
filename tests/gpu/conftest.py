"""A GPU whose driver is there may still be one that torch cannot use. A step asks torch for TF32; the next test's
references are in float32."""

from collections.abc import Iterator

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
