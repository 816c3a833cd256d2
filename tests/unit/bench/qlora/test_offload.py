"""Embeddings and head in the host's memory: where they lie, and when they come back.

Weights are stand-ins that know their place. What a GPU computes with real ones is in tests/gpu/test_cuda_graph.py.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.qlora.recipes import offload  # noqa: E402 - after the skip


@dataclass(frozen=True)
class Numbers:
    place: str
    fits: bool

    def to(self, device: Any) -> "Numbers":
        if not self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Numbers(device.type, self.fits)


@dataclass(eq=False)
class Weight:
    data: Numbers
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cuda"))


def tables(*weights: Weight) -> offload.OffloadedTables:
    words, head = (SimpleNamespace(weight=weight) for weight in (weights[0], weights[-1]))
    return offload.OffloadedTables(
        SimpleNamespace(model=SimpleNamespace(embed_tokens=words), lm_head=head), offloaded=True
    )


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Numbers]:
    """Every copy that was made in the host's memory."""
    made: list[Numbers] = []

    def pinned(numbers: Numbers) -> Numbers:
        made.append(Numbers("host", numbers.fits))
        return made[-1]

    monkeypatch.setattr(offload, "_pinned", pinned)
    return made


def weight(*, fits: bool = True) -> Weight:
    return Weight(Numbers("cuda", fits))


@pytest.mark.usefixtures("copies")
def test_they_come_back_for_other_code_and_leave_again():
    words, head = weight(), weight()
    with tables(words, head).on_device():
        assert (words.data.place, head.data.place) == ("cuda", "cuda")
    assert (words.data.place, head.data.place) == ("host", "host")


def test_tied_weights_are_moved_once(copies):
    one = weight()
    tables(one)
    assert one.data.place == "host"
    assert len(copies) == 1


@pytest.mark.parametrize("words_fit", [True, False])
@pytest.mark.usefixtures("copies")
def test_where_they_find_no_room_both_are_in_the_hosts_memory_again(words_fit):
    words, head = weight(fits=words_fit), weight(fits=not words_fit)
    both = tables(words, head)
    with pytest.raises(torch.OutOfMemoryError), both.on_device():
        pytest.fail("there was no room")
    assert (words.data.place, head.data.place) == ("host", "host")
