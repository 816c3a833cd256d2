"""A GPU whose driver is there may still be one that torch cannot use."""

import pytest


@pytest.fixture(scope="session")
def _cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
