"""Embeddings and head in host memory where the device has no room for them.

Weights are fakes that record their location. tests/gpu/test_cuda_graph.py computes with real ones on a GPU.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.qlora.recipes import offload  # noqa: E402 - after the skip


@dataclass(frozen=True)
class FakeTensor:
    location: str
    fits: bool

    def to(self, device: Any) -> "FakeTensor":
        if not self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return FakeTensor(device.type, self.fits)


@dataclass(eq=False)
class Weight:
    data: FakeTensor
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cuda"))


@pytest.mark.parametrize("fits", [(True, True), (True, False), (False, True)])
def test_weights_are_in_host_memory_after_other_code_even_without_device_memory(monkeypatch, fits):
    monkeypatch.setattr(offload, "_copy_to_pinned", lambda tensor: FakeTensor("host", tensor.fits))
    weights = [Weight(FakeTensor("cuda", each)) for each in fits]
    embedding, head = (SimpleNamespace(weight=weight) for weight in weights)
    base = SimpleNamespace(model=SimpleNamespace(embed_tokens=embedding), lm_head=head)
    tables, locations = offload.OffloadedTables(base, offloaded=True), []
    try:
        with tables.on_device():
            locations = [each.data.location for each in weights]
    except torch.OutOfMemoryError:
        assert not all(fits)
    assert locations == ["cuda", "cuda"] * all(fits)
    assert [each.data.location for each in weights] == ["host", "host"]
