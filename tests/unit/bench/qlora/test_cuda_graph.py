"""Capture and end of a step's graphs, with equal gradients, tested with a fake graph.

Not covered: CUDA graphs themselves, which need a GPU (tests/gpu/test_cuda_graph.py).
"""

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from bench.data.collate import Batch
from bench.qlora.recipes import cuda_graph
from bench.qlora.recipes.cuda_graph import CapturedStep
from bench.qlora.step import Placement
from tests.support.faults import raising

CPU = Placement(device=torch.device("cpu"), compute_dtype=torch.float32)


class Model(torch.nn.Module):
    """A loss that depends on ids, labels, edges and seed."""

    graph: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 4))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.seeds = 0

    def train(self, mode: bool = True) -> "Model":
        super().train(mode)
        if not mode:
            self.graph = None
        return self

    def next_seed(self) -> int:
        self.seeds += 1
        return self.seeds

    def forward(self, input_ids: Any, labels: Any, edges: Any = None, seed: Any = None) -> Any:
        seed = self.next_seed() if seed is None else seed
        count = 1 if edges is None else len(edges)
        return SimpleNamespace(
            loss=((self.weight * input_ids.float().mean()) ** 2).sum() * labels.float().mean() * seed / count
        )


class Graph:
    """A fake of `CapturedGraph`: computes when it is called, and adds to the gradients that it was created with."""

    created: ClassVar[list[tuple[tuple[int, ...], int]]] = []

    def __init__(self, model: Any, trained: Any, inputs: Any, edges: int, *, has_hooks: bool) -> None:
        assert not has_hooks
        self.created.append((tuple(inputs["input_ids"].shape), edges))
        self._model, self._trained = model, trained
        self._grads = [parameter.grad for parameter in trained]

    def __call__(self, inputs: Any, seed: int, share: float, clock: Any) -> Any:
        mean = self._model(**inputs, seed=seed).loss
        clock.end("forward")
        for total, grad in zip(self._grads, torch.autograd.grad(mean * share, self._trained), strict=True):
            total += grad
        clock.end("backward")
        return mean.detach()


@pytest.fixture(autouse=True)
def graphs(monkeypatch) -> list[tuple[tuple[int, ...], int]]:
    Graph.created = []
    monkeypatch.setattr(cuda_graph, "CapturedGraph", Graph)
    monkeypatch.setattr(cuda_graph, "_free_cached_memory", lambda: None)
    return Graph.created


def make_step(*, captures: bool = True) -> Any:
    model = Model()
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    inputs = ("input_ids", "labels", "edges")
    step = CapturedStep(SimpleNamespace(torch=torch), model, optimizer, CPU, autocast=False, inputs=inputs)
    step.may_capture = captures
    return step


def batch(number: int, length: int = 8, samples: int = 0) -> Batch:
    ids = torch.full((1, length), number + 1)
    edges = torch.arange(samples + 1) if samples else None
    return Batch(input_ids=ids, labels=ids, samples=1, tokens=length, useful_tokens=length, edges=edges)


def run(step: Any, batches: list[Batch], accumulation: int = 1) -> list[float]:
    parts = (batches[first : first + accumulation] for first in range(0, len(batches), accumulation))
    return [float(step(iter(part), accumulation)) for part in parts]


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_the_second_micro_batch_of_a_shape_is_captured_and_nothing_changes(graphs, accumulation):
    batches = [batch(number) for number in range(6)]
    plain, step = make_step(captures=False), make_step()
    assert run(step, batches, accumulation) == run(plain, batches, accumulation)
    assert torch.equal(step.model.weight, plain.model.weight)
    assert graphs == [((1, 8), cuda_graph.MIN_EDGES)]
    assert (step.capture_status, plain.capture_status) == ("yes", None)


def test_another_shape_drops_the_graph_and_is_captured_at_its_second_batch(graphs):
    step = make_step()
    run(step, [batch(0), batch(1), batch(2, 6)])
    assert step.model.graph is None
    run(step, [batch(3), batch(4)])
    assert [shape for shape, _ in graphs] == [(1, 8), (1, 8)]


def test_capture_is_given_up_if_shapes_keep_changing(graphs):
    step = make_step()
    run(step, [batch(number, 4 + number % 3) for number in range(20)])
    assert graphs == []
    assert (step.may_capture, step.capture_status) == (False, "no: micro-batches of many shapes")


def test_packed_rows_share_a_graph_until_one_has_too_many_samples(graphs):
    step = make_step()
    run(step, [batch(number, samples=samples) for number, samples in enumerate((3, 30, 5, 40, 7, 33, 2))])
    assert [edges for _, edges in graphs] == [32, 64]


def test_an_evaluation_drops_the_graph_and_the_next_micro_batch_is_captured_again(graphs):
    step = make_step()
    run(step, [batch(0), batch(1)])
    step.model.eval()
    assert step.model.graph is None
    step.model.train()
    run(step, [batch(2)])
    assert len(graphs) == 2
    assert step.capture_status == "yes"


@pytest.mark.parametrize("when", ["capturing", "checking the headroom"])
def test_without_memory_steps_continue_uncaptured_with_a_reason(monkeypatch, when):
    full = raising(torch.OutOfMemoryError("full"))
    if when == "capturing":
        monkeypatch.setattr(cuda_graph, "CapturedGraph", full)
    else:
        monkeypatch.setattr(CapturedStep, "_check_headroom", full)
    batches = [batch(number) for number in range(4)]
    plain, step = make_step(captures=False), make_step()
    assert run(step, batches) == run(plain, batches)
    assert torch.equal(step.model.weight, plain.model.weight)
    assert step.capture_status == "no: not enough memory"
    assert step.model.graph is None
    assert step.model.weight.grad is None


def test_another_error_while_capturing_propagates(monkeypatch):
    broken = raising(RuntimeError("operation not permitted when stream is capturing"))
    monkeypatch.setattr(cuda_graph, "CapturedGraph", broken)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        run(make_step(), [batch(0), batch(1)])
