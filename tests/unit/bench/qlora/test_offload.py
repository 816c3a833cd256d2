"""Embeddings and head in host memory: their location, and their return to the device.

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


def make_tables(*weights: Weight) -> offload.OffloadedTables:
    embedding, head = (SimpleNamespace(weight=weight) for weight in (weights[0], weights[-1]))
    return offload.OffloadedTables(
        SimpleNamespace(model=SimpleNamespace(embed_tokens=embedding), lm_head=head), offloaded=True
    )


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[FakeTensor]:
    """Return the list of all copies in host memory."""
    copies: list[FakeTensor] = []

    def copy_to_pinned(tensor: FakeTensor) -> FakeTensor:
        copies.append(FakeTensor("host", tensor.fits))
        return copies[-1]

    monkeypatch.setattr(offload, "_copy_to_pinned", copy_to_pinned)
    return copies


def weight(*, fits: bool = True) -> Weight:
    return Weight(FakeTensor("cuda", fits))


@pytest.mark.parametrize("is_tied", [True, False])
def test_weights_are_moved_once_and_return_to_the_device_for_other_code(copies, is_tied):
    weights = (weight(),) if is_tied else (weight(), weight())
    tables = make_tables(*weights)
    assert len(copies) == len(weights)
    with tables.on_device():
        assert {each.data.location for each in weights} == {"cuda"}
    assert {each.data.location for each in weights} == {"host"}


@pytest.mark.parametrize("embedding_fits", [True, False])
@pytest.mark.usefixtures("copies")
def test_without_device_memory_both_weights_are_in_host_memory_again(embedding_fits):
    embedding, head = weight(fits=embedding_fits), weight(fits=not embedding_fits)
    both = make_tables(embedding, head)
    with pytest.raises(torch.OutOfMemoryError), both.on_device():
        pytest.fail("the device has no memory for the weights")
    assert (embedding.data.location, head.data.location) == ("host", "host")
